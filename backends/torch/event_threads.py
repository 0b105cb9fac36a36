"""A thread for each resource: does the events of one call in order, each after the events that it waits for.

The thread that walks the program does the device's events itself and hands the others on. The first that fails ends the
call: those that wait are told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

from shardwright.backends.torch.homes import Job
from shardwright.backends.torch.streams import Mark, Streams
from shardwright.cost.programs.unrolling import Event, Resource


@dataclass(frozen=True, slots=True)
class TimedEvent:
    """An event with the bytes that it moved, and its beginning and end in seconds."""

    event: Event
    begin: float
    end: float


class CancelledError(Exception):
    """Another thread has failed."""


class EventThreads:
    """The threads of one call, whose first event has the number `first`; times count from when it `began`."""

    def __init__(
        self, streams: Streams, first: int, began: float, observe: Callable[[TimedEvent], None] | None
    ) -> None:
        self.streams = streams
        self.failure: BaseException | None = None
        self._observe = observe
        self._began = began
        self._first = first
        self._changed = threading.Condition()
        self._done: dict[int, Mark] = {}
        self._timed: list[Event] = []
        self._moved: dict[int, int] = {}
        self._queues: dict[Resource, SimpleQueue[Any]] = {}
        self._threads: list[threading.Thread] = []

    def count(self, event: Event, nbytes: int) -> None:
        """An event that is under way has moved so many bytes."""
        if self._observe is not None:
            self._moved[event.number] = self._moved.get(event.number, 0) + nbytes

    def _counted(self, event: Event) -> Event:
        """The event with what it moved, which its text says to within a row."""
        return replace(event, nbytes=self._moved.pop(event.number, 0))

    def fail(self, error: BaseException) -> None:
        """The run ends with this error, unless it has failed already."""
        with self._changed:
            if self.failure is None:
                self.failure = error
            self._changed.notify_all()

    def _issue(self, event: Event, action: Job, then: Job | None = None) -> None:
        begin = time.perf_counter() - self._began
        mark = self.streams.issue(event.resource, action)
        if mark is None and then is not None:
            then()
        with self._changed:
            end = time.perf_counter() - self._began
            self._done[event.number] = mark
            self._changed.notify_all()
        if self._observe is not None:
            if mark is None:
                self._observe(TimedEvent(self._counted(event), begin, end))
            else:
                self._timed.append(event)

    def _wait(self, event: Event) -> None:
        for before in event.after:
            with self._changed:
                while before not in self._done and before >= self._first:
                    if self.failure is not None:
                        raise CancelledError
                    self._changed.wait()
                mark = self._done.get(before)
            if mark is not None:
                self.streams.wait(event.resource, mark)

    def here(self, event: Event, action: Job) -> None:
        """Does an event of this thread."""
        if self.failure is not None:
            raise CancelledError
        self._wait(event)
        self._issue(event, action)

    def beforehand(self, event: Event, action: Job) -> None:
        """Does in this thread what goes before an event, maybe of another: after all that this one waits for."""
        self._wait(replace(event, resource=Resource.DEVICE))
        mark = self.streams.issue(Resource.DEVICE, action)
        if mark is not None:
            self.streams.wait(Resource.HOST, mark)

    def hand(self, event: Event, action: Job, then: Job | None = None) -> None:
        """Hands an event to the thread of its resource; `then` follows when it is over, on a stream too, and
        where it is done at once before others know."""
        if event.resource not in self._queues:
            queue = self._queues[event.resource] = SimpleQueue()
            thread = threading.Thread(target=self._work, args=(queue, event.resource), name=str(event.resource))
            self._threads.append(thread)
            thread.start()
        self._queues[event.resource].put((event, action, then))

    def _work(self, queue: SimpleQueue[Any], resource: Resource) -> None:
        try:
            with self.streams.thread(resource):
                while (found := queue.get()) is not None:
                    event, action, then = found
                    if self.failure is not None:
                        return
                    self._wait(event)
                    self._issue(event, action, then)
                    mark = self._done[event.number]
                    if then is not None and mark is not None:
                        self.streams.wait(Resource.HOST, mark)
                        then()
                    del found, action, then
        except CancelledError:
            return
        except BaseException as error:  # noqa: BLE001 - whatever it is, the run is over, and its caller is told
            self.fail(error)

    def finish(self) -> None:
        """Returns when no thread is left and all that was issued is done. No event may follow."""
        for queue in self._queues.values():
            queue.put(None)
        for thread in self._threads:
            thread.join()
        try:
            self.streams.finish()
        except BaseException as error:  # noqa: BLE001 - a fault of the device shows itself at the next call
            self.fail(error)
        for event in self._timed:
            span = self.streams.seconds(self._done[event.number])
            if span is not None and self._observe is not None:
                self._observe(TimedEvent(self._counted(event), *span))
        self._timed.clear()
