"""Smaller sizes at which a traced function is proved, where running it at its own would take long or fill the memory.

The function is traced again at arguments in which every dimension is smaller. Where that gives the same program but for
sizes and the numbers that follow from them, what holds of the smaller one holds of both.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from shardwright.ir import ops
from shardwright.ir.program import Program
from shardwright.ir.walk import lets

MOST_WORK, PATIENCE = 2e10, 10.0
"""Multiplications and elements that a proof takes where smaller sizes would do, and how many times that elsewhere."""

_SMALL = 8
"""Sizes up to here stay."""

_NUMBER = re.compile(r"(?<![\w.])-?\d+(\.\d+)?(e[-+]?\d+)?")
_DIM = re.compile(r"[A-Z]\d*")


def work_of(program: Program, others: Mapping[str, int] | None = None) -> float:
    """Multiplications of products and elements of all values in one call of the program's function, at its own sizes
    or at others."""
    (func,) = program.funcs
    sizes = {**program.sizes(func), **(others or {})}
    total = float(sum(math.prod(sizes[dim] for dim in value.shape.names) for value in program.weights))
    for let, scope in lets(program, func):
        trips = math.prod(sizes[loop.dim] for loop in scope.loops)
        dims = {dim for value in let.results for dim in value.shape.names}
        summed = set(let.operation.dims) if isinstance(let.operation, ops.Contract) else set[str]()
        attended = {let.operation.along} if isinstance(let.operation, ops.Attend) else set[str]()
        total += trips * math.prod(sizes[dim] for dim in dims | summed | attended)
    return total


def smaller_sizes(program: Program, fixed: Collection[int], unit: int = 1) -> Iterator[dict[str, int]]:
    """Sets of sizes to try: first with every dimension made smaller, then only those that are neither split into parts
    nor parts themselves. Sizes in `fixed` stay. Dimensions that are renamed to each other keep one size; new sizes are
    multiples of `unit`."""
    (func,) = program.funcs
    sizes = program.sizes(func)
    wholes: dict[str, tuple[str, ...]] = {}
    held = {dim for dim, size in sizes.items() if size <= _SMALL or size in fixed}
    same = {dim: dim for dim in sizes}
    for let, _ in lets(program, func):
        operation = let.operation
        if isinstance(operation, ops.Split | ops.Merge):
            whole = operation.source if isinstance(operation, ops.Split) else operation.target
            wholes.setdefault(whole, operation.parts)
        elif isinstance(operation, ops.Concat | ops.Take):
            held.add(operation.dim)
        elif isinstance(operation, ops.Rename):
            for source, target in operation.pairs:
                if sizes[source] != sizes[target]:
                    continue  # a part goes by the name of the whole, of which it takes a range
                same = {dim: same[target] if root == same[source] else root for dim, root in same.items()}
    for parts_too in (True, False):
        kept = held if parts_too else held.union(wholes, *wholes.values())
        kept = {root for dim, root in same.items() if dim in kept}
        made: dict[str, int] = {}

        def smaller(dim: str, kept: Collection[str] = kept, made: dict[str, int] = made) -> int:
            root = same[dim]
            if root not in made:
                whole = next((each for each in wholes if same[each] == root), None)
                made[root] = sizes[dim]
                if whole is not None and root not in kept:
                    made[root] = math.prod(map(smaller, wholes[whole]))
                elif root not in kept:
                    made[root] = unit * (2 + len(made))  # unlike most others
            return made[root]

        yield {dim: min(sizes[dim], smaller(dim)) for dim in sorted(sizes, key=lambda dim: sizes[dim])}


def alike(first: str, second: str) -> bool:
    """Tells whether two programs are the same but for sizes, letters of dimensions and numbers."""
    return _without_sizes(first) == _without_sizes(second)


def _without_sizes(text: str) -> str:
    letters: dict[str, str] = {}
    body = re.sub(r"^(mesh|dim) .*\n", "", text, flags=re.MULTILINE).strip()
    named = _DIM.sub(lambda match: letters.setdefault(match[0], f"<{len(letters)}>"), body)
    return _NUMBER.sub("#", named)


def smaller_arguments(args: Any, dims: Sequence[Sequence[str | None]], sizes: Mapping[str, int]) -> Any:
    """The example arguments as shapes and shardings alone, with these sizes for the dimensions of each leaf."""
    import jax

    leaves, tree = jax.tree_util.tree_flatten(args)
    made: list[Any] = []
    for leaf, of_leaf in zip(leaves, dims, strict=True):
        shape = tuple(1 if dim is None else sizes[dim] for dim in of_leaf)
        sharding = getattr(leaf, "sharding", None)
        named = sharding if isinstance(sharding, jax.NamedSharding) else None
        made.append(jax.ShapeDtypeStruct(shape, jax.numpy.result_type(leaf), sharding=named))
    return jax.tree_util.tree_unflatten(tree, made)
