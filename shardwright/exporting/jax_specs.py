"""Layouts for JAX: PartitionSpecs by name, and the lines to paste into a function that `jit` partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.backends.jax.edges import ProgramEdges
from shardwright.backends.jax.source_text import axes_text
from shardwright.exporting.stored import in_blocks, laid_weights
from shardwright.ir.diagnostics import Span
from shardwright.ir.ops.contraction import Contract
from shardwright.ir.ops.movements import Movement
from shardwright.ir.program import Let, Loop, Value
from shardwright.ir.types import ON_HOST, TensorType

if TYPE_CHECKING:
    from shardwright.backends.simulation.digit_factors import Digits
    from shardwright.ir.program import Func, Program, Value
    from shardwright.ir.types import Axes
    from shardwright.models.weight_map import WeightMap


def spec(axes: Sequence[Axes]) -> str:
    """The source text of the PartitionSpec of an array whose dimensions these axes split."""
    last = max((at + 1 for at, over in enumerate(axes) if over), default=0)
    return f"P({', '.join(axes_text(over) if over else 'None' for over in axes[:last])})"


def jax_text(program: Program, mapping: WeightMap | None) -> str:
    """A module with MESH, WEIGHTS, STATE, and for each function IN_SPECS, OUT_SPECS and CONSTRAINTS.

    Every spec is of blocks: chip i of a dimension's chips has block i, axes in the order of the spec. CONSTRAINTS has
    the values whose layouts the compiler of JAX would not find from those of arguments and results; the comment before
    it has the lines to paste. A name that two loops use has the second value as `'name (2)'`.
    """
    edges = ProgramEdges(program)
    shape = ", ".join(f"{axis!r}: {size}" for axis, size in program.mesh.items())
    lines = [
        '"""Layouts for jax.jit, as PartitionSpecs by name; devices are numbered row by row over MESH."""',
        "",
        "from jax.sharding import PartitionSpec as P",
        "",
        f"MESH = {{{shape}}}",
        "",
        "WEIGHTS = {",
        *(
            f"    {laid.entry(spec(laid.axes))},{_memory(program.globals[laid.weight])}"
            for laid in laid_weights(program, edges, mapping)
        ),
        "}",
        "",
        "STATE = {",
        *(f"    {value.name!r}: {in_blocks(edges, value).spec},{_memory(value)}" for value in program.state),
        "}",
    ]
    for title in ("IN_SPECS", "OUT_SPECS"):
        lines += ["", f"{title} = {{"]
        for func in program.funcs:
            given = edges.params(func) if title == "IN_SPECS" else enumerate(edge for _, edge in edges.results(func))
            lines += [f"    {func.name!r}: {{", *(f"        {key!r}: {edge.spec}," for key, edge in given), "    },"]
        lines.append("}")
    lines += ["", "CONSTRAINTS = {"]
    for func in program.funcs:
        lines.append(f"    {func.name!r}: {{")
        times: Counter[str] = Counter()
        for kept in constraints(func, edges.digits(func)):
            name = kept.value.name
            times[name] += 1
            key = name if times[name] == 1 else f"{name} ({times[name]})"
            lines += [f"        # {kept.pasted}", f"        {key!r}: {kept.spec},"]
        lines.append("    },")
    return "\n".join([*lines, "}"]) + "\n"


def _memory(value: Value) -> str:
    """A comment with the memory of a value that is not on the device, of which a PartitionSpec says nothing."""
    return "  # on host: memory_kind='pinned_host'" if value.concrete.placement == ON_HOST else ""


@dataclass(frozen=True)
class Constraint:
    """A value that the author named, and a layout in which it has to lie for what comes after."""

    value: Value
    layout: tuple[Axes, ...]
    contraction: bool
    dims: tuple[str, ...]
    """The dimensions that the layout is of: the value's, or those of the slice of it that a loop's body has."""

    @property
    def spec(self) -> str:
        return spec(self.layout)

    @property
    def pasted(self) -> str:
        """The line of JAX that brings it there."""
        name = self.value.name
        line = f"{name} = jax.lax.with_sharding_constraint({name}, {self.spec})"
        return f"{line}, or at its product out_sharding={self.spec}" if self.contraction else line


def layouts(func: Func, digits: Digits) -> Iterator[Constraint]:
    """The values that the author named, parameters and what loops carry among them, each split over the axes that it
    lies split over, whose blocks may go to other chips."""
    values = list(func.params)
    for statement, _ in func.walk():
        if isinstance(statement, Loop):
            values += (carry.value for carry in statement.carries)
        elif isinstance(statement, Let) and not isinstance(statement.operation, Movement):
            values += statement.results
    for value in values:
        kind = value.type
        if isinstance(kind, TensorType) and not value.origin and not kind.partial:
            yield Constraint(value, _ordered(kind, digits), False, kind.names)


def _ordered(kind: TensorType, digits: Digits) -> tuple[Axes, ...]:
    """The axes that split each dimension, in the order of its blocks."""
    return tuple(digits.ordered_axes(kind, dim.name) for dim in kind.dims)


def constraints(func: Func, digits: Digits, *, parameters: bool = False) -> Iterator[Constraint]:
    """The values that movements take elsewhere, each with where it ends, in blocks.

    A value that goes to several places has the first: it is the one whose layout its statement is given. With
    `parameters` those that go elsewhere at once are among them, what loops carry and slices of values too.
    """
    lets: list[Let] = []
    makers: list[int | None] = []
    """For each of `lets` the one that makes what it reads first, by number."""
    given: list[Value | None] = []
    """For each of `lets` the parameter or carried value that it reads first; None where a statement makes that."""
    latest: dict[str, int] = {}
    values = {value.name: value for value in func.params} if parameters else {}
    for statement, _ in func.walk():
        if isinstance(statement, Loop):
            carried = {carry.value.name: carry.value for carry in statement.carries}
            latest = {name: at for name, at in latest.items() if name not in carried}
            values |= carried if parameters else {}
        if isinstance(statement, Let):
            read = str(next(iter(statement.operands), ""))
            makers.append(latest.get(read))
            given.append(values.get(read))
            latest |= {value.name: len(lets) for value in statement.results}
            lets.append(statement)
    moved_on = {maker for maker, let in zip(makers, lets, strict=True) if isinstance(let.operation, Movement)}
    done: set[tuple[str, Span]] = set()
    for at, let in enumerate(lets):
        if not isinstance(let.operation, Movement) or at in moved_on:
            continue
        first = at
        while (before := makers[first]) is not None and isinstance(lets[before].operation, Movement):
            first = before
        let_before = None if before is None else lets[before]
        source = let_before.result if let_before is not None else given[first]
        kind = let.result.type
        if source is None or source.origin or not isinstance(kind, TensorType):
            continue
        if (source.name, source.span) in done or kind.partial:
            continue
        if not all(digits.is_contiguous(kind, dim.name) for dim in kind.dims if kind.split(dim.name)):
            continue
        if not parameters and kind.names != source.shape.names:
            continue
        done.add((source.name, source.span))
        is_product = let_before is not None and isinstance(let_before.operation, Contract)
        yield Constraint(source, _ordered(kind, digits), is_product, kind.names)
