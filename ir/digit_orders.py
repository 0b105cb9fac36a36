"""Orders of digits of a whole program: which axes split each dimension, and the order that a function sees."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from shardwright.ir.diagnostics import Span
from shardwright.ir.digits import Order, blocks_order, fitting_order, is_contiguous
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Operation
from shardwright.ir.ops import AllGather, AllToAll, Convert, Permute, ReduceScatter, Slice, Take
from shardwright.ir.program import Func, Let, Program
from shardwright.ir.types import Axes, TensorType, ValueType
from shardwright.ir.walk import reads, statements, values_in


@dataclass(frozen=True)
class Use:
    """A value whose type splits a dimension over an axis."""

    value: str
    type: ValueType
    span: Span


def typed_values(program: Program, func: Func) -> Iterator[Use]:
    """Every value that the function sees or makes, weights and state included, with its type."""
    return itertools.starmap(Use, _typed(program, func))


def _typed(program: Program, func: Func) -> Iterator[tuple[str, ValueType, Span]]:
    """The same, not as uses, of which most would be made for nothing."""
    for value in (*program.weights, *program.state, *func.params, *values_in(func.body)):
        yield value.name, value.type, value.span
    for kind in func.results:
        yield f"the result of {func.name}", kind, func.span


SplittingAxes = dict[tuple[str, str | None], dict[str, Use]]


def splitting_axes(program: Program) -> SplittingAxes:
    """For each dimension the axes that split it anywhere, with their first use.

    A dimension whose size a function overrides is another dimension inside it: its key holds the function's
    name, that of all others None.
    """
    found: SplittingAxes = {}
    for func in program.funcs:
        overridden = {name for name, _ in func.overrides}
        for name, kind, span in _typed(program, func):
            for dim, axes in zip(kind.dims, kind.splits, strict=True):
                if axes:
                    uses = found.setdefault((dim.name, func.name if dim.name in overridden else None), {})
                    uses.update({axis: Use(name, kind, span) for axis in axes if axis not in uses})
    return found


def split_extents(program: Program) -> dict[tuple[str, str | None], set[int]]:
    """For each dimension, keyed as in `splitting_axes`, the extents of the values that split it."""
    found: dict[tuple[str, str | None], set[int]] = {}
    for func in program.funcs:
        overridden = {name for name, _ in func.overrides}
        for use in typed_values(program, func):
            for dim, axes in zip(use.type.dims, use.type.splits, strict=True):
                if axes:
                    found.setdefault((dim.name, func.name if dim.name in overridden else None), set()).add(dim.size)
    return found


def orders_in(program: Program, func: Func, used: SplittingAxes | None = None) -> dict[str, Order]:
    """The order of each dimension as the function sees it; axes in the order of the mesh where none is chosen. `used`
    are the program's `splitting_axes`, for those who ask about several functions.

    A dimension whose size the function overrides has the axes that split it there for digits: first those of the
    program's order, which need not fit into the other size, then any others.
    """
    used = splitting_axes(program) if used is None else used
    overridden = {name for name, _ in func.overrides}
    orders: dict[str, Order] = {}
    for dim in program.dims:
        own = dim.name in overridden
        axes = used.get((dim.name, func.name if own else None), {})
        if dim.order is None:
            orders[dim.name] = program.mesh.sorted(axes)
        elif own:
            orders[dim.name] = order_within(dim.order, axes, program.mesh)
        else:
            orders[dim.name] = dim.order
    return orders


def order_within(order: Order, axes: Iterable[str], mesh: Mesh) -> Order:
    """An order as a function sees it that gives the dimension another size and splits it over these axes."""
    own = set(axes)
    return (*(digit for digit in order if digit in own), *mesh.sorted(own.difference(order)))


def in_blocks(func: Func) -> dict[str, tuple[str, ...]]:
    """The parameters and results that cross the function's edge in contiguous blocks, with the dimensions that do.

    They are what `permute[E, from=blocks]` takes, and what `permute[E, to=blocks]` gives.
    """
    found: dict[str, tuple[str, ...]] = {}
    for statement in func.body:
        match statement:
            case Let(operation=Permute(blocks="to", dims=dims)):
                found[statement.result.name] = dims
            case Let(operation=Permute(blocks="from", dims=dims), operands=(str() as name,)):
                found[name] = dims
            case _:
                pass
    return found


def gathered_or_cut(func: Func) -> dict[str, tuple[str, ...]]:
    """The parameters that movements alone read, by themselves or of `taken_of` them, with the dimensions that these
    make whole; the results that movements make and nothing else reads, with the dimensions that were whole before; and
    what goes through unread, with all.

    Such a dimension can cross the function's edge in blocks as well as in digits: the movement is the same.
    """
    moves = [
        statement
        for statement in statements(func.body)
        if isinstance(statement, Let)
        and isinstance(statement.operation, AllGather | AllToAll | ReduceScatter | Slice)
        and isinstance(statement.result.type, TensorType)
    ]
    readers = _readers(func)
    taken = taken_of(func)
    found: dict[str, tuple[str, ...]] = {}
    for value in func.params:
        parts = {value.name, *(part for part, whole in taken.items() if whole == value.name)}
        mine = [move for move in moves if move.operands[0] in parts]
        read = sum(readers[part] for part in parts) - (len(parts) - 1)
        if len(mine) == read or readers[value.name] == func.returns.count(value.name):
            found[value.name] = tuple(
                dim.name for dim in value.type.dims if not any(_axes_of(move.result.type, dim.name) for move in mine)
            )
    for move in moves:
        name, kind = move.result.name, move.result.type
        if move in func.body and readers[name] == func.returns.count(name) > 0:
            cut: dict[str, list[str]] = {}
            for axes, dim in _cuts(move.operation):
                cut.setdefault(dim, []).extend(axes)
            left = [source for _, source, _ in move.operation.transfers] if isinstance(move.operation, AllToAll) else []
            found[name] = tuple(
                dim for dim, axes in cut.items() if set(axes) == set(_axes_of(kind, dim)) and dim not in left
            )
    return found


def taken_of(func: Func) -> dict[str, str]:
    """The values that are a parameter's but for what was taken of whole dimensions, and its format; each with the
    parameter."""
    found = {value.name: value.name for value in func.params}
    for statement in statements(func.body):
        match statement:
            case Let(operation=Take(by=()) | Convert(), operands=(str() as name,)) if name in found:
                found[statement.result.name] = found[name]
            case _:
                pass
    return {part: whole for part, whole in found.items() if part != whole}


def _readers(func: Func) -> Counter[str]:
    """How often each value is read, returning included."""
    return Counter(name for statement in statements(func.body) for name in reads(statement)) + Counter(func.returns)


def _cuts(operation: Operation) -> list[tuple[Axes, str]]:
    """The splits of a movement: axes, and the dimension that comes to be split over them."""
    match operation:
        case ReduceScatter() | Slice():
            return list(operation.targets)
        case AllToAll():
            return [(axes, target) for axes, _, target in operation.transfers]
        case _:
            return []


def _axes_of(kind: ValueType, dim: str) -> Axes:
    return next((axes or () for each, axes in zip(kind.dims, kind.splits, strict=True) if each.name == dim), ())


def edge_orders(
    orders: Mapping[str, Order], kind: TensorType, blocks: Iterable[str], mesh: Mesh
) -> Mapping[str, Order]:
    """The digits of a value at a function's edge, where these of its dimensions lie in blocks."""
    return {**orders, **{dim: blocks_order(orders.get(dim, ()), kind.split(dim), mesh) for dim in blocks}}


def strided_dims(kind: ValueType, orders: Mapping[str, Order], mesh: Mesh) -> tuple[str, ...]:
    """The dimensions of which a chip's part is not one contiguous block."""
    found: list[str] = []
    for dim, axes in zip(kind.dims, kind.splits, strict=True):
        order = orders.get(dim.name, ())
        if axes and not is_contiguous(fitting_order(order, axes, dim.size, mesh), axes, mesh):
            found.append(dim.name)
    return tuple(found)
