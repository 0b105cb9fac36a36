"""A process of its own for what takes long: it can be stopped, and has limits of time and memory."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any, ParamSpec, TypeVar

from shardwright.ir.diagnostics import NOWHERE, fault

Params = ParamSpec("Params")
Result = TypeVar("Result")

SECONDS = 120.0
MEMORY_BYTES = 8 << 30


class SupersededError(Exception):
    """Raised in place of an answer that nobody waits for any more, since something newer was asked."""


class Worker:
    """One process that does one thing at a time; a new question stops the one before it."""

    def __init__(self, seconds: float = SECONDS, memory_bytes: int = MEMORY_BYTES) -> None:
        self.seconds, self.memory_bytes = seconds, memory_bytes
        self._pool: Any = None
        self._running: Any = None

    async def ask(self, function: Callable[Params, Result], *args: Params.args, **kwargs: Params.kwargs) -> Result:
        """The result of the function, run in the process; its arguments and its result are copied there and back.

        Raises `SupersededError` where another question came meanwhile, a `DiagnosticError` where a limit was met, and
        what the function raises.
        """
        from pebble import ProcessExpired

        self.stop()
        running = self._started().schedule(function, args=args, kwargs=kwargs, timeout=self.seconds)
        self._running = running
        try:
            return await asyncio.wrap_future(running)
        except (asyncio.CancelledError, CancelledError):
            running.cancel()
            if self._running is not running:
                raise SupersededError from None
            raise
        except TimeoutError:
            raise _limit(f"this takes more than {self.seconds:g} seconds") from None
        except (MemoryError, ProcessExpired):
            raise _limit(f"this takes more than {self.memory_bytes >> 30} GiB of memory, or the process died") from None

    def stop(self) -> None:
        """Stop what is being done, if anything is."""
        running, self._running = self._running, None
        if running is not None and not running.done():
            running.cancel()

    def close(self) -> None:
        """End the process."""
        self.stop()
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None

    def _started(self) -> Any:
        if self._pool is None:
            from pebble import ProcessPool

            initargs = (self.memory_bytes,)
            self._pool = ProcessPool(1, initializer=_begin, initargs=initargs, context=start_preloading())
        return self._pool


def start_preloading(*modules: str) -> Any:
    """The way in which multiprocessing begins workers: as copies of a process without threads that has loaded what they
    need, and these modules, which it begins to now; as fresh interpreters where a system has no copies of processes."""
    import multiprocessing

    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    from multiprocessing import forkserver, resource_tracker

    forkserver.set_forkserver_preload(["shardwright.workbench.preloaded", *modules])
    # What is blocked here stays so in the process that is started: an interrupt from the terminal goes to all of them,
    # and this one answers it. The tracker, once started, leaves blocked signals alone.
    resource_tracker.ensure_running()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return multiprocessing.get_context("forkserver")


def _limit(message: str) -> Exception:
    return fault("limit", message, NOWHERE, "a smaller mesh, or fewer open layouts, take less; or use the command line")


def _begin(memory_bytes: int) -> None:
    """Limits of the process; it reads and writes nothing of the standard streams, which may carry a protocol."""

    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    sys.stdout = sys.stderr
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
