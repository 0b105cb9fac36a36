"""The timeline of a pipeline: what each process recorded, on one clock, and the same schedules simulated together.

A message goes when both who sends and who receives are ready: that is when its event begins here. What a moment waits
for is looked for across all processes, since each has waited for the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardwright.backends.timeline.durations import Seconds, by_measurement
from shardwright.backends.timeline.record import Course, Memory, Timeline, course_of
from shardwright.backends.timeline.recorder import Recording
from shardwright.backends.torch.schedule import Event, Kind, Resource, Schedule
from shardwright.cost.offloading.simulation import Bound, Span, bounds, simulate

_BETWEEN = (Resource.RECEIVE, Resource.SEND)


@dataclass
class _Served:
    """An event of a process, numbered among those of all."""

    number: int
    process: int
    event: Event
    own: list[int]
    """What it waits for in its own process: its `after`, and the event before it on its resource."""
    after: list[int] = field(default_factory=list[int])

    @property
    def resource(self) -> str:
        return f"{self.process} {self.event.resource}"


def pipeline_timeline(
    title: str,
    recordings: Sequence[Recording],
    capacity: Mapping[str, float] | None = None,
    seconds: Sequence[Seconds] | None = None,
) -> Timeline:
    """The timeline of several processes, of each what it has recorded and its prediction: its events take `seconds`, by
    default each kind of copy at its process's mean rate, each computation its mean time, and messages at the mean rate
    of all, counted from when both sides were ready.

    The clocks are those of the hosts, and as far apart in the picture as in truth.
    """
    began = min((each.origin for each in recordings if each.timed), default=0.0)
    shifts = [each.origin - began if each.timed else 0.0 for each in recordings]
    measured = [
        Span(start + shift, end + shift)
        for each, shift in zip(recordings, shifts, strict=True)
        for start, end in each.spans
    ]
    served = _served(recordings)
    pairs = _pairs(served, len(recordings))
    for sent, received in pairs:
        # What each waits for, the other does too; a token is sent whether anybody waits for it or not.
        ready = [*served[sent].own, *served[received].own]
        both = max(measured[sent].start, measured[received].start)
        served[received].after = ready
        measured[received] = Span(min(both, measured[received].end), measured[received].end)
        if served[sent].event.kind is Kind.SEND_HIDDEN:
            served[sent].after = ready
            measured[sent] = Span(min(both, measured[sent].end), measured[sent].end)
    predicted = simulate(served, _durations(served, measured, pairs, recordings, seconds))
    memory = [
        {tier: tuple((time + shift, n) for time, n in points) for tier, points in each.memory.items()}
        for each, shift in zip(recordings, shifts, strict=True)
    ]
    courses = _courses(recordings, served, predicted, None), _courses(recordings, served, measured, memory)
    limits = dict(capacity or {})
    parts = tuple(
        Timeline(f"process {process}", *(both if recordings[process].timed else (None, None)), limits)
        for process, both in enumerate(zip(*courses, strict=True))
    )
    return Timeline(title, None, None, limits, parts)


def _courses(
    recordings: Sequence[Recording], served: Sequence[_Served], spans: Sequence[Span], memory: Sequence[Memory] | None
) -> Iterator[Course]:
    """That of each process, with what its moments wait for, be it another process."""
    pieces = bounds(served, spans)
    at = 0
    for process, each in enumerate(recordings):
        own = spans[at : at + len(each.timed)]
        at += len(each.timed)
        end = max((span.end for span in own), default=0.0)
        given: list[Bound] = []
        for piece in pieces:
            if piece.start < end:
                where, _, resource = piece.resource.partition(" ")
                name = resource if where in ("", str(process)) else f"process {where}"
                joined = given.pop().start if given and given[-1].resource == name else piece.start
                given.append(Bound(joined, min(piece.end, end), name))
        yield course_of(Schedule(each.events, ()), own, memory[process] if memory else None, tuple(given))


def _served(recordings: Sequence[Recording]) -> list[_Served]:
    made: list[_Served] = []
    for process, each in enumerate(recordings):
        first = len(made)
        before: dict[Resource, int] = {}
        for event in each.events:
            number = first + event.number
            own = [first + n for n in event.after]
            if event.resource in before:
                own.append(before[event.resource])
            before[event.resource] = number
            made.append(_Served(number, process, event, own, [first + n for n in event.after]))
    return made


def _pairs(served: Sequence[_Served], count: int) -> list[tuple[int, int]]:
    """Which event sends what another receives. What only one side has done is left out."""
    sent: dict[tuple[Kind, int, int, int], int] = {}
    for each in served:
        if each.event.kind in (Kind.SEND_HIDDEN, Kind.SEND_TOKENS):
            sent[each.event.kind, each.process, each.event.batch, each.event.token] = each.number
    made: list[tuple[int, int]] = []
    for each in served:
        kind, source = Kind.SEND_HIDDEN, each.process - 1
        if each.event.kind is Kind.RECEIVE_TOKENS:
            kind, source = Kind.SEND_TOKENS, count - 1
        key = kind, source, each.event.batch, each.event.token
        if each.event.resource is Resource.RECEIVE and key in sent:
            made.append((sent[key], each.number))
    return made


def _durations(
    served: Sequence[_Served], spans: Sequence[Span], pairs: Sequence[tuple[int, int]],
    recordings: Sequence[Recording], seconds: Sequence[Seconds] | None,
) -> Callable[[_Served], float]:  # fmt: skip
    """How long each event takes."""
    given = seconds or [by_measurement(Schedule(each.events, ()), each.spans) for each in recordings]
    hidden = [number for pair in pairs for number in pair if served[number].event.nbytes]
    moved = sum(served[number].event.nbytes for number in hidden)
    taken = sum(spans[number].end - spans[number].start for number in hidden)

    def of(each: _Served) -> float:
        if each.event.resource in _BETWEEN and seconds is None:
            return each.event.nbytes * taken / moved if moved else 0.0
        return given[each.process](each.event)

    return of
