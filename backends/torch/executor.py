"""Executes a schedule: a thread for each resource, events in order, each after those that it waits for.

What an event's action means, and how one waits for another on the device, is up to `streams`. An exception in any
thread ends the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from shardwright.backends.torch.schedule import Event, Resource, Schedule, Timed
from shardwright.backends.torch.streams import Mark, Streams

Action = Callable[[Event], None]


_BETWEEN = (Resource.RECEIVE, Resource.SEND)
"""Resources whose events wait for other processes. Where one of these is gone a wait may last for ever, so after a
failure a thread that is in it is not waited for: it ends with this process."""


class _CancelledError(Exception):
    """Another thread has failed."""


class Executor:
    """Runs the events of a schedule by `act`. `observe` is told of each event as it ends, on the thread that did it;
    of events that the device takes the time of, when all are done."""

    def __init__(
        self, schedule: Schedule, act: Action, streams: Streams, observe: Callable[[Timed], None] | None = None
    ) -> None:
        self._schedule = schedule
        self._act = act
        self._streams = streams
        self._observe = observe
        self._changed = threading.Condition()
        self._done: dict[int, Mark] = {}
        self._failure: BaseException | None = None

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
            self._finish_streams()
        if self._failure is not None:
            raise self._failure
        self._observe_issued()

    def _work(self, resource: Resource, began: float) -> None:
        try:
            with self._streams.thread(resource):
                for event in self._schedule.of(resource):
                    for before in event.after:
                        self._wait(before, resource)
                    if self._failure is not None:
                        return
                    begin = time.perf_counter() - began
                    end = self._do(event, resource) - began
                    if self._observe is not None and self._done[event.number] is None:
                        self._observe(Timed(event, begin, end))
        except _CancelledError:
            return
        except BaseException as error:  # noqa: BLE001 - whatever it is, the run is over, and its caller is told
            self.fail(error)

    def _wait(self, before: int, resource: Resource) -> None:
        with self._changed:
            while before not in self._done:
                if self._failure is not None:
                    raise _CancelledError
                self._changed.wait()
            mark = self._done[before]
        self._streams.wait(resource, mark)

    def _do(self, event: Event, resource: Resource) -> float:
        """When it ended: taken before any other thread knows, so that what waits for it does not seem to precede it."""
        mark = self._streams.issue(resource, lambda: self._act(event))
        with self._changed:
            ended = time.perf_counter()
            self._done[event.number] = mark
            self._changed.notify_all()
        return ended

    def _finish_streams(self) -> None:
        """Nothing that was issued may still use memory that the caller gives back, whatever has failed."""
        try:
            self._streams.finish()
        except BaseException as error:  # noqa: BLE001 - a fault of the device shows itself at the next call
            self.fail(error)

    def _observe_issued(self) -> None:
        if self._observe is None:
            return
        for event in self._schedule.events:
            span = self._streams.seconds(self._done[event.number])
            if span is not None:
                self._observe(Timed(event, *span))

    def fail(self, error: BaseException) -> None:
        """The run ends with this error, unless it has failed already."""
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()
