"""When the events of a schedule happen, given how long each takes, and which resource each moment waits for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar


class ScheduledEvent(Protocol):
    """An event of a schedule: `number` is its place in the schedule, `after` are the numbers of those that must have
    ended before it starts. A resource serves its events one after the other, in the order of the schedule."""

    @property
    def number(self) -> int: ...

    @property
    def resource(self) -> str: ...

    @property
    def after(self) -> Sequence[int]: ...


E = TypeVar("E", bound=ScheduledEvent)


class EventSpan(NamedTuple):
    """Seconds since the schedule began."""

    start: float
    end: float


class Bound(NamedTuple):
    """The schedule would end sooner if this resource were faster here. `resource` is empty where nothing ran."""

    start: float
    end: float
    resource: str


def simulate(
    events: Sequence[E], seconds: Callable[[E], float], shared: Mapping[str, str] | None = None
) -> list[EventSpan]:
    """The span of each event, where each starts as soon as it can.

    `shared` names what resources have in common, as reads and writes have a disk: it serves one event at a time, the
    one that can start first. Raises ValueError where events wait for each other, or are not numbered in order.
    """
    common = shared or {}
    queues: dict[str, deque[E]] = {}
    for at, event in enumerate(events):
        if event.number != at:
            raise ValueError(f"event {event.number} stands at place {at} of the schedule")
        queues.setdefault(event.resource, deque()).append(event)
    free = {common.get(resource, resource): 0.0 for resource in queues}
    spans: list[EventSpan | None] = [None] * len(events)
    waiting = len(events)
    while waiting:
        best: tuple[float, int, E] | None = None
        for resource, queue in queues.items():
            if queue and (ready := _ready(queue[0], spans)) is not None:
                start = max(ready, free[common.get(resource, resource)])
                if best is None or (start, queue[0].number) < best[:2]:
                    best = start, queue[0].number, queue[0]
        if best is None:
            heads = sorted(queue[0].number for queue in queues.values() if queue)
            raise ValueError(f"events {', '.join(map(str, heads))} wait for each other")
        start, number, event = best
        end = start + seconds(event)
        spans[number] = EventSpan(start, end)
        free[common.get(event.resource, event.resource)] = end
        queues[event.resource].popleft()
        waiting -= 1
    return [span for span in spans if span is not None]


def _ready(event: ScheduledEvent, spans: Sequence[EventSpan | None]) -> float | None:
    """When all that the event waits for has ended; None where that is not known yet."""
    latest = 0.0
    for before in event.after:
        span = spans[before]
        if span is None:
            return None
        latest = max(latest, span.end)
    return latest


def critical_path(events: Sequence[ScheduledEvent], spans: Sequence[EventSpan]) -> list[int]:
    """The numbers of the events that the end waits for, in order of time: each began when the one before it ended,
    or, in spans that were measured, as soon after that as the runtime managed. What shares a resource with an event
    is known by ending just when that one starts."""
    if not events:
        return []
    previous: dict[str, int] = {}
    before: list[int | None] = []
    for event in events:
        before.append(previous.get(event.resource))
        previous[event.resource] = event.number
    just_ended = {span.end: number for number, span in enumerate(spans) if span.end > span.start}
    at = max(range(len(events)), key=lambda number: spans[number].end)
    path = [at]
    while True:
        # The resource's own queue first: of two that end together, it is what a faster resource would shorten.
        own = before[at]
        candidates = ([own] if own is not None else []) + list(events[at].after)
        latest = max((spans[number].end for number in candidates), default=0.0)
        if latest < spans[at].start and spans[at].start in just_ended:
            at = just_ended[spans[at].start]
        elif candidates:
            at = next(number for number in candidates if spans[number].end == latest)
        else:
            return path[::-1]
        path.append(at)


def bounds(events: Sequence[ScheduledEvent], spans: Sequence[EventSpan]) -> list[Bound]:
    """The resource that each moment from the beginning to the end waits for, neighbours of one resource joined."""
    made: list[Bound] = []
    now = 0.0
    for number in critical_path(events, spans):
        start, end = spans[number]
        resource = str(events[number].resource)
        for piece in (Bound(now, start, ""), Bound(max(now, start), end, resource)):
            if piece.end <= piece.start:
                continue
            joined = made.pop().start if made and made[-1].resource == piece.resource else piece.start
            made.append(Bound(joined, piece.end, piece.resource))
            now = piece.end
    return made


def step_bounds(ends: Sequence[float], pieces: Sequence[Bound]) -> list[Bound]:
    """The bounds of steps that end at these times, one after the other: each with the resource that bounds most of
    it."""
    made: list[Bound] = []
    start, at = 0.0, 0
    for end in ends:
        while at < len(pieces) and pieces[at].end <= start:
            at += 1
        parts: dict[str, float] = {}
        for piece in pieces[at:]:
            if piece.start >= end:
                break
            inside = min(end, piece.end) - max(start, piece.start)
            parts[piece.resource] = parts.get(piece.resource, 0.0) + inside
        made.append(Bound(start, end, max(parts, key=lambda name: parts[name]) if parts else ""))
        start = end
    return made
