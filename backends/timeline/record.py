"""A schedule's course, predicted and measured, and the JSON file that holds it.

    {"format": "shardwright-timeline", "title": "opt-30b on t4", "capacity_bytes": {"device": 16e9},
     "predicted": {"events": [{"resource": "to device", "name": "copy wq_next N=0", "start": 0.0, "end": 0.25,
                               "bytes": 600, "after": [], "step": null}, ...],
                   "memory_bytes": {"device": [[0.0, 600], [0.5, 0]]}},
     "measured": {...}}

Times are seconds since the course began. Events stand in the order of the schedule, `after` are the places of those
that an event waits for, and `step` is the number of the step that a computation belongs to. Memory is the bytes from
each time on. `capacity_bytes`, `predicted` or `measured`, `memory_bytes`, `bytes`, `after` and `step` may be left out.

Of several processes the courses of each stand in a list, in place of `predicted` and `measured`, on one clock:

    {"format": "shardwright-timeline", "title": "opt-30b", "processes": [{"predicted": {...}, "measured": {...}}, ...]}

where `"bounds": [[0.0, 0.25, "to device"], [0.25, 0.5, "process 1"], ...]` of a course says what each moment waits for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from shardwright.cost.offloading.simulation import Bound, EventSpan, bounds, step_bounds
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault, located
from shardwright.ir.json_texts import json_of, shown

if TYPE_CHECKING:
    from shardwright.cost.programs.unrolling import Event

FORMAT = "shardwright-timeline"

Memory = Mapping[str, Sequence[tuple[float, float]]]
"""Of each tier: from this second on, so many bytes."""


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event with its span. `number` is its place in the course."""

    number: int
    resource: str
    name: str
    start: float
    end: float
    bytes: int = 0
    after: tuple[int, ...] = ()
    step: int | None = None


@dataclass(frozen=True)
class Course:
    """The events that happened, or would happen: events in the order of the schedule, and the memory of each tier.
    `given` is what each moment waits for, where that is known from elsewhere: of one of several processes it may be
    another. `told` are words on where its order and its times are from, which its name leaves open."""

    entries: tuple[RecordedEvent, ...]
    memory: Memory = field(default_factory=dict[str, Sequence[tuple[float, float]]])
    given: tuple[Bound, ...] | None = None
    told: str = ""

    @property
    def seconds(self) -> float:
        return max((entry.end for entry in self.entries), default=0.0)

    @property
    def resources(self) -> tuple[str, ...]:
        """In the order in which they are first used."""
        return tuple(dict.fromkeys(entry.resource for entry in self.entries))

    def busy(self, resource: str) -> float:
        """Seconds in which the resource serves events."""
        return sum(entry.end - entry.start for entry in self.entries if entry.resource == resource)

    @cached_property
    def bounds(self) -> tuple[Bound, ...]:
        """The resource that each moment waits for."""
        if self.given is not None:
            return self.given
        return tuple(bounds(self.entries, [EventSpan(entry.start, entry.end) for entry in self.entries]))

    @cached_property
    def steps(self) -> tuple[Bound, ...]:
        """The steps, each from the end of the one before to the end of its computation, with what bounds it."""
        ends: dict[int, float] = {}
        for entry in self.entries:
            if entry.step is not None:
                ends[entry.step] = max(entry.end, ends.get(entry.step, 0.0))
        return tuple(step_bounds(sorted(ends.values()), self.bounds))


@dataclass(frozen=True)
class Timeline:
    """Courses of the same schedule, or the timelines of several `processes`."""

    title: str
    predicted: Course | None = None
    measured: Course | None = None
    capacity: Mapping[str, float] = field(default_factory=dict[str, float])
    processes: tuple[Timeline, ...] = ()
    scheduled: Course | None = None
    """Of a compiled program, as the target's compiler has scheduled it; no file has it."""

    @property
    def parts(self) -> tuple[Timeline, ...]:
        """One for each process."""
        return self.processes or (self,)

    @property
    def named_courses(self) -> tuple[tuple[str, Course], ...]:
        """The courses of all processes, with what they are called where there are others."""
        return tuple(
            (f"{part.title}, {name}" if self.processes else name, course)
            for part in self.parts
            for name, course in part.courses
        )

    @property
    def courses(self) -> tuple[tuple[str, Course], ...]:
        """The courses there are, with what they are called."""
        named = (("predicted", self.predicted), ("measured", self.measured), ("as compiled", self.scheduled))
        return tuple((name, course) for name, course in named if course is not None)


def course_of(events: Sequence[Event], spans: Sequence[EventSpan], memory: Memory | None = None) -> Course:
    """The course of a program's events that had these spans, in their order. A step is a trip of its loops."""
    steps: dict[tuple[tuple[str, int], ...], int] = {}
    made: list[RecordedEvent] = []
    for event, (start, end) in zip(events, spans, strict=True):
        step = steps.setdefault(event.trips, len(steps)) if event.action == "compute" else None
        trips = "".join(f" {dim}={index}" for dim, index in event.trips)
        name = f"{event.action} {event.name}{trips}"
        made.append(RecordedEvent(event.number, str(event.resource), name, start, end, event.nbytes, event.after, step))
    return Course(tuple(made), memory or {})


# ---------------------------------------------------------------- the file


def write_timeline(timeline: Timeline) -> str:
    """The text of the JSON file."""
    made: dict[str, object] = {"format": FORMAT, "title": timeline.title, "capacity_bytes": dict(timeline.capacity)}
    if timeline.processes:
        made["processes"] = [_courses_of(part) for part in timeline.processes]
    return json.dumps(made | _courses_of(timeline), separators=(",", ":"), allow_nan=False) + "\n"


def _courses_of(timeline: Timeline) -> dict[str, object]:
    return {
        name: {
            "events": [
                {"resource": entry.resource, "name": entry.name, "start": entry.start, "end": entry.end,
                 "bytes": entry.bytes, "after": entry.after, "step": entry.step}
                for entry in course.entries
            ],
            "memory_bytes": {tier: list(points) for tier, points in course.memory.items()},
            **({} if course.given is None else {"bounds": course.given}),
        }
        for name, course in timeline.courses
    }  # fmt: skip


def read_timeline(source: Source) -> Timeline:
    """The timeline of a JSON file. Raises a `DiagnosticError` that says where it is not one."""
    with located(source):
        value = json_of(source.name, source.text, "timeline-file")
        if not isinstance(value, dict) or cast("dict[str, Any]", value).get("format") != FORMAT:
            raise fault(
                "timeline-file",
                f'this is not a timeline: it lacks "format": "{FORMAT}"',
                NOWHERE,
                "`shardwright offload ... --timeline OUT.json` writes one",
            )
        table = cast("dict[str, Any]", value)
        capacity = {tier: _number(n, f"capacity of {tier}") for tier, n in _object(table.get("capacity_bytes")).items()}
        title = str(table.get("title", ""))
        if "processes" not in table:
            return _timeline(title, table, capacity)
        listed = table["processes"]
        if not isinstance(listed, list) or not listed:
            raise _wrong("its processes are not a list of courses")
        parts = cast("list[object]", listed)
        names = [f"process {i}" for i in range(len(parts))]
        processes = tuple(
            _timeline(name, _object(part), capacity, f" of {name}") for name, part in zip(names, parts, strict=True)
        )
        return Timeline(title, None, None, capacity, processes)


def _timeline(title: str, table: Mapping[str, Any], capacity: Mapping[str, float], where: str = "") -> Timeline:
    courses = {name: _course(name, table[name]) for name in ("predicted", "measured") if table.get(name)}
    if not courses:
        raise _wrong(f"there is neither a predicted nor a measured course{where}")
    return Timeline(title, courses.get("predicted"), courses.get("measured"), capacity)


def _course(name: str, value: object) -> Course:
    table = _object(value)
    events = table.get("events")
    if not isinstance(events, list) or not events:
        raise _wrong(f"the {name} course has no events")
    listed = cast("list[object]", events)
    entries = tuple(_entry(at, event, len(listed), name) for at, event in enumerate(listed))
    memory = {
        tier: _points(points, f"{name} memory of {tier}") for tier, points in _object(table.get("memory_bytes")).items()
    }
    given = table.get("bounds")
    if given is None:
        return Course(entries, memory)
    if not isinstance(given, list):
        raise _wrong(f"the bounds of the {name} course are not a list of [second, second, resource]")
    return Course(entries, memory, tuple(_bound(bound, name) for bound in cast("list[object]", given)))


def _bound(value: object, course: str) -> Bound:
    parts = cast("list[object]", value) if isinstance(value, list) else []
    if len(parts) != 3 or not isinstance(parts[2], str):
        raise _wrong(f"the bounds of the {course} course are not a list of [second, second, resource]")
    start, end = (_number(part, f"time of a bound of the {course} course") for part in parts[:2])
    return Bound(start, end, parts[2])


def _entry(at: int, value: object, count: int, course: str) -> RecordedEvent:
    where, table = f"{course} event {at}", _object(value)
    missing = [key for key in ("resource", "name", "start", "end") if key not in table]
    if missing:
        raise _wrong(f"{where} lacks {', '.join(missing)}")
    start, end = _number(table["start"], f"start of {where}"), _number(table["end"], f"end of {where}")
    if end < start:
        raise _wrong(f"{where} ends at {end:g} s, before it starts at {start:g} s")
    after = table.get("after") or ()
    if not isinstance(after, list | tuple) or not all(_is_place(n, at) for n in cast("Sequence[object]", after)):
        raise _wrong(f"{where} has an after that is not a list of events before it")
    step = table.get("step")
    if step is not None and not _is_place(step, count):
        raise _wrong(f"{where} has the step {step!r}, which is not a whole number below {count}")
    moved = int(_number(table.get("bytes", 0), f"bytes of {where}"))
    resource, name = str(table["resource"]), str(table["name"])
    return RecordedEvent(
        at, resource, name, start, end, moved, tuple(cast("Sequence[int]", after)), cast("int | None", step)
    )


def _is_place(value: object, below: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below


def _points(value: object, where: str) -> tuple[tuple[float, float], ...]:
    points: list[tuple[float, float]] = []
    for point in cast("list[object]", value) if isinstance(value, list) else [None]:
        pair = cast("list[object]", point) if isinstance(point, list) else []
        if len(pair) != 2:
            raise _wrong(f"the {where} is not a list of [second, bytes]")
        points.append((_number(pair[0], where), _number(pair[1], where)))
    if points != sorted(points, key=lambda point: point[0]):
        raise _wrong(f"the {where} is not in the order of time")
    return tuple(points)


def _object(value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(f"an object was expected where there is {shown(value)}")
    return cast("dict[str, Any]", value)


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise _wrong(f"the {what} is not a number from 0 up")
    return float(value)


def _wrong(message: str) -> DiagnosticError:
    return fault("timeline-file", message, NOWHERE)
