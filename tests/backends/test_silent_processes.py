"""Processes that live and stand still: known by their silence, as slow ones are not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from offloading.several import free_port

WORKER = Path(__file__).parent / "peers_worker.py"


@contextmanager
def processes(count: int, silence: float, seconds: float) -> Generator[list[subprocess.Popen[str]]]:
    """So many of them, which have met; number 1 works for `seconds`."""
    port = free_port()
    started = [
        subprocess.Popen(
            [sys.executable, *map(str, (WORKER, port, count, index, silence, f"layer {index}", seconds))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "met\n"
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def ended(running: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """The status of each, and what it said on stderr."""
    said = [process.communicate(timeout=20)[1] for process in running]
    return [(process.returncode, err) for process, err in zip(running, said, strict=True)]


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_process_is_lost(stopped: int) -> None:
    """The others end, each naming it and what it was last at; when it is continued it ends, too."""
    with processes(3, 1.0, 60) as all_of_them:
        time.sleep(0.5)  # a sign of life with what each is at
        one = all_of_them[stopped]
        others = [process for process in all_of_them if process is not one]
        began = time.monotonic()
        os.kill(one.pid, signal.SIGSTOP)
        for status, err in ended(others):
            assert status == 1
            what = f"process {stopped} of 3 has given no sign of life for 1 s, and was last at: layer {stopped}, and"
            assert what in err
        assert 0.7 < time.monotonic() - began < 10
        assert one.poll() is None
        os.kill(one.pid, signal.SIGCONT)
        ((status, err),) = ended([one])
        assert status == 1
        assert "[lost-process]" in err


def test_a_slow_process_is_not_lost() -> None:
    """It computes twice as long as a silence lasts, and sleeps as long; the others wait for it."""
    with processes(3, 1.0, 4) as all_of_them:
        assert ended(all_of_them) == [(0, "")] * 3


def test_all_stopped_together_go_on() -> None:
    """As when their terminal stops them: the time has not passed for them."""
    with processes(2, 1.0, 4) as all_of_them:
        for process in all_of_them:
            os.kill(process.pid, signal.SIGSTOP)
        time.sleep(2.5)
        for process in all_of_them:
            os.kill(process.pid, signal.SIGCONT)
        assert ended(all_of_them) == [(0, "")] * 2


def test_silence_may_be_without_end() -> None:
    with processes(2, 0, 2) as all_of_them:
        os.kill(all_of_them[1].pid, signal.SIGSTOP)
        time.sleep(1.5)
        assert all_of_them[0].poll() is None
        os.kill(all_of_them[1].pid, signal.SIGCONT)
        assert ended(all_of_them) == [(0, "")] * 2
