"""The events of a program: its own loops unrolled, and what each statement waits for.

A function is *segments*: runs of statements of one kind, and loops of segments. Walking them trip by trip gives events
in the order of the text. The device does its events in that order; a copy sets out when its turn comes, which is when
the event of the device before it has been done, and goes on beside what follows on a resource of its own:

    w_next = prefetch[ahead=N](w)     a read from disk, then a copy to the device
    w_here = wait(w_now)              what follows waits for both
    free w_here                       the buffer is given back
    y_going = start(store[host](y))   a copy from the device
    set k = update[T](k, rows, pos)   a write where k lives

Simulating the events (`cost.offloading.simulation`) gives a price, doing them (`backends.torch.running`) a run: both
walk what is here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum

from shardwright.ir.ops import Ahead, Alias, Fetch, Rename, Start, Store, Take, Update, Wait
from shardwright.ir.program import Free, Func, Let, Loop, Program, Scope, SetState, Statement, slice_view
from shardwright.ir.types import ON_DEVICE, Placement, Tier, ValueType
from shardwright.ir.walk import Position, names_freed, names_used, operand_names, reads


class Resource(StrEnum):
    """What an event keeps busy. Each does its events one after the other, in the order of the text."""

    DISK_READ = "disk read"
    TO_DEVICE = "to device"
    DEVICE = "device"
    HOST = "host"
    FROM_DEVICE = "from device"
    DISK_WRITE = "disk write"
    RECEIVE = "receive"
    SEND = "send"


class Action(StrEnum):
    """What an event does."""

    COMPUTE = "compute"
    READ = "read"
    COPY = "copy"
    WAIT = "wait"
    FREE = "free"
    STORE = "store"
    WRITE = "write"


class Kind(StrEnum):
    """Of which statements a segment is a run."""

    COMPUTE = "compute"
    ADDRESS = "address"
    FETCH = "fetch"
    PREFETCH = "prefetch"
    WAIT = "wait"
    FREE = "free"
    STORE = "store"
    UPDATE = "update"
    SET = "set"
    LOOP = "loop"


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


@dataclass(frozen=True, slots=True)
class Read:
    """A value as a statement sees it: of each `axis` of the value as it was defined, the slice of a loop's trip."""

    name: str
    kind: ValueType
    slices: tuple[tuple[int, str], ...]


@dataclass
class Segment:
    """A run of statements of one kind, with their positions. `reads` are what it reads, by name; `last` the names whose
    values nothing after it in its body uses; `needed` what it makes that others use."""

    kind: Kind
    at: list[Position]
    statements: list[Statement]
    reads: dict[str, Read]
    trips: int = 1
    body: tuple[Segment, ...] = ()
    last: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    ending: tuple[Read, ...] = ()

    @property
    def name(self) -> str:
        first = self.statements[0]
        if isinstance(first, SetState):
            return first.state
        return first.names[0] if isinstance(first, Free) else first.results[0].name if first.results else first.dim  # type: ignore[union-attr]


def home_of(kind: ValueType) -> Placement:
    return kind.placement or ON_DEVICE


def moved(kind: ValueType, at_hand: Set[Tier]) -> tuple[int, int]:
    """The bytes of a value that come from the host and from disk to a device that computes with what is `at_hand` as it
    lies there."""
    nbytes = kind.shape.elements * kind.shape.dtype.bits / 8
    parts = dict.fromkeys(Tier, 0.0)
    for tier, percent in home_of(kind).shares:
        parts[tier] += percent
    host, disk = (0.0 if tier in at_hand else parts[tier] for tier in (Tier.HOST, Tier.DISK))
    return round(nbytes * host / 100), round(nbytes * disk / 100)


# ---------------------------------------------------------------- segments


def segments_of(program: Program, func: Func, watched: Set[str] = frozenset()) -> tuple[Segment, ...]:
    """The segments of a function. State that is `watched` is updated and set by events of their own."""
    return _Divider(program, func, watched).body(func.body, Scope.of(program, func), (), func.returns)


@dataclass
class _Divider:
    program: Program
    func: Func
    watched: Set[str]
    sizes: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = self.program.sizes(self.func)

    def body(
        self, body: Sequence[Statement], scope: Scope, block: Position, ending: Sequence[str]
    ) -> tuple[Segment, ...]:
        made: list[Segment] = []
        fetched: set[str] = set()
        for number, statement in enumerate(body):
            at = (*block, number)
            kind = self.kind(statement, scope, fetched | self.watched)
            segment = _joining(kind, made)
            if segment is None:
                segment = Segment(kind, [], [], {})
                made.append(segment)
            segment.at.append(at)
            segment.statements.append(statement)
            own = {value.name for s in segment.statements for value in s.results} if kind is Kind.COMPUTE else ()
            for name in self.names(statement, kind):
                if name in scope.values and name not in segment.reads and name not in own:
                    segment.reads[name] = read_of(name, scope)
            if kind is Kind.LOOP:
                assert isinstance(statement, Loop)
                segment.trips = self.sizes[statement.dim]
                inside = scope.inside(statement)
                segment.body = self.body(statement.body, inside, at, statement.following)
                segment.ending = tuple(read_of(name, inside) for name in statement.following)
            if kind in (Kind.WAIT, Kind.FETCH):
                fetched.update(value.name for value in statement.results)
            for value in statement.results:
                scope.define(value)
        self.lifetimes(made, body, ending, scope)
        return tuple(made)

    def names(self, statement: Statement, kind: Kind) -> Sequence[str]:
        match statement:
            case Loop() if kind is Kind.LOOP:
                return [carry.initial for carry in statement.carries]
            case Loop():
                return sorted(names_used((statement,)))
            case SetState():
                return (statement.operand, statement.state)
            case Free():
                return statement.names
            case _:
                return reads(statement)

    def lifetimes(
        self, made: Sequence[Segment], body: Sequence[Statement], ending: Sequence[str], scope: Scope
    ) -> None:
        """Fills in which segment is the last to use what the body defines."""
        freed = names_freed(statement for statement in body if isinstance(statement, Free))
        last: dict[str, int] = {}
        users: dict[str, set[int]] = {}
        for number, segment in enumerate(made):
            used = names_used(segment.statements) | {
                n for s in segment.statements if isinstance(s, Free) for n in s.names
            }
            for name in used:
                last[name] = number
                users.setdefault(name, set()).add(number)
        for number, segment in enumerate(made):
            own = {value.name for statement in segment.statements for value in statement.results}
            wanted = {*ending} | {name for name, where in users.items() if any(other > number for other in where)}
            segment.needed = tuple(value for value in own if value in wanted)
            for name in own - wanted:
                last.setdefault(name, number)
        defined = {value.name for statement in body for value in statement.results}
        # What the loop carries is the body's, too; state, weights and what stands around are not.
        carried = {name for name, (_, depth) in scope.values.items() if depth == len(scope.loops)}
        own = (defined | carried) - set(self.program.globals) - {*ending}
        for name, number in last.items():
            if name in own and (name not in freed or made[number].kind is Kind.FREE):
                made[number].last += (name,)

    def kind(self, statement: Statement, scope: Scope, fetched: Set[str]) -> Kind:
        match statement:
            case Loop():
                return Kind.COMPUTE if self.computes(statement, scope) else Kind.LOOP
            case Free():
                return Kind.FREE
            case SetState():
                away = home_of(scope.values[statement.state][0]) != ON_DEVICE
                return Kind.SET if away or statement.state in self.watched else Kind.COMPUTE
            case Let():
                return let_kind(statement, scope, fetched)

    def computes(self, loop: Loop, scope: Scope) -> bool:
        """Whether nothing in a loop moves, and it goes over no slices of weights or state, so that it is one
        computation with what is around it."""
        known = self.program.globals
        if any(loop.dim in known[name].shape for name in names_used((loop,)) if name in known):
            return False
        inside = scope.inside(loop)
        for statement in loop.body:
            if self.kind(statement, inside, frozenset()) is not Kind.COMPUTE:
                return False
            for value in statement.results:
                inside.define(value)
        return True


_ALONE = (Kind.LOOP, Kind.STORE, Kind.SET, Kind.UPDATE)


def _joining(kind: Kind, made: Sequence[Segment]) -> Segment | None:
    """The segment that the next statement belongs to; what only gives names to parts comes before the fetches of
    these."""
    if not made or kind in _ALONE:
        return None
    if made[-1].kind is kind:
        return made[-1]
    before = kind is Kind.ADDRESS and made[-1].kind in (Kind.FETCH, Kind.PREFETCH) and len(made) > 1
    return made[-2] if before and made[-2].kind is Kind.ADDRESS else None


def let_kind(statement: Let, scope: Scope, fetched: Set[str] = frozenset()) -> Kind:
    """`fetched` are names whose values have been fetched."""
    operation = statement.operation
    homes = [home_of(scope.type_of(name)) for name in operand_names(statement.operands)]
    result = home_of(statement.results[0].type)
    match operation:
        case Wait():
            return Kind.WAIT
        case Start(movement=Fetch()):
            return Kind.PREFETCH
        case Fetch():
            return Kind.FETCH
        case Store() | Start(movement=Store()):
            return Kind.STORE
        case Alias() if homes and homes[0] != result:
            return Kind.STORE if homes[0] == ON_DEVICE else Kind.FETCH
        case Take() | Rename() | Update() | Alias() if homes and homes[0] != ON_DEVICE:
            return Kind.ADDRESS
        case Update() if statement.operands[0] in fetched:
            return Kind.UPDATE
        case _:
            return Kind.COMPUTE


def read_of(name: str, scope: Scope) -> Read:
    kind, outside = scope.values[name]
    dims = [loop.dim for loop in scope.loops[outside:]]
    slices = tuple((axis, dim) for axis, dim in enumerate(kind.names) if dim in dims)
    return Read(name, slice_view(kind, scope.loops, outside), slices)


# ---------------------------------------------------------------- events


Slice = tuple[tuple[int, int], ...]
"""Of some axes of a value the index."""


@dataclass
class Touched:
    """The events that read and write slices of a value at home, as far as later ones may have to wait for them."""

    reads: list[tuple[Slice, int]] = field(default_factory=list[tuple[Slice, int]])
    writes: list[tuple[Slice, int]] = field(default_factory=list[tuple[Slice, int]])

    def read(self, part: Slice, number: int) -> None:
        self.reads = [each for each in self.reads if each[0] != part] + [(part, number)]

    def write(self, part: Slice, number: int) -> None:
        self.writes = [each for each in self.writes if each[0] != part] + [(part, number)]
        self.reads = [each for each in self.reads if each[0] != part]


def _meet(one: Slice, other: Slice) -> bool:
    theirs = dict(other)
    return all(theirs.get(axis, index) == index for axis, index in one)


class Unrolling:
    """Walks a function; `emit` is given each event as it comes, with its segment."""

    def __init__(
        self, program: Program, func: Func, at_hand: Set[Tier] = frozenset((Tier.DEVICE,)),
        watched: Set[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.program = program
        self.func = func
        self.at_hand = at_hand
        self.watched = watched
        self.sizes = program.sizes(func)
        self.segments = segments_of(program, func, watched)
        self.placements = {value.name: home_of(value.type) for value in program.globals.values()}
        self.trips: dict[str, int] = {}
        self.first = 0
        self.around: tuple[tuple[str, int], ...] = ()
        """What the trips of all events begin with: where this call stands among others."""
        self.begin()

    def begin(self) -> None:
        """Before the first event, which has the number `first`."""
        self._number = self.first
        self._turn: tuple[int, ...] = (self.first - 1,) if self.first else ()
        self._landing: dict[str, tuple[int, ...]] = {}
        self._touched: dict[str, Touched] = {}
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
                case Kind.LOOP:
                    self.loop(segment)
                case Kind.FETCH | Kind.PREFETCH:
                    self.fetch(segment)
                case Kind.WAIT:
                    self.wait(segment)
                case Kind.STORE:
                    self.store(segment)
                case Kind.SET:
                    self.set_state(segment)
                case Kind.ADDRESS:
                    self.address(segment)
                case Kind.FREE:
                    self.event(Action.FREE, segment, after=self.landings(segment, pop=True))
                case _:
                    self.event(Action.COMPUTE, segment)
            self.leave(segment)

    def loop(self, segment: Segment) -> None:
        loop = segment.statements[0]
        assert isinstance(loop, Loop)
        values = [carry.value.name for carry in loop.carries]
        self.hand_on([(segment.reads[carry.initial], name) for carry, name in zip(loop.carries, values, strict=True)])
        for trip in range(segment.trips):
            self.trips[loop.dim] = trip
            self.trip(loop, trip)
            self.run(segment.body)
            self.hand_on(list(zip(segment.ending, values, strict=True)))
        self.trips.pop(loop.dim, None)
        results = [Read(name, carry.value.type, ()) for name, carry in zip(values, loop.carries, strict=True)]
        self.hand_on(list(zip(results, (value.name for value in loop.results), strict=True)))

    def trip(self, loop: Loop, index: int) -> None:
        """A trip of a loop begins."""

    def hand_on(self, names: Sequence[tuple[Read, str]]) -> None:
        """Values get other names, all at once."""
        for table in (self._landing, self._sources):
            found = [(new, table.get(read.name)) for read, new in names]
            for new, value in found:
                table.pop(new, None)
                if value is not None:
                    table[new] = value  # type: ignore[index]

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
        trips = (*self.around, *self.trips.items())
        event = Event(number, resource, action, segment.name, tuple(segment.at), trips, tuple(sorted(before)), nbytes)
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

    def source_of(self, read: Read, operation: object = None) -> tuple[str, Slice] | None:
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
        for statement in segment.statements:
            assert isinstance(statement, Let)
            read = segment.reads[str(statement.operands[0])]
            source = self.source_of(read, statement.operation)
            if source is None:
                continue
            parts.append(source)
            after += self._landing.get(read.name, ())
            after += [n for part, n in self.touched(source[0]).writes if _meet(part, source[1])]
            sizes = moved(read.kind, self.at_hand)
            host, disk = host + sizes[0], disk + sizes[1]
        landing: list[int] = []
        self.prepare(segment)
        if disk:
            landing = [self.event(Action.READ, segment, Resource.DISK_READ, after, disk)]
        if host or (disk and Tier.HOST not in self.at_hand):
            landing = [self.event(Action.COPY, segment, Resource.TO_DEVICE, (*after, *landing), host + disk)]
        for name, part in parts:
            for number in landing:
                self.touched(name).read(part, number)
        if segment.kind is Kind.FETCH:
            if landing or after:
                self.event(Action.WAIT, segment, after=(*after, *landing))
            return
        for statement in segment.statements:
            self._landing[statement.results[0].name] = tuple(landing or after)

    def prepare(self, segment: Segment) -> None:
        """What is fetched gets a place on the device."""

    def wait(self, segment: Segment) -> None:
        here = [s for s in segment.statements if home_of(s.results[0].type) == ON_DEVICE]
        if here:
            self.event(Action.WAIT, segment, after=self.landings(segment))
        for statement in segment.statements:
            assert isinstance(statement, Let)
            name = str(statement.operands[0])
            landing = self._landing.pop(name, ())
            if statement not in here and landing:
                self._landing[statement.results[0].name] = landing
        self.landed(segment)

    def landed(self, segment: Segment) -> None:
        """What was waited for goes by its new names."""

    def store(self, segment: Segment) -> None:
        """Copies to the host. What goes to disk is written where it is set."""
        statement = segment.statements[0]
        assert isinstance(statement, Let)
        copied = Tier.HOST in self.at_hand
        resource = Resource.DEVICE if copied else Resource.FROM_DEVICE
        kind = statement.results[0].type
        nbytes = 0 if copied else kind.shape.elements * kind.shape.dtype.bits // 8
        number = self.event(Action.STORE, segment, resource, (), nbytes)
        self._landing[statement.results[0].name] = (number,)

    def address(self, segment: Segment) -> None:
        """Names for parts of what lies elsewhere; what is under way still is."""
        for statement in segment.statements:
            assert isinstance(statement, Let)
            landing = {n for name in operand_names(statement.operands) for n in self._landing.get(name, ())}
            if landing:
                self._landing[statement.results[0].name] = tuple(sorted(landing))
            source = self.source_of(segment.reads[str(statement.operands[0])])
            assert source is not None
            self._sources[statement.results[0].name] = source
        self.named(segment)

    def named(self, segment: Segment) -> None:
        """Parts of what lies elsewhere have names."""

    def set_state(self, segment: Segment) -> None:
        """A write where state lives."""
        statement = segment.statements[0]
        assert isinstance(statement, SetState)
        name = statement.state
        read = segment.reads[name]
        part = tuple((axis, self.trips[dim]) for axis, dim in read.slices)
        touched = self.touched(name)
        after = [n for p, n in (*touched.reads, *touched.writes) if _meet(p, part)]
        after += self._landing.pop(statement.operand, ())
        tiers = {tier for tier, _ in self.placements[name].shares}
        resource = Resource.DEVICE
        if Tier.DISK in tiers:
            resource = Resource.DISK_WRITE
        elif not tiers <= self.at_hand:
            resource = Resource.FROM_DEVICE
        number = self.event(Action.WRITE, segment, resource, after)
        if resource is not Resource.DEVICE:
            touched.write(part, number)

    def touched(self, name: str) -> Touched:
        return self._touched.setdefault(name, Touched())


class ListedEvents(Unrolling):
    """Keeps the events."""

    def begin(self) -> None:
        super().begin()
        self.events: list[Event] = []

    def emit(self, event: Event, segment: Segment) -> None:
        self.events.append(event)


def events_of(
    program: Program, func: Func, at_hand: Set[Tier] = frozenset((Tier.DEVICE,)), watched: Set[str] = frozenset()
) -> list[Event]:
    """The events of one call of a function on a device that computes with what is `at_hand` where it lies."""
    unrolling = ListedEvents(program, func, at_hand, watched)
    unrolling.walk()
    return unrolling.events


def in_order(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Every segment, a loop before its body."""
    for segment in segments:
        yield segment
        yield from in_order(segment.body)
