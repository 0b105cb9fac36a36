"""Interrupts: that there was one, and of commands that have something to say of it the first alone."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

LATER = 0.01
"""After so many seconds an interrupt that was lost comes again."""


@contextmanager
def again_where_lost(answer: Callable[[int, FrameType | None], None]) -> Generator[None]:
    """Within it no interrupt is lost: Python ignores errors in what it calls while an object goes, as of the sets in
    which it has its threads, KeyboardInterrupts among them. `answer` then gets another one, a little later."""
    before, coming, main = sys.unraisablehook, list[threading.Timer](), threading.get_ident()

    def ignored(what: sys.UnraisableHookArgs) -> None:
        if not issubclass(what.exc_type, KeyboardInterrupt):
            before(what)
            return
        signal.signal(signal.SIGINT, answer)
        coming.append(threading.Timer(LATER, signal.pthread_kill, (main, signal.SIGINT)))
        coming[-1].daemon = True
        coming[-1].start()

    sys.unraisablehook = ignored
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in coming:
            timer.cancel()


class Interrupted:
    """Within it `yes` says whether there was an interrupt. Libraries that are just being imported may turn the
    KeyboardInterrupt into an error of their own."""

    yes = False

    def __enter__(self) -> Interrupted:
        main = threading.current_thread() is threading.main_thread()
        self._mine = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        self._within = ExitStack()
        if self._mine:
            signal.signal(signal.SIGINT, self._answer)
            self._within.enter_context(again_where_lost(self._answer))
        return self

    def __exit__(self, *_: object) -> None:
        self._within.close()
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
        with again_where_lost(answer):
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
