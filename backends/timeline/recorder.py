"""The measured course of a run's first block, beside a prediction: by its own mean rates, or by a model of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Lock

from shardwright.backends.timeline.durations import Seconds, by_measurement
from shardwright.backends.timeline.record import Timeline, course_of
from shardwright.backends.torch.schedule import Event, Schedule, Timed
from shardwright.cost.offloading.simulation import Span, simulate

MOST_EVENTS = 400_000
"""That are kept; a diagonal schedule of all prompts is one block, and may have more."""


class Recorder:
    """Told of each event as it ends, from any thread. `used` says how many bytes of each tier are in use then."""

    def __init__(self, used: Callable[[], Mapping[str, float]] = dict) -> None:
        self.used = used
        self._lock = Lock()
        self._timed: dict[int, Timed] = {}
        self._memory: dict[str, list[tuple[float, float]]] = {}
        self._whole = False

    def __call__(self, timed: Timed) -> None:
        with self._lock:
            # Each block numbers its events from 0, and begins when the one before has ended.
            self._whole = self._whole or timed.event.number in self._timed or len(self._timed) == MOST_EVENTS
            if self._whole:
                return
            self._timed[timed.event.number] = timed
            for tier, nbytes in self.used().items():
                points = self._memory.setdefault(tier, [])
                if not points or points[-1][1] != nbytes:
                    points.append((max(timed.end, points[-1][0] if points else 0.0), nbytes))

    @property
    def events(self) -> tuple[Event, ...]:
        """Those of the block that have ended, in the order of the schedule."""
        return tuple(self._timed[number].event for number in sorted(self._timed))

    def timeline(
        self, title: str, capacity: Mapping[str, float] | None = None, seconds: Seconds | None = None
    ) -> Timeline:
        """What was measured, and the same schedule simulated with events that take `seconds`, by default each kind of
        copy at its mean rate and each computation its mean time. Events that a run which was cut short has not done
        are left out."""
        numbers = {number: at for at, number in enumerate(sorted(self._timed))}
        if not numbers:
            return Timeline(title)
        timed = [self._timed[number] for number in numbers]
        events = tuple(
            replace(each.event, number=numbers[each.event.number],
                    after=tuple(numbers[before] for before in each.event.after if before in numbers))
            for each in timed
        )  # fmt: skip
        schedule = Schedule(events, ())
        spans = [Span(each.begin, each.end) for each in timed]
        predicted = simulate(events, seconds or by_measurement(schedule, spans))
        memory = {tier: tuple(points) for tier, points in self._memory.items()}
        return Timeline(title, course_of(schedule, predicted), course_of(schedule, spans, memory), dict(capacity or {}))
