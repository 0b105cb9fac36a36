"""Executes a schedule: a thread for each resource, events in order, each after those that it waits for.

On CUDA a copy or a computation is only issued by its thread; what waits for it on the device waits by an event of its
stream, and what waits on the host by synchronising with that event alone. An exception in any thread ends the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from shardwright.backends.torch.schedule import Event, Resource, Schedule, Timed

if TYPE_CHECKING:
    import torch

Action = Callable[[Event], None]

_ON_STREAM = (Resource.TO_DEVICE, Resource.DEVICE)
"""Resources whose events are issued to a stream; the others are done when their action returns."""

_BETWEEN = (Resource.RECEIVE, Resource.SEND)
"""Resources whose events wait for other processes. Where one of these is gone a wait may last for ever, so after a
failure a thread that is in it is not waited for: it ends with this process."""


class _CancelledError(Exception):
    """Another thread has failed."""


class Executor:
    """Runs the events of a schedule by `act`. `observe` is told of each event as it ends, on the thread that did it."""

    def __init__(
        self, schedule: Schedule, act: Action, device: torch.device, observe: Callable[[Timed], None] | None = None
    ) -> None:
        import torch

        self._schedule = schedule
        self._act = act
        self._device = device
        self._observe = observe
        self._changed = threading.Condition()
        self._done: dict[int, Any] = {}
        self._failure: BaseException | None = None
        self._streams: dict[Resource, Any] = {}
        if device.type == "cuda":
            self._streams = {resource: torch.cuda.Stream(device) for resource in (*_ON_STREAM, Resource.FROM_DEVICE)}

    def run(self) -> None:
        """Returns when all events are done. Raises what the first action to fail has raised; no thread is left."""
        began = time.perf_counter()
        threads = [
            threading.Thread(target=self._work, args=(resource, began), name=str(resource), daemon=resource in _BETWEEN)
            for resource in Resource
            if resource is not Resource.DEVICE and self._schedule.of(resource)
        ]
        try:
            for thread in threads:
                thread.start()
            self._work(Resource.DEVICE, began)
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            for thread in threads:
                while thread.is_alive() and not (thread.daemon and self._failure is not None):
                    thread.join(0.5 if thread.daemon else None)
        if self._failure is not None:
            raise self._failure

    def _work(self, resource: Resource, began: float) -> None:
        try:
            with self._on_stream(resource):
                for event in self._schedule.of(resource):
                    for before in event.after:
                        self._wait(before, resource)
                    if self._failure is not None:
                        return
                    begin = time.perf_counter() - began
                    self._act(event)
                    end = self._finish(event, resource) - began
                    if self._observe is not None:
                        self._observe(Timed(event, begin, end))
        except _CancelledError:
            return
        except BaseException as error:  # noqa: BLE001 - whatever it is, the run is over, and its caller is told
            self.fail(error)

    @contextmanager
    def _on_stream(self, resource: Resource) -> Generator[None]:
        import torch

        stream = self._streams.get(resource)
        with torch.inference_mode(), torch.cuda.stream(stream) if stream is not None else nullcontext():
            yield

    def _wait(self, before: int, resource: Resource) -> None:
        with self._changed:
            while before not in self._done:
                if self._failure is not None:
                    raise _CancelledError
                self._changed.wait()
            reached = self._done[before]
        if reached is None:
            return
        if resource in self._streams:
            self._streams[resource].wait_event(reached)
        else:
            reached.synchronize()

    def _finish(self, event: Event, resource: Resource) -> float:
        """When it ended: taken before any other thread knows, so that what waits for it does not seem to precede it."""
        import torch

        reached = None
        if resource in self._streams:
            if resource in _ON_STREAM:
                reached = torch.cuda.Event()
                reached.record(self._streams[resource])
            else:
                self._streams[resource].synchronize()
        with self._changed:
            ended = time.perf_counter()
            self._done[event.number] = reached
            self._changed.notify_all()
        return ended

    def fail(self, error: BaseException) -> None:
        """Ends the run, which raises this error if it is the first."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()
