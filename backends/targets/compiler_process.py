"""Processes in which compilers run, apart from this one: one for each platform, which answers request after request.

To load JAX and a compiler takes longer than to compile most modules.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shardwright.ir.own_processes import module_command

_MOST_REQUESTS = 100
"""Requests that one process answers before another takes its place, which frees what compilers keep of each."""

_running: dict[str, CompilerProcess] = {}
"""By platform."""

_asking = threading.Lock()


class EndedProcessError(Exception):
    """A process that ended without an answer: its exit status, and what was printed since it was asked."""

    def __init__(self, status: int, printed: str) -> None:
        super().__init__(f"ended with status {status}")
        self.status, self.printed = status, printed


class CompilerProcess:
    """A process of `backends.targets.worker`. What compilers print goes to a file."""

    def __init__(self, environment: Mapping[str, str], flags: Sequence[str]) -> None:
        self.made_with = _circumstances(environment, flags)
        self.requests = 0
        self.folder = tempfile.TemporaryDirectory(prefix="shardwright-", ignore_cleanup_errors=True)
        self.dumps, self.noise = (Path(self.folder.name) / part for part in ("dumps", "noise"))
        words = [*module_command("shardwright.backends.targets.worker"), str(os.getpid())]
        env = {**environment, "XLA_FLAGS": " ".join([*flags, f"--xla_dump_to={self.dumps}"])}
        try:
            with self.noise.open("wb") as sink:
                self.process = subprocess.Popen(
                    words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, env=env
                )
        except OSError:
            self.folder.cleanup()
            raise

    def takes(self, environment: Mapping[str, str], flags: Sequence[str]) -> bool:
        """Tells whether it is there for another request, made with this environment and these flags of XLA."""
        same = self.made_with == _circumstances(environment, flags)
        return same and self.requests < _MOST_REQUESTS and self.process.poll() is None

    def ask(self, request: Mapping[str, Any], file: Path, time_limit_s: float) -> None:
        """Returns once the answer stands in `file`. Raises a `TimeoutError` or an `EndedProcessError`, and ends the
        process, where there is none."""
        self.requests += 1
        printed, replies = self.noise.stat().st_size, list[bytes]()
        requests, answers = self.process.stdin, self.process.stdout
        assert requests is not None
        assert answers is not None
        reader = threading.Thread(target=lambda: replies.append(answers.readline()), daemon=True)
        asked = {**request, "dumps": str(self.dumps), "answer": str(file)}
        with suppress(OSError):  # it has ended, which the reader sees
            requests.write(json.dumps(asked).encode() + b"\n")
            requests.flush()
        try:
            reader.start()
            reader.join(time_limit_s)
            if not replies:
                raise TimeoutError
            if not replies[0]:
                raise EndedProcessError(self.process.wait(), self.printed_since(printed))
        except BaseException:
            self.close()
            raise

    def printed_since(self, size: int) -> str:
        """The text that the process printed after so many bytes."""
        return self.noise.read_bytes()[size:].decode("utf-8", errors="replace")

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()
        for pipe in filter(None, (self.process.stdin, self.process.stdout)):
            with suppress(OSError):  # what could not be sent
                pipe.close()
        self.folder.cleanup()


def ask(
    platform: str,
    environment: Mapping[str, str],
    flags: Sequence[str],
    request: Mapping[str, Any],
    file: Path,
    time_limit_s: float,
) -> None:
    """Asks the platform's process, which is started where there is none that takes the request. Raises as
    `CompilerProcess.ask` does."""
    with _asking:
        running = _running.get(platform)
        if running is None or not running.takes(environment, flags):
            if running is not None:
                del _running[platform]
                running.close()
            running = _running[platform] = CompilerProcess(environment, flags)
        running.ask(request, file, time_limit_s)


def _circumstances(environment: Mapping[str, str], flags: Sequence[str]) -> object:
    """All that a process keeps of how it was started."""
    return os.getpid(), sys.executable, dict(environment), list(flags)


@atexit.register
def _close_all() -> None:
    for running in _running.values():
        running.close()
    _running.clear()
