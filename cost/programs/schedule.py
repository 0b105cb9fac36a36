"""When the steps of a function happen: one after the other, but for transfers in flight, which go on beside them.

A transfer is in flight where the text says so: begun by `start` or `prefetch`, or a `roll`, which passes on what a
looped collective works on (Wang et al. 2023). It begins when its operand is there and the transfers before it on the
same links have ended, and what reads its result waits for it. Everything else runs when its turn comes. In a torus the
axes of the mesh have links of their own; behind switches all share a chip's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardwright.cost.kernels.work import Repeat, Steps, Work, works_in

_SAME = 1e-12
"""Of a trip's time: trips that leave everything as far ahead or behind as the trip before, within it, are alike."""


def added_seconds(steps: Steps, seconds: Sequence[float], *, axes_apart: bool = False) -> list[float]:
    """The seconds that each kernel or transfer adds to the time of one call, in all its trips: the call takes their
    sum.

    `seconds` is how long one execution of each takes, in the order of `works_in(steps)`. What is in flight adds what
    is waited for it. `axes_apart` says that each axis of the mesh has links of its own.
    """
    course = _Course(list(seconds), [0.0] * len(seconds), axes_apart)
    course.run(steps, 0)
    return course.added


class KernelTiming(NamedTuple):
    """When a kernel or transfer is executed, by its number in `works_in`; -1 stands for trips that are all like the one
    before, `trips` of them."""

    number: int
    start: float
    end: float
    trips: int = 1


def happenings(
    steps: Steps, seconds: Sequence[float], *, axes_apart: bool = False, most: int = 20_000
) -> list[KernelTiming]:
    """When each kernel and transfer of `added_seconds` is executed in one call, every trip of the loops by itself; from
    `most` on, trips that are alike are not told apart."""
    course = _Course(list(seconds), [0.0] * len(seconds), axes_apart, [], most)
    course.run(steps, 0)
    assert course.seen is not None
    return sorted(course.seen, key=lambda happening: happening.start)


@dataclass
class _Course:
    """A simulation. `now` is when the steps so far have ended, `free` when the transfers so far have on each kind of
    links, `landing` when each value in flight arrives, with the transfer that brings it. Where all is to be `seen`,
    trips are skipped only after the first `most` executions."""

    seconds: list[float]
    added: list[float]
    axes_apart: bool
    seen: list[KernelTiming] | None = None
    most: int = 0
    now: float = 0.0
    free: dict[str, float] = field(default_factory=dict[str, float])
    landing: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])

    def run(self, steps: Steps, first: int) -> int:
        """Runs the steps, whose kernels are numbered from `first` on; the number after them."""
        for step in steps:
            if isinstance(step, Work):
                self.execute(step, first)
                first += 1
            else:
                first = self.repeat(step, first)
        return first

    def execute(self, work: Work, number: int) -> None:
        arriving = [name for name, _ in work.reads if name in self.landing]
        for name in arriving:
            if name not in work.late:
                self.wait(*self.landing[name])
        links = self.links(work)
        ended = max((self.free.get(link, 0.0) for link in links), default=0.0)
        began = max(self.now, ended)
        ended = began + self.seconds[number]
        if self.seen is not None:
            self.seen.append(KernelTiming(number, began, ended))
        self.free.update((link, ended) for link in links)
        if work.in_flight:
            self.landing[work.name] = ended, number
            return
        self.wait(ended, number)
        for name in arriving:
            self.wait(*self.landing[name])
        self.landing.pop(work.name, None)

    def links(self, work: Work) -> tuple[str, ...]:
        """The links that a transfer occupies, the host for what it computes, nothing for other kernels."""
        if work.collective is not None:
            return work.collective.axes if self.axes_apart else ("links",)
        if work.copied is not None:
            return ("to device" if work.copied.inward else "from device",)
        if work.on_host:
            return ("host",)
        return ()

    def wait(self, until: float, number: int) -> None:
        """Until a kernel or transfer has ended."""
        if until > self.now:
            self.added[number] += until - self.now
            self.now = until

    def repeat(self, loop: Repeat, first: int) -> int:
        """Runs trips until two have been alike; those that are left are like them."""
        self.hand_on([(carried.initial, carried.value) for carried in loop.carried])
        end = first + sum(1 for _ in works_in(loop.steps))
        before: dict[str, float] | None = None
        left = loop.trips
        while left:
            began, added = self.now, self.added[first:end]
            self.run(loop.steps, first)
            left -= 1
            after = self.ahead()
            self.hand_on([(carried.following, carried.value) for carried in loop.carried])
            taken = self.now - began
            watched = self.seen is not None and len(self.seen) < self.most
            if before is not None and not watched and _alike(before, after, taken):
                if self.seen is not None and left:
                    self.seen.append(KernelTiming(-1, self.now, self.now + left * taken, left))
                self.skip(left * taken)
                for number, once in enumerate(added, first):
                    self.added[number] += left * (self.added[number] - once)
                break
            before = after
        self.hand_on([(carried.value, carried.result) for carried in loop.carried])
        return end

    def hand_on(self, names: Sequence[tuple[str, str]]) -> None:
        """Values get other names, all at once."""
        arriving = [(after, self.landing.get(before)) for before, after in names]
        for name, landing in arriving:
            self.landing.pop(name, None)
            if landing is not None:
                self.landing[name] = landing

    def ahead(self) -> dict[str, float]:
        """How long after now the links are free, and values arrive."""
        times = {**self.free, **{f"{name} ": time for name, (time, _) in self.landing.items()}}
        return {name: time - self.now for name, time in times.items() if time > self.now}

    def skip(self, seconds: float) -> None:
        """Everything that is not over yet moves on with the time."""
        self.free = {links: time + seconds if time > self.now else time for links, time in self.free.items()}
        for name, (time, number) in self.landing.items():
            if time > self.now:
                self.landing[name] = time + seconds, number
        self.now += seconds


def _alike(before: dict[str, float], after: dict[str, float], trip: float) -> bool:
    return before.keys() == after.keys() and all(abs(before[name] - after[name]) <= _SAME * trip for name in after)
