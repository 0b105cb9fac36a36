"""An interrupt of a command that has something to say of it: the first is answered, those after it change nothing."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


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
