"""The events of a program: its own loops unrolled, and what each statement waits for.

Walking the segments of a function (`cost.programs.segments`) trip by trip gives events in the order of the text. The
device does its events in that order; a copy sets out when its turn comes, which is when the event of the device before
it has been done, and goes on beside what follows on a resource of its own:

    w_next = prefetch[ahead=N](w)     a read from disk, then a copy to the device
    w_here = wait(w_now)              what follows waits for both
    free w_here                       the buffer is given back
    y_going = start(store[host](y))   a copy from the device
    set k = update[T](k, rows, pos)   a write where k lives
    o = attend[T, D](q, k, v)         a computation of the host, where q, k and v lie there

Simulating the events (`cost.offloading.simulation`) gives a price, doing them (`backends.torch.running`) a run: both
walk what is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TypeVar

from shardwright.cost.programs.segments import Segment, SegmentKind, SegmentRead, home_of, moved, segments_of
from shardwright.ir.ops import Ahead, Start, Update
from shardwright.ir.program import Func, Loop, Program
from shardwright.ir.types import ON_DEVICE, Placement, Tier
from shardwright.ir.walk import Position, operand_names

T = TypeVar("T")


class Resource(StrEnum):
    """A resource that an event keeps busy. Each does its events one after the other, in the order of the text."""

    DISK_READ = "disk read"
    TO_DEVICE = "to device"
    DEVICE = "device"
    HOST = "host"
    FROM_DEVICE = "from device"
    DISK_WRITE = "disk write"
    RECEIVE = "receive"
    SEND = "send"


class Action(StrEnum):
    """The work of an event."""

    COMPUTE = "compute"
    READ = "read"
    COPY = "copy"
    WAIT = "wait"
    FREE = "free"
    STORE = "store"
    WRITE = "write"


Trips = Mapping[str, int]
"""The indices of the loops around, outermost first."""


@dataclass(frozen=True, slots=True)
class Event:
    """`name` is the value that it makes, or the first of several; `at` are the positions of its statements. `after`
    are the events on other resources that must be done before it begins, beside those before it on its own."""

    number: int
    resource: Resource
    action: Action
    name: str
    at: tuple[Position, ...]
    trips: tuple[tuple[str, int], ...]
    after: tuple[int, ...]
    nbytes: int = 0

    def __str__(self) -> str:
        trips = "".join(f" {dim}={index}" for dim, index in self.trips)
        moved = f" {self.nbytes} B" if self.nbytes else ""
        after = f" after {' '.join(map(str, self.after))}" if self.after else ""
        return f"{self.number:5} {self.resource:12} {self.action:8} {self.name}{trips}{moved}{after}"


Slice = tuple[tuple[int, int], ...]
"""Axes of a value, each with an index along it."""


@dataclass
class TouchedSlices:
    """The events that read and write slices of a value at home, as far as later ones may have to wait for them."""

    reads: list[tuple[Slice, int]] = field(default_factory=list[tuple[Slice, int]])
    writes: list[tuple[Slice, int]] = field(default_factory=list[tuple[Slice, int]])

    def read(self, part: Slice, number: int) -> None:
        self.reads = [each for each in self.reads if each[0] != part] + [(part, number)]

    def write(self, part: Slice, number: int) -> None:
        self.writes = [each for each in self.writes if each[0] != part] + [(part, number)]
        self.reads = [each for each in self.reads if each[0] != part]


def _rename(table: dict[str, T], renames: Sequence[tuple[str, str]]) -> None:
    if not table:
        return
    found = [(new, table.get(old)) for old, new in renames]
    for new, value in found:
        table.pop(new, None)
        if value is not None:
            table[new] = value


def _meet(one: Slice, other: Slice) -> bool:
    theirs = dict(other)
    return all(theirs.get(axis, index) == index for axis, index in one)


class Unrolling:
    """Walks a function; `emit` is given each event as it comes, with its segment."""

    def __init__(
        self, program: Program, func: Func, at_hand: Set[Tier] = frozenset((Tier.DEVICE,)),
        watched: Set[str] = frozenset(), kept: Mapping[str, float] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        """`kept` are the bytes of an element of weights and state that are kept otherwise than their types say."""
        self.program = program
        self.func = func
        self.at_hand = at_hand
        self.watched = watched
        self.kept = kept
        self.sizes = program.sizes(func)
        self.segments = segments_of(program, func, watched)
        self.placements = {value.name: home_of(value.type) for value in program.globals.values()}
        self.trips: dict[str, int] = {}
        self.first = 0
        self._moved: dict[tuple[Position, str, str], tuple[int, int]] = {}
        self.around: tuple[tuple[str, int], ...] = ()
        """The first trips of all events: where this call stands among others."""
        self.begin()

    def begin(self) -> None:
        """Before the first event, which has the number `first`."""
        self._number = self.first
        self._turn: tuple[int, ...] = (self.first - 1,) if self.first else ()
        self._landing: dict[str, tuple[int, ...]] = {}
        self._touched: dict[str, TouchedSlices] = {}
        self._sources: dict[str, tuple[str, Slice]] = {}

    def walk(self) -> int:
        """All events of the function, in the order of the text; the number after the last."""
        self.begin()
        self.run(self.segments)
        return self._number

    def emit(self, event: Event, segment: Segment) -> None:
        """An event, whose turn it is."""

    # ------------------------------------------------------------ bodies

    def run(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            match segment.kind:
                case SegmentKind.LOOP:
                    self.loop(segment)
                case SegmentKind.FETCH | SegmentKind.PREFETCH:
                    self.fetch(segment)
                case SegmentKind.WAIT:
                    self.wait(segment)
                case SegmentKind.STORE:
                    self.store(segment)
                case SegmentKind.SET:
                    self.set_state(segment)
                case SegmentKind.ADDRESS:
                    self.address(segment)
                case SegmentKind.HOST:
                    self.on_host(segment)
                case SegmentKind.FREE:
                    self.event(Action.FREE, segment, after=self.landings(segment, pop=True))
                case _:
                    self.event(Action.COMPUTE, segment, after=self.written(segment.reads.values()))
            self.leave(segment)

    def loop(self, segment: Segment) -> None:
        loop = segment.loop
        values = [carry.value.name for carry in loop.carries]
        initial = [segment.reads[carry.initial] for carry in loop.carries]
        self.hand_on(list(zip(initial, values, strict=True)), self.ending_at(segment))
        own = frozenset([*values, *(value.name for statement in loop.body for value in statement.results)])
        for trip in range(segment.trips):
            self.trips[loop.dim] = trip
            self.trip(loop, trip)
            self.run(segment.body)
            self.hand_on(list(zip(segment.ending, values, strict=True)), own)
        self.trips.pop(loop.dim, None)
        results = [SegmentRead(name, carry.value.type, ()) for name, carry in zip(values, loop.carries, strict=True)]
        self.hand_on(list(zip(results, (value.name for value in loop.results), strict=True)), frozenset(values))

    def ending_at(self, segment: Segment) -> Set[str]:
        """The names that a loop is the last to use, and only when it begins."""
        return frozenset()

    def trip(self, loop: Loop, index: int) -> None:
        """A trip of a loop begins."""

    def hand_on(self, names: Sequence[tuple[SegmentRead, str]], ended: Set[str]) -> None:
        """Values get other names, all at once; those that have `ended` are used by their old ones no more."""
        renames = [(read.name, new) for read, new in names]
        sources = {new: source for read, new in names if (source := self.away(read)) is not None}
        _rename(self._landing, renames)
        _rename(self._sources, renames)
        self._sources |= sources

    def leave(self, segment: Segment) -> None:
        """A segment is over, and with it the values that it is the last to use."""

    # ------------------------------------------------------------ segments

    def event(
        self, action: Action, segment: Segment, resource: Resource = Resource.DEVICE, after: Sequence[int] = (),
        nbytes: int = 0,
    ) -> int:  # fmt: skip
        number = self._number
        self._number += 1
        before = {*after, *(self._turn if resource is not Resource.DEVICE else ())}
        waits = tuple(sorted(before)) if before else ()
        trips = (*self.around, *self.trips.items())
        event = Event(number, resource, action, segment.name, tuple(segment.at), trips, waits, nbytes)
        if resource is Resource.DEVICE:
            self._turn = (number,)
        self.emit(event, segment)
        return number

    def landings(self, segment: Segment, *, pop: bool = False) -> list[int]:
        found = [number for name in segment.reads for number in self._landing.get(name, ())]
        if pop:
            for name in segment.reads:
                self._landing.pop(name, None)
        return found

    def written(self, reads: Iterable[SegmentRead]) -> list[int]:
        """The events that write what is read away from the device, without a fetch of its own."""
        found: list[int] = []
        for read in reads:
            if (source := self.away(read)) is not None:
                found += [n for part, n in self.touched(source[0]).writes if _meet(part, source[1])]
                found += self._landing.get(read.name, ())
        return found

    def away(self, read: SegmentRead) -> tuple[str, Slice] | None:
        """Where a value lies that is away from the device and not under way; None of others."""
        return None if read.on_device or read.kind.in_flight else self.source_of(read)

    def source_of(self, read: SegmentRead, operation: object = None) -> tuple[str, Slice] | None:
        """The state or weight whose bytes a value away from the device is, and which slice of it; with what looks ahead
        the next trip's. None where nothing is moved, since there is no such trip."""
        trips: Trips = self.trips
        if isinstance(operation, Start):
            operation = operation.movement
        if isinstance(operation, Ahead) and operation.ahead:
            trips, none = operation.following(trips, self.sizes)
            if none:
                return None
        part = tuple((axis, trips[dim]) for axis, dim in read.slices)
        if read.name in self._sources:
            return self._sources[read.name]
        return read.name, part

    def fetch(self, segment: Segment) -> None:
        """Reads and copies what is not at hand."""
        host = disk = 0
        after: list[int] = []
        parts: list[tuple[str, Slice]] = []
        for statement in segment.lets:
            read = segment.reads[str(statement.operands[0])]
            source = self.source_of(read, statement.operation)
            if source is None:
                continue
            parts.append(source)
            after += self._landing.get(read.name, ())
            after += [n for part, n in self.touched(source[0]).writes if _meet(part, source[1])]
            key = segment.place, read.name, source[0]
            if key not in self._moved:
                self._moved[key] = moved(read.kind, self.at_hand, each=self.kept.get(source[0]))
            host, disk = host + self._moved[key][0], disk + self._moved[key][1]
        landing: list[int] = []
        self.prepare(segment)
        if disk:
            landing = [self.event(Action.READ, segment, Resource.DISK_READ, after, disk)]
        if host or (disk and Tier.HOST not in self.at_hand):
            landing = [self.event(Action.COPY, segment, Resource.TO_DEVICE, (*after, *landing), host + disk)]
        for name, part in parts:
            for number in landing:
                self.touched(name).read(part, number)
        if segment.kind is SegmentKind.FETCH:
            if landing or after:
                self.event(Action.WAIT, segment, after=(*after, *landing))
            return
        for statement in segment.lets:
            self._landing[statement.results[0].name] = tuple(landing or after)

    def prepare(self, segment: Segment) -> None:
        """Values that are fetched get a place on the device."""

    def wait(self, segment: Segment) -> None:
        here = [s for s in segment.lets if home_of(s.results[0].type) == ON_DEVICE]
        if here:
            self.event(Action.WAIT, segment, after=self.landings(segment))
        for statement in segment.lets:
            name = str(statement.operands[0])
            landing = self._landing.pop(name, ())
            if statement not in here and landing:
                self._landing[statement.results[0].name] = landing
        self.landed(segment)

    def landed(self, segment: Segment) -> None:
        """Values that were waited for go by their new names."""

    def store(self, segment: Segment) -> None:
        """Copies to the host. A new value of state is written where it is set; another goes where it is to lie."""
        statement = segment.only
        placement = home_of(statement.result.type)
        if segment.lasting and placement.tier is not Tier.HOST:
            resource, sizes = self.writer(placement), moved(statement.result.type, self.at_hand)
            number = self.event(Action.WRITE, segment, resource, (), sizes[resource is Resource.DISK_WRITE])
            self._landing[statement.result.name] = (number,)
            return
        copied = Tier.HOST in self.at_hand
        resource = Resource.DEVICE if copied else Resource.FROM_DEVICE
        kind = statement.results[0].type.shape
        nbytes = 0 if copied else (kind.elements if segment.lasting else segment.written) * kind.dtype.bits // 8
        number = self.event(Action.STORE, segment, resource, (), nbytes)
        self._landing[statement.results[0].name] = (number,)

    def on_host(self, segment: Segment) -> None:
        """Computes on the host, beside the device: what follows waits where it fetches the result."""
        resource = Resource.DEVICE if Tier.HOST in self.at_hand else Resource.HOST
        number = self.event(Action.COMPUTE, segment, resource, self.written(segment.reads.values()))
        for read in segment.reads.values():
            if (source := self.away(read)) is not None:
                self.touched(source[0]).read(source[1], number)
        for value in segment.only.results:
            self._landing[value.name] = (number,)

    def address(self, segment: Segment) -> None:
        """Names for parts of what lies elsewhere; what is under way still is. New rows are read here, but those that
        were stored on the host when they are written."""
        for statement in segment.lets:
            landing = {n for name in operand_names(statement.operands) for n in self._landing.get(name, ())}
            if landing:
                self._landing[statement.results[0].name] = tuple(sorted(landing))
            source = self.source_of(segment.reads[str(statement.operands[0])])
            assert source is not None
            self._sources[statement.results[0].name] = source
        rows = [segment.reads[str(s.operands[1])] for s in segment.lets if isinstance(s.operation, Update)]
        sources = [(read, source) for read in rows if (source := self.away(read)) is not None]
        read_here = [
            read for read, (name, _) in sources if name in self.placements or home_of(read.kind).tier is not Tier.HOST
        ]
        if written := self.written(read_here):
            self.event(Action.WAIT, segment, after=written)
        self.named(segment)

    def named(self, segment: Segment) -> None:
        """Parts of what lies elsewhere have names."""

    def set_state(self, segment: Segment) -> None:
        """A write where state lives."""
        statement = segment.setting
        name = statement.state
        read = segment.reads[name]
        part = tuple((axis, self.trips[dim]) for axis, dim in read.slices)
        touched = self.touched(name)
        after = [n for p, n in (*touched.reads, *touched.writes) if _meet(p, part)]
        after += self._landing.get(statement.operand, ())
        source = self.away(segment.reads[statement.operand])
        after += [n for p, n in self.touched(source[0]).writes if _meet(p, source[1])] if source is not None else []
        resource = self.writer(self.placements[name])
        # A store has brought it to the host.
        _, disk = moved(read.kind, self.at_hand, segment.written, self.kept.get(name))
        number = self.event(Action.WRITE, segment, resource, after, disk)
        if resource is not Resource.DEVICE:
            touched.write(part, number)
            if source is not None and source[0] != name:
                self.touched(source[0]).read(source[1], number)

    def writer(self, placement: Placement) -> Resource:
        """The resource that writes values from the device to where they lie."""
        tiers = {tier for tier, _ in placement.shares}
        if Tier.DISK in tiers:
            return Resource.DISK_WRITE
        return Resource.DEVICE if tiers <= self.at_hand else Resource.FROM_DEVICE

    def touched(self, name: str) -> TouchedSlices:
        return self._touched.setdefault(name, TouchedSlices())


class ListedEvents(Unrolling):
    """Keeps the events."""

    def begin(self) -> None:
        super().begin()
        self.events: list[Event] = []

    def emit(self, event: Event, segment: Segment) -> None:
        self.events.append(event)


def events_of(program: Program, func: Func, at_hand: Set[Tier] = frozenset((Tier.DEVICE,))) -> list[Event]:
    """The events of one call of a function on a device that computes with what is `at_hand` where it lies."""
    unrolling = ListedEvents(program, func, at_hand)
    unrolling.walk()
    return unrolling.events
