"""The order in which a weight's dimensions lie in a target's memory, for products to read it as it lies.

libtpu multiplies matrices: what is summed along a tile's rows, what stays along its lanes. An array lies with its last
two dimensions along these, so that a weight `E K G D` that is summed over E would be copied at each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from shardwright.backends.jax.edges import EdgeArray, ProgramEdges
from shardwright.ir import ops
from shardwright.ir.program import Func, Let, Program, Value
from shardwright.ir.walk import defined, reads


def weight_orders(program: Program, edges: ProgramEdges, tile: tuple[int, int] | None) -> dict[str, tuple[int, ...]]:
    """The dimensions of each weight from major to minor, of those that should not lie in their own order, where all
    that reads a weight agrees. A target without tiles has none."""
    if tile is None:
        return {}
    stored = {value.name: edges.stored(value) for value in program.weights}
    wanted: dict[str, set[tuple[int, ...]]] = {}
    for func in program.funcs:
        for name, seen, summed in _readers(func, program.weights):
            wanted.setdefault(name, set()).add(_order(stored[name], seen, summed, tile))
    agreed = {name: min(orders) for name, orders in wanted.items() if len(orders) == 1}
    return {name: order for name, order in agreed.items() if list(order) != sorted(order)}


def _readers(func: Func, weights: Sequence[Value]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Each weight with those of its dimensions that an operation sees, and those that it sums. What is only moved,
    converted, renamed or taken of a weight counts as the weight."""
    own = {value.name: (value.name, {dim: dim for dim in value.type.names}) for value in weights}
    for statement, loops in func.walk():
        sources = [own[name] for name in reads(statement) if name in own]
        for value in defined(statement):  # another loop may have used the name for a weight
            own.pop(value.name, None)
        if not isinstance(statement, Let):
            continue
        operation, trips = statement.operation, {loop.dim for loop in loops}
        for name, names in sources:
            if isinstance(operation, _PASSING):
                new = dict(operation.pairs) if isinstance(operation, ops.Rename) else {}
                gone = operation.dim if isinstance(operation, ops.Take) and operation.stop is None else None
                own[statement.result.name] = name, {new.get(d, d): at for d, at in names.items() if d != gone}
            else:
                summed = operation.dims if isinstance(operation, ops.Contract) else ()
                seen = {dim: at for dim, at in names.items() if dim not in trips}
                yield name, list(seen.values()), [seen[dim] for dim in summed if dim in seen]


_PASSING = (ops.Movement, ops.Alias, ops.Convert, ops.Rename, ops.Take)


def _order(edge: EdgeArray, seen: list[str], summed: list[str], tile: tuple[int, int]) -> tuple[int, ...]:
    """The order for one operation, if its tiles are whole: dimensions that it takes one by one, those that stay in the
    result but the last, those that it sums, the last."""
    names, sizes = edge.kind.names, dict(zip(edge.kind.names, edge.chip_shape, strict=True))
    last, (rows, lanes) = names[-1], tile
    free = [dim for dim in names[:-1] if dim in seen and dim not in summed]
    along_rows = [dim for dim in names if dim in summed]
    whole = along_rows and sizes[along_rows[-1]] % rows == 0 and sizes[last] % lanes == 0
    if not whole or last in summed or edge.is_reshaped or edge.on_host or prod(sizes[dim] for dim in free) == 1:
        return tuple(range(len(names)))
    return tuple(map(names.index, (*(dim for dim in names if dim not in seen), *free, *along_rows, last)))
