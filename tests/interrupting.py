"""Commands in processes of their own, which a test ends in the middle.

SIGINT interrupts them, though this process, and so what it starts, may ignore it: a shell has its jobs in the
background ignore it, and `nohup` its command.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from nursery import Process

HEEDED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""At the head of a script of Python, which then is interrupted by SIGINT as from a terminal."""


def interruptible(*words: object) -> list[str]:
    """The argument list of `shardwright WORDS` in a process of its own."""
    script = f"{HEEDED}import runpy; runpy.run_module('shardwright', run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", script, *map(str, words)]


def await_output(out: Path, size: int, *processes: Process, seconds: float = 300) -> None:
    """Return once there are `size` bytes in a file, or one of the processes that write it has ended.

    A run that fails takes its empty file away, so that the file may be gone between two looks at it.
    """
    deadline = time.monotonic() + seconds
    while all(process.poll() is None for process in processes) and time.monotonic() < deadline:
        try:
            if out.stat().st_size >= size:
                return
        except FileNotFoundError:
            pass
        time.sleep(0.002)
