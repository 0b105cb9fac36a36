"""Programs: functions of statements in SSA form over named, typed values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from shardwright.ir.diagnostics import NOWHERE, Span, fault, nearest
from shardwright.ir.digits import Order
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Operand, Operation
from shardwright.ir.types import DType, OpenType, Shape, TensorType, ValueType

if TYPE_CHECKING:
    from shardwright.ir.known_numbers import KnownNumbers


class Marking(Enum):
    """How a value came to its type."""

    DEMANDED = ":"
    FOUND = ":~"
    UNWRITTEN = ""


@dataclass(frozen=True)
class Value:
    """A named value with its type, which may have holes at the surface level.

    `origin` is the name of the value that a pass made it from, then of what that was made from, and so on; empty for
    what the author wrote. It is not part of the text: a program that is printed and read again has none.
    """

    name: str
    type: ValueType
    marking: Marking = Marking.DEMANDED
    span: Span = field(default=NOWHERE, compare=False, repr=False)
    origin: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def concrete(self) -> TensorType:
        """The type, which must be without holes (explicit programs have no others)."""
        if isinstance(self.type, OpenType):
            raise TypeError(f"{self.name}: {self.type} still has holes")
        return self.type


@dataclass(frozen=True)
class Let:
    """`results = operation(operands)`."""

    results: tuple[Value, ...]
    operation: Operation
    operands: tuple[Operand, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)

    @property
    def result(self) -> Value:
        return self.results[0]


@dataclass(frozen=True)
class SetState:
    """`set k = v`: from here on `k` names the new version. Inside a loop over a dimension of k, its slice."""

    state: str
    operand: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)

    @property
    def results(self) -> tuple[Value, ...]:
        """It gives no name to a value."""
        return ()


@dataclass(frozen=True)
class Free:
    """`free a, b`: the values of these names are used no more, here or in a later trip."""

    names: tuple[str, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)

    @property
    def results(self) -> tuple[Value, ...]:
        """It gives no name to a value."""
        return ()


@dataclass(frozen=True)
class Carry:
    """A value carried through a loop: what the body sees, and what it is before the first trip."""

    value: Value
    initial: str


@dataclass(frozen=True)
class Loop:
    """`results = loop[dim as index](carries) { body; next following }`.

    The body sees captured values that have `dim` without it: the slice of the trip.
    """

    results: tuple[Value, ...]
    dim: str
    index: str | None
    carries: tuple[Carry, ...]
    body: tuple[Statement, ...]
    following: tuple[str, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


Statement = Let | SetState | Free | Loop


@dataclass(frozen=True)
class Func:
    """A function. `overrides` are sizes of dimensions that differ inside it; `returns` runs parallel to `results`."""

    name: str
    overrides: tuple[tuple[str, int], ...]
    params: tuple[Value, ...]
    body: tuple[Statement, ...]
    returns: tuple[str, ...]
    results: tuple[ValueType, ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)

    def walk(self) -> Iterator[tuple[Statement, tuple[Loop, ...]]]:
        """Every statement with the loops around it, outermost first; a loop comes before its body."""
        yield from _walk(self.body, ())


def _walk(body: tuple[Statement, ...], loops: tuple[Loop, ...]) -> Iterator[tuple[Statement, tuple[Loop, ...]]]:
    for statement in body:
        yield statement, loops
        if isinstance(statement, Loop):
            yield from _walk(statement.body, (*loops, statement))


@dataclass(frozen=True)
class DimInfo:
    """A dimension: its size, the expression that gave it (None for a number), and its order of digits if chosen."""

    name: str
    size: int
    expression: tuple[tuple[str | int, ...], ...] | None = None
    order: Order | None = None
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True)
class Program:
    """A whole program. Equal by value, spans apart."""

    mesh: Mesh
    dims: tuple[DimInfo, ...]
    weights: tuple[Value, ...]
    state: tuple[Value, ...]
    funcs: tuple[Func, ...]
    chip: str = ""
    """The chip that the text names, for the choice of layouts; "" where it names none."""
    chip_span: Span = field(default=NOWHERE, compare=False, repr=False)

    drawn: ClassVar[Callable[[Program], str] | None] = None
    """Draws a program as HTML, for notebooks. The package sets it: what draws stands above this one."""

    def __repr__(self) -> str:
        from shardwright.ir.text.format import format_module
        from shardwright.ir.text.unparse import unparse

        return format_module(unparse(self))

    def html(self) -> str | None:
        """The program's picture as HTML, which notebooks show; None where nothing has been set that draws."""
        return Program.drawn(self) if Program.drawn is not None else None

    def _repr_html_(self) -> str | None:
        return self.html()

    def dim(self, name: str) -> DimInfo:
        """The declared dimension; KeyError if there is none."""
        for dim in self.dims:
            if dim.name == name:
                return dim
        raise KeyError(name)

    def sizes(self, func: Func | None = None) -> dict[str, int]:
        """The size of every dimension, as the function sees it."""
        sizes = {dim.name: dim.size for dim in self.dims}
        if func is not None:
            sizes.update(func.overrides)
        return sizes

    def func(self, name: str) -> Func:
        """The function; a `DiagnosticError` says which there are where it is none of them."""
        for func in self.funcs:
            if func.name == name:
                return func
        names = [func.name for func in self.funcs]
        there = f"there are {', '.join(names)}" if names else "the program has none"
        raise fault("unknown-function", f"there is no function {name}; {there}", NOWHERE, nearest(name, names))

    @property
    def globals(self) -> dict[str, Value]:
        """Weights and state by name."""
        return {value.name: value for value in (*self.weights, *self.state)}

    @property
    def state_names(self) -> frozenset[str]:
        return frozenset(value.name for value in self.state)


def slice_view(kind: ValueType, loops: tuple[Loop, ...], outside: int) -> ValueType:
    """The type of a captured value as the innermost loop sees it.

    `outside` is the number of loops around the value's definition; each loop further in removes its dimension.
    """
    for loop in loops[outside:]:
        if loop.dim in kind.names:
            kind = kind.without_dim(loop.dim)
    return kind


@dataclass
class Scope:
    """The names visible at a point of a function: values with the number of loops around their definitions."""

    values: dict[str, tuple[ValueType, int]]
    loops: tuple[Loop, ...] = ()
    seen: dict[str, ValueType] = field(default_factory=dict[str, "ValueType"])
    """The types that were asked for, as seen here."""
    numbers: dict[str, KnownNumbers] = field(default_factory=dict[str, "KnownNumbers"])
    """The values that are known before the program runs, of those that were looked at."""

    @staticmethod
    def of(program: Program, func: Func) -> Scope:
        """The scope at the start of a function's body."""
        visible = {value.name: (value.type, 0) for value in (*program.weights, *program.state, *func.params)}
        return Scope(visible)

    def type_of(self, name: str) -> ValueType:
        """The type of a value as seen here; KeyError if it is not visible."""
        found = self.seen.get(name)
        if found is None:
            kind, outside = self.values[name]
            found = self.seen[name] = slice_view(kind, self.loops, outside)
        return found

    def shows_slice(self, name: str) -> bool:
        """Tells whether a value is seen here without dimensions of loops inside which it is not defined."""
        kind, outside = self.values[name]
        return any(loop.dim in kind.names for loop in self.loops[outside:])

    def define(self, *values: Value) -> None:
        for value in values:
            self.values[value.name] = (value.type, len(self.loops))
            self.seen.pop(value.name, None)
            self.numbers.pop(value.name, None)

    def inside(self, loop: Loop) -> Scope:
        """The scope at the start of a loop's body."""
        inner = Scope(dict(self.values), (*self.loops, loop), numbers=dict(self.numbers))
        for carry in loop.carries:
            inner.define(carry.value)
        if loop.index is not None:
            inner.define(index_value(loop))
        return inner


def index_value(loop: Loop) -> Value:
    """The index of a loop as a value of its body."""
    return Value(loop.index or "", TensorType(DType.INT32, (), ()), Marking.UNWRITTEN)
