"""Random programs of one rename of two dimensions among other values that are split, and whether orders of digits agree
with it, by trying them all."""

from __future__ import annotations

import random
from itertools import permutations, product

from shardwright.ir.ops import Rename
from shardwright.ir.program import Program
from shardwright.ir.strategies import digits_fit
from shardwright.ir.types import TensorType
from shardwright.ir.walk import lets_in


def renamed_program(seed: int) -> str:
    """The text of a program; of some the orders of a dimension on either side are pinned."""
    draw = random.Random(seed)
    axes = draw.choice(("xy", "xy", "xyz"))

    def layout(dims: str) -> str:
        of = {axis: draw.choice([*dims, ""]) for axis in axes}
        splits = ((dim, "".join(axis for axis in axes if of[axis] == dim)) for dim in dims)
        return "".join(f"{dim}_{split}" if split else dim for dim, split in splits)

    before = layout("AB")
    after = before.replace("A", "F").replace("B", "C")
    others = ", ".join(
        f"v{i}: f32 {layout(draw.choice(('A', 'B', 'F', 'C', 'FC')))}" for i in range(draw.randint(1, 3))
    )
    mesh = " ".join(f"{axis}=2" for axis in axes)
    pinned = [f"order {' '.join(draw.sample(axes, len(axes)))}" if draw.random() < 0.2 else "" for _ in range(2)]
    return f"""
        mesh {mesh}
        dim A=8 B=8 {pinned[0]} F=8 C=8 {pinned[1]}
        func f(a: f32 {before}, {others}) -> f32 {after} {{
          r: f32 {after} = rename[A -> F, B -> C](a)
          return r
        }}"""


def orders_agree(program: Program) -> bool:
    """Tells whether there are orders of all dimensions under which the rename keeps every index on its chip."""
    func = program.funcs[0]
    (let,) = lets_in(func.body)
    assert isinstance(let.operation, Rename)
    kinds = [value.type for value in (*func.params, let.result)]
    used: dict[str, set[str]] = {}
    for kind in kinds:
        for dim, axes in zip(kind.dims, kind.splits, strict=True):
            used.setdefault(dim.name, set()).update(axes or ())
    pinned = {name: program.dim(name).order for name in used}
    ways = [[order] if (order := pinned[name]) is not None else permutations(sorted(used[name])) for name in used]
    operand, result = kinds[0], let.result.type
    assert isinstance(operand, TensorType)
    assert isinstance(result, TensorType)
    return any(
        digits_fit(let.operation, operand, result, dict(zip(used, orders, strict=True)), program.mesh)
        for orders in product(*ways)
    )
