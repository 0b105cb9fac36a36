"""Interrupts: that there was one, and of commands that have something to say of it the first alone."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class Interrupted:
    """Within it `yes` says whether there was an interrupt. Libraries that are just being imported may turn the
    KeyboardInterrupt into an error of their own."""

    yes = False

    def __enter__(self) -> Interrupted:
        main = threading.current_thread() is threading.main_thread()
        self._mine = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._mine:
            signal.signal(signal.SIGINT, self._answer)
        return self

    def __exit__(self, *_: object) -> None:
        if self._mine and signal.getsignal(signal.SIGINT) == self._answer:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _answer(self, number: int, frame: FrameType | None) -> None:
        self.yes = True
        signal.default_int_handler(number, frame)


@contextmanager
def one_interrupt() -> Generator[None]:
    """Within it the first interrupt raises KeyboardInterrupt. Those that follow are ignored, also on the way out of the
    process, which is then short; without an interrupt they mean what they did before.

    Outside of the main thread, where signals are not handled, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def answer(number: int, frame: FrameType | None) -> None:
        del number, frame
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, answer)
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException:
        signal.signal(signal.SIGINT, before)
        raise
    signal.signal(signal.SIGINT, before)


@contextmanager
def going_on_from(output: str | None) -> Generator[None]:
    """Says of an interrupt within it what is left in the output of a run that can go on; None says nothing."""
    try:
        yield
    except KeyboardInterrupt:
        if output is not None and output != "-":
            there = Path(output).is_file() and Path(output).stat().st_size
            kept = f"{output} has the answers so far, and the same command goes on from there"
            print(f"interrupted: {kept if there else 'no prompt is answered yet'}", file=sys.stderr)
        raise
