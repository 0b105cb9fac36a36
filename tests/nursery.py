"""Processes of Python that begin with the libraries loaded.

`start(TORCH, "-m", "shardwright", "offload", ...)` is `python -m shardwright offload ...`, forked from a process that
has imported what the command needs and done nothing else: importing takes seconds, which many tests would spend anew.

The server of `multiprocessing` that forks has one list of modules for each process, that of the tests of the workbench,
and runs functions; these are commands with an environment, streams, an exit status and processor time of their own.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

TORCH = ("torch.distributed", "shardwright.cli.offload", "shardwright.serving.offloading.run")
"""The imports of `offload`."""

JAX = ("jax", "shardwright.cli.generate", "shardwright.serving.generation.engine")
"""The imports of `generate`."""

spent = [0.0]
"""Seconds of processor time of those that have ended, which are no children of this process."""


class Started:
    """A process, with as much of the interface of `subprocess.Popen` as tests need."""

    def __init__(self, pid: int, ending: socket.socket, out: IO[str], err: IO[str]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ending, self._files = ending, (out, err)
        self._said: list[str] = []

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._ending.settimeout(timeout)
            try:
                said = self._ending.recv(64)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
            self._ending.close()
            for file in self._files:
                with file:
                    file.seek(0)
                    self._said.append(file.read())
            status, seconds = said.split()
            spent[0] += float(seconds)
            self.returncode = int(status)
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """The texts that it printed on stdout and stderr, once it has ended."""
        self.wait(timeout)
        return self._said[0], self._said[1]

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process = Started | subprocess.Popen[str]


def start(libraries: Sequence[str], *words: object, env: Mapping[str, str] | None = None) -> Process:
    """`python WORDS` with the libraries imported, where the words are `-m MODULE`, `-c SCRIPT` or a file, and what
    follows them. The environment is that of this process, or `env`. Where no descriptor stands for a process, which is
    so but for Linux, it is started as any other."""
    if not hasattr(os, "pidfd_open"):
        pipe = subprocess.PIPE
        environment = {"OMP_NUM_THREADS": "1", **(os.environ if env is None else env)}
        return subprocess.Popen(
            [sys.executable, *map(str, words)], stdout=pipe, stderr=pipe, text=True, env=environment
        )
    out, err = _stream(), _stream()
    ours, theirs = socket.socketpair()
    made = json.dumps(
        {"words": [*map(str, words)], "env": {**(os.environ if env is None else env)}, "at": str(Path.cwd())}
    )
    nursery = _nursery(tuple(libraries))
    with theirs:
        socket.send_fds(nursery, [b"."], [out.fileno(), err.fileno(), theirs.fileno()])
        nursery.sendall(f"{len(made):8}{made}".encode())
    return Started(int(ours.recv(16)), ours, out, err)


def _stream() -> IO[str]:
    """A file without a name, which is closed when it is read."""
    return tempfile.TemporaryFile("w+", encoding="utf-8")


@functools.cache
def _nursery(libraries: Sequence[str]) -> socket.socket:
    """A connection to the process that has imported the libraries; it ends with this one."""
    ours, theirs = socket.socketpair()
    words = [sys.executable, __file__, str(theirs.fileno()), *libraries]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=env)
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


# ---------------------------------------------------------------- the process that they are forked from


def main(connection: socket.socket) -> None:
    """Forks until the other end of the connection is closed. Returns in each of the processes, whose arguments, files,
    environment and folder are set, and which can be interrupted."""
    ready = selectors.DefaultSelector()
    ready.register(connection, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.data is None:
                _, files, _, _ = socket.recv_fds(connection, 1, 3)
                if not files:
                    for other in ready.get_map().values():
                        if other.data is not None:
                            os.kill(other.data[0], signal.SIGKILL)
                    os._exit(0)
                length = int(connection.recv(8, socket.MSG_WAITALL))
                asked = json.loads(connection.recv(length, socket.MSG_WAITALL))
                pid = os.fork()
                if not pid:
                    ready.close()
                    connection.close()
                    _become(asked["words"], asked["env"], asked["at"], files)
                    return
                for file in files[:2]:
                    os.close(file)
                ready.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, files[2]))
            else:
                pid, ending = key.data
                _, status, usage = os.wait4(pid, 0)
                seconds = usage.ru_utime + usage.ru_stime
                os.write(ending, f"{os.waitstatus_to_exitcode(status)} {seconds}".encode())
                ready.unregister(key.fd)
                os.close(key.fd)
                os.close(ending)


def _become(words: list[str], env: dict[str, str], folder: str, files: Sequence[int]) -> None:
    os.dup2(files[0], 1)
    os.dup2(files[1], 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.write(files[2], f"{os.getpid():16}".encode())
    os.closerange(3, max(64, *files) + 1)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[:] = words


def _run(first: str, *rest: str) -> None:
    """Runs a module, a script or a file, as `python FIRST REST` does."""
    match first:
        case "-m":
            sys.path.insert(0, str(Path.cwd()))
            sys.argv[:] = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        case "-c":
            sys.path.insert(0, "")
            sys.argv[:] = ["-c", *rest[1:]]
            exec(rest[0], {"__name__": "__main__"})
        case _:
            sys.path.insert(0, str(Path(first).parent))
            runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    import gc
    import importlib
    import warnings

    warnings.filterwarnings("ignore", "os.fork")  # of jax, whose threads begin with its first device
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    del sys.path[0]
    for library in sys.argv[2:]:
        importlib.import_module(library)
    gc.freeze()
    main(socket.socket(fileno=int(sys.argv[1])))
    _run(*sys.argv)
