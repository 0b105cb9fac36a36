"""The segments of a function: runs of statements of one kind, and loops of segments.

Statements that move values are segments apart from those that compute. The statements of a segment are done together,
as one event or, where they fetch, as a read and a copy. A segment also knows what it reads, and which values nothing
after it uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from shardwright.ir.ops import Alias, Attend, Fetch, Rename, Start, Store, Take, Update, Wait
from shardwright.ir.program import Free, Func, Let, Loop, Program, Scope, SetState, Statement, slice_view
from shardwright.ir.types import ON_DEVICE, Placement, Tier, ValueType
from shardwright.ir.walk import Position, names_freed, names_used, operand_names, reads


class SegmentKind(StrEnum):
    """The kind of the statements of a segment."""

    COMPUTE = "compute"
    HOST = "host"
    ADDRESS = "address"
    FETCH = "fetch"
    PREFETCH = "prefetch"
    WAIT = "wait"
    FREE = "free"
    STORE = "store"
    UPDATE = "update"
    SET = "set"
    LOOP = "loop"


@dataclass(frozen=True)
class SegmentRead:
    """A value as a statement sees it: `slices` are the axes of the value as it was defined, each with the loop whose
    trips slice it."""

    name: str
    kind: ValueType
    slices: tuple[tuple[int, str], ...]

    @cached_property
    def on_device(self) -> bool:
        return home_of(self.kind) == ON_DEVICE


@dataclass
class Segment:
    """A run of statements of one kind, with their positions. `reads` are what it reads, by name; `last` the names whose
    values nothing after it in its body uses; `needed` what it makes that others use. A store is `lasting` if its value
    is more than a new value of state, or new rows, on its way, and so has to lie where its type says. A store
    that is not, and setting state, have so many elements `written`: of new rows where nothing else is new. Its `lets`
    are known for good once they are asked for, so that no statement may join it after that."""

    kind: SegmentKind
    at: list[Position]
    statements: list[Statement]
    reads: dict[str, SegmentRead]
    trips: int = 1
    body: tuple[Segment, ...] = ()
    last: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()
    ending: tuple[SegmentRead, ...] = ()
    lasting: bool = False
    written: int = 0

    @property
    def place(self) -> Position:
        """Where it begins in its function."""
        return self.at[0]

    @cached_property
    def name(self) -> str:
        match self.statements[0]:
            case SetState(state=state):
                return state
            case Free(names=names):
                return names[0]
            case Loop(results=(), dim=dim):
                return dim
            case Let(results=results) | Loop(results=results):
                return results[0].name

    @cached_property
    def lets(self) -> list[Let]:
        """The statements of a segment that has nothing but operations."""
        return [statement for statement in self.statements if isinstance(statement, Let)]

    @property
    def only(self) -> Let:
        """The single operation of a store, an update, or what the host computes."""
        (let,) = self.lets
        return let

    @property
    def loop(self) -> Loop:
        (loop,) = (statement for statement in self.statements if isinstance(statement, Loop))
        return loop

    @property
    def setting(self) -> SetState:
        (setting,) = (statement for statement in self.statements if isinstance(statement, SetState))
        return setting


def home_of(kind: ValueType) -> Placement:
    return kind.placement or ON_DEVICE


def moved(
    kind: ValueType, at_hand: Set[Tier], elements: int | None = None, each: float | None = None
) -> tuple[int, int]:
    """The bytes of a value, or of so many of its elements, that lie on the host and on disk away from a device that
    computes with what is `at_hand` as it lies there; `each` are those of an element that is kept otherwise than its
    type says."""
    nbytes = (kind.shape.elements if elements is None else elements) * (each or kind.shape.dtype.bits / 8)
    parts = dict.fromkeys(Tier, 0.0)
    for tier, percent in home_of(kind).shares:
        parts[tier] += percent
    host, disk = (0.0 if tier in at_hand else parts[tier] for tier in (Tier.HOST, Tier.DISK))
    return round(nbytes * host / 100), round(nbytes * disk / 100)


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
            own = {value.name for s in segment.statements for value in s.results} if kind is SegmentKind.COMPUTE else ()
            for name in self.names(statement, kind):
                if name in scope.values and name not in segment.reads and name not in own:
                    segment.reads[name] = read_of(name, scope)
            if kind is SegmentKind.LOOP:
                assert isinstance(statement, Loop)
                segment.trips = self.sizes[statement.dim]
                inside = scope.inside(statement)
                segment.body = self.body(statement.body, inside, at, statement.following)
                segment.ending = tuple(read_of(name, inside) for name in statement.following)
            if isinstance(statement, SetState):
                segment.written = _elements_written(statement.operand, body[:number], scope)
            elif kind is SegmentKind.STORE:
                segment.written = _elements_written(str(segment.only.operands[0]), body[:number], scope)
            if kind in (SegmentKind.WAIT, SegmentKind.FETCH):
                fetched.update(value.name for value in statement.results)
            scope.define(*statement.results)
        self.lifetimes(made, body, ending, scope)
        return tuple(made)

    def names(self, statement: Statement, kind: SegmentKind) -> Sequence[str]:
        match statement:
            case Loop() if kind is SegmentKind.LOOP:
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
        for segment in made:
            if segment.kind is SegmentKind.STORE:
                name = segment.only.result.name
                segment.lasting = not (_set_alone(name, body, ending) or _new_rows(name, body))
        for number, segment in enumerate(made):
            own = {value.name for statement in segment.statements for value in statement.results}
            wanted = {*ending} | {name for name, where in users.items() if any(other > number for other in where)}
            segment.needed = tuple(value for value in own if value in wanted)
            for name in own - wanted:
                last.setdefault(name, number)
        defined = {value.name for statement in body for value in statement.results}
        # Values that the loop carries are the body's, too; state, weights and what stands around are not.
        carried = {name for name, (_, depth) in scope.values.items() if depth == len(scope.loops)}
        own = (defined | carried) - set(self.program.globals) - {*ending}
        for name, number in last.items():
            if name in own and (name not in freed or made[number].kind is SegmentKind.FREE):
                made[number].last += (name,)

    def kind(self, statement: Statement, scope: Scope, fetched: Set[str]) -> SegmentKind:
        match statement:
            case Loop():
                return SegmentKind.COMPUTE if self.computes(statement, scope) else SegmentKind.LOOP
            case Free():
                return SegmentKind.FREE
            case SetState():
                away = home_of(scope.values[statement.state][0]) != ON_DEVICE
                return SegmentKind.SET if away or statement.state in self.watched else SegmentKind.COMPUTE
            case Let():
                return let_kind(statement, scope, fetched)

    def computes(self, loop: Loop, scope: Scope) -> bool:
        """True if nothing in a loop moves, is under way or lies away from the device, and it goes over no slices of
        weights or state, so that it is one computation with what is around it."""
        known = self.program.globals
        kinds = [carry.value.type for carry in loop.carries]
        if any(kind.in_flight or home_of(kind) != ON_DEVICE for kind in kinds):
            return False
        if any(loop.dim in known[name].shape for name in names_used((loop,)) if name in known):
            return False
        inside = scope.inside(loop)
        for statement in loop.body:
            if self.kind(statement, inside, frozenset()) is not SegmentKind.COMPUTE:
                return False
            inside.define(*statement.results)
        return True


_ALONE = (SegmentKind.LOOP, SegmentKind.STORE, SegmentKind.SET, SegmentKind.UPDATE, SegmentKind.HOST)


def _joining(kind: SegmentKind, made: Sequence[Segment]) -> Segment | None:
    """The segment that the next statement belongs to; what only gives names to parts comes before the fetches of
    these."""
    if not made or kind in _ALONE:
        return None
    if made[-1].kind is kind:
        return made[-1]
    before = (
        kind is SegmentKind.ADDRESS and made[-1].kind in (SegmentKind.FETCH, SegmentKind.PREFETCH) and len(made) > 1
    )
    return made[-2] if before and made[-2].kind is SegmentKind.ADDRESS else None


def let_kind(statement: Let, scope: Scope, fetched: Set[str] = frozenset()) -> SegmentKind:
    """`fetched` are names whose values have been fetched."""
    operation = statement.operation
    homes = [home_of(scope.type_of(name)) for name in operand_names(statement.operands)]
    result = home_of(statement.results[0].type)
    match operation:
        case Wait():
            return SegmentKind.WAIT
        case Start(movement=Fetch()):
            return SegmentKind.PREFETCH
        case Fetch():
            return SegmentKind.FETCH
        case Store() | Start(movement=Store()):
            return SegmentKind.STORE
        case Alias() if homes and homes[0] != result:
            return SegmentKind.STORE if homes[0] == ON_DEVICE else SegmentKind.FETCH
        case Update() if not _writes_rows(statement, scope):
            return SegmentKind.COMPUTE
        case Take() | Rename() | Update() | Alias() if homes and homes[0] != ON_DEVICE:
            return SegmentKind.ADDRESS
        case Update() if statement.operands[0] in fetched:
            return SegmentKind.UPDATE
        case Attend() if homes[0] != ON_DEVICE:
            return SegmentKind.HOST
        case _:
            return SegmentKind.COMPUTE


def _set_alone(name: str, body: Sequence[Statement], ending: Sequence[str]) -> bool:
    """True if nothing in a body uses a value but to set state to it, or to what has it as new rows."""
    if name in ending:
        return False
    for statement in body:
        match statement:
            case SetState() | Free():
                continue
            case Let(operation=Update(), operands=(cache, *_)) if cache != name:
                continue
            case Let(operation=Wait() | Alias() | Rename(), operands=(operand,)) if operand == name:
                if not _set_alone(statement.result.name, body, ending):
                    return False
            case _ if name in names_used((statement,)):
                return False
            case _:
                pass
    return True


def _elements_written(name: str, before: Sequence[Statement], scope: Scope) -> int:
    """The elements that are written where state becomes a value: its own, or those of new rows that it has."""
    for statement in reversed(before):
        if isinstance(statement, Let) and any(value.name == name for value in statement.results):
            match statement.operation:
                case Update() if _writes_rows(statement, scope):
                    return read_of(str(statement.operands[1]), scope).kind.shape.elements
                case Wait() | Alias() | Rename() | Store() | Start(movement=Store()):
                    name = str(statement.operands[0])
                case _:
                    break
    return read_of(name, scope).kind.shape.elements


def _new_rows(name: str, body: Sequence[Statement]) -> bool:
    """True if a value is written into another one, which has it at hand until then."""
    updates = (s for s in body if isinstance(s, Let) and isinstance(s.operation, Update))
    return any(statement.operands[1] == name for statement in updates)


def _writes_rows(statement: Let, scope: Scope) -> bool:
    """True if an update writes rows that follow each other, from one position or from one for each element of another
    dimension, along a dimension that no axis splits."""
    operation, (cache, _, position, *indices) = statement.operation, statement.operands
    if not isinstance(operation, Update) or operation.wrap or indices or not isinstance(cache, str) or operation.page:
        return False
    kind = scope.type_of(cache)
    by = scope.type_of(position).names if isinstance(position, str) else ()
    return len(by) <= 1 and not dict(zip(kind.names, kind.splits, strict=True)).get(operation.dim)


def read_of(name: str, scope: Scope) -> SegmentRead:
    kind, outside = scope.values[name]
    dims = [loop.dim for loop in scope.loops[outside:]]
    slices = tuple((axis, dim) for axis, dim in enumerate(kind.names) if dim in dims)
    return SegmentRead(name, slice_view(kind, scope.loops, outside), slices)


def in_order(segments: Sequence[Segment]) -> Iterator[Segment]:
    """Every segment, a loop before its body."""
    for segment in segments:
        yield segment
        yield from in_order(segment.body)
