"""The measured course of a run's first block, beside a prediction: by its own mean rates, or by a model of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import Lock
from typing import Any

from shardwright.backends.timeline.durations import Seconds, by_measurement
from shardwright.backends.timeline.record import Course, Memory, Timeline, course_of
from shardwright.backends.torch.event_threads import TimedEvent
from shardwright.cost.offloading.simulation import EventSpan, simulate
from shardwright.cost.programs.unrolling import Action, Event, Resource

MOST_EVENTS = 400_000
"""That are kept; a diagonal schedule of all prompts is one block, and may have more."""


@dataclass(frozen=True)
class Recording:
    """The record of one process. `origin` is when its course began, in seconds of the host's clock.

    Events that a run which was cut short has not done are left out, and the others numbered anew.
    """

    timed: tuple[TimedEvent, ...] = ()
    memory: Memory = field(default_factory=dict[str, Sequence[tuple[float, float]]])
    origin: float = 0.0

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """In the order of the schedule."""
        numbers = {each.event.number: at for at, each in enumerate(self.timed)}
        return tuple(
            replace(each.event, number=at,
                    after=tuple(numbers[before] for before in each.event.after if before in numbers))
            for at, each in enumerate(self.timed)
        )  # fmt: skip

    @property
    def spans(self) -> list[EventSpan]:
        return [EventSpan(each.begin, each.end) for each in self.timed]

    def timeline(
        self, title: str, capacity: Mapping[str, float] | None = None, seconds: Seconds | None = None
    ) -> Timeline:
        """The measured timeline, and the same schedule simulated with events that take `seconds`, by default each kind
        of copy at its mean rate and each computation its mean time."""
        if not self.timed:
            return Timeline(title)
        predicted = simulate(self.events, seconds or by_measurement(self.events, self.spans))
        measured = course_of(self.events, self.spans, self.memory)
        return Timeline(title, course_of(self.events, predicted), measured, dict(capacity or {}))

    # ------------------------------------------------------------ from process to process

    def as_json(self) -> dict[str, Any]:
        events = [
            [e.number, e.resource, e.action, e.name, e.trips, e.after, e.nbytes, begin, end]
            for e, begin, end in ((each.event, each.begin, each.end) for each in self.timed)
        ]
        return {"events": events, "memory": {k: list(v) for k, v in self.memory.items()}, "origin": self.origin}

    @staticmethod
    def of_json(table: Mapping[str, Any]) -> Recording:
        timed: list[TimedEvent] = []
        for number, resource, action, name, trips, after, nbytes, begin, end in table["events"]:
            where = tuple((str(dim), int(index)) for dim, index in trips)
            event = Event(number, Resource(resource), Action(action), name, (), where, tuple(after), nbytes)
            timed.append(TimedEvent(event, begin, end))
        memory = {tier: tuple((time, nbytes) for time, nbytes in points) for tier, points in table["memory"].items()}
        return Recording(tuple(timed), memory, table["origin"])


def run_timeline(
    title: str,
    recordings: Sequence[Recording],
    capacity: Mapping[str, float] | None = None,
    seconds: Sequence[Seconds] | None = None,
) -> Timeline:
    """The timeline of a run: of several processes each as that of one, from when the first of them began: the clocks
    are those of the hosts, and as far apart in the picture as in truth."""
    if len(recordings) < 2:  # none where everything was answered already
        return next(iter(recordings), Recording()).timeline(title, capacity, seconds[0] if seconds else None)
    began = min((each.origin for each in recordings if each.timed), default=0.0)
    limits, parts = dict(capacity or {}), list[Timeline]()
    for process, each in enumerate(recordings):
        own = each.timeline(f"process {process}", limits, seconds[process] if seconds else None)
        predicted, measured = (_later(course, each.origin - began) for course in (own.predicted, own.measured))
        parts.append(Timeline(f"process {process}", predicted, measured, limits))
    return Timeline(title, None, None, limits, tuple(parts))


def _later(course: Course | None, seconds: float) -> Course | None:
    if course is None:
        return None
    entries = tuple(replace(e, start=e.start + seconds, end=e.end + seconds) for e in course.entries)
    memory = {tier: tuple((time + seconds, n) for time, n in points) for tier, points in course.memory.items()}
    return Course(entries, memory)


class Recorder:
    """Told of each event as it ends, from any thread. `used` says how many bytes of each tier are in use then."""

    def __init__(self, used: Callable[[], Mapping[str, float]] = dict, most: int = MOST_EVENTS) -> None:
        self.used = used
        self.most = most
        self._lock = Lock()
        self._timed: dict[int, TimedEvent] = {}
        self._memory: dict[str, list[tuple[float, float]]] = {}
        self._origin = float("inf")
        self._whole = False

    def __call__(self, timed: TimedEvent) -> None:
        with self._lock:
            # Each block numbers its events from 0, and begins when the one before has ended.
            self._whole = self._whole or timed.event.number in self._timed or len(self._timed) == self.most
            if self._whole:
                return
            self._timed[timed.event.number] = timed
            # Whoever is told at once is told when the event ends; others later, never sooner.
            self._origin = min(self._origin, time.time() - timed.end)
            for tier, nbytes in self.used().items():
                points = self._memory.setdefault(tier, [])
                if not points or points[-1][1] != nbytes:
                    points.append((max(timed.end, points[-1][0] if points else 0.0), nbytes))

    @property
    def recording(self) -> Recording:
        """The block's events that have ended."""
        with self._lock:
            timed = tuple(self._timed[number] for number in sorted(self._timed))
            memory = {tier: tuple(points) for tier, points in self._memory.items()}
            return Recording(timed, memory, self._origin if timed else 0.0)
