"""Commands that SIGINT interrupts, though this process, and so what it starts, may ignore it: a shell has its jobs in
the background ignore it, and `nohup` its command."""

from __future__ import annotations

import sys

HEEDED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
"""At the head of a script of Python, which then is interrupted by SIGINT as from a terminal."""


def interruptible(*words: object) -> list[str]:
    """The argument list of `shardwright WORDS` in a process of its own."""
    script = f"{HEEDED}import runpy; runpy.run_module('shardwright', run_name='__main__', alter_sys=True)"
    return [sys.executable, "-c", script, *map(str, words)]
