"""Plans run under JAX: a sample of all pairs of layouts, many in one program, each value back as it was."""

from __future__ import annotations

import random

import numpy as np
import pytest
from oracles.layout_pairs import mesh_of, roomy, type_of
from oracles.layout_search import SUM, layouts

from shardwright.backends.jax.session import run_program
from shardwright.cost.resharding.planner import plan
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType, TensorType
from shardwright.passes.compiling.choose_digit_order import ChooseDigitOrder
from shardwright.passes.compiling.insert_moves import InsertMoves
from shardwright.passes.pipelines import run_passes

PAIRS = 24
CASES = [
    ((2, 2, 2), 1),
    ((2, 2, 2), 2),
    ((2, 2, 2), 3),
    ((4, 2), 2),
    ((4, 2), 3),
    ((2, 3), 2),
    ((1, 2, 4), 2),
    ((8,), 3),
]


def program_of(sizes: tuple[int, ...], pairs: list[tuple[TensorType, TensorType]]) -> Program:
    """A function of one value for each pair, which it gives back in the other layout."""
    mesh = mesh_of(sizes)
    shape = pairs[0][0].shape
    lines = [f"mesh {mesh}", "dim " + " ".join(f"{dim.name}={dim.size}" for dim in shape.dims)]
    params = ", ".join(f"v{i}: {source}" for i, (source, _) in enumerate(pairs))
    lines.append(f"func f({params}) -> ({', '.join(str(target) for _, target in pairs)}) {{")
    lines += [f"  w{i}: {target} = v{i}" for i, (_, target) in enumerate(pairs)]
    lines.append(f"  return {', '.join(f'w{i}' for i in range(len(pairs)))}")
    return elaborate(parse(Source("pairs", "\n".join([*lines, "}"]) + "\n")))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("sizes", "n_dims"), CASES)
def test_plans_under_jax(sizes: tuple[int, ...], n_dims: int) -> None:
    pick = random.Random(f"{sizes} {n_dims}")
    rows = layouts(len(sizes), n_dims, (SUM,))
    extents = roomy(sizes, n_dims)
    pairs = [
        (type_of(pick.choice(rows), extents, DType.INT32), type_of(pick.choice(rows), extents, DType.INT32))
        for _ in range(PAIRS)
    ]
    surface = program_of(sizes, pairs)
    compiled = run_passes(surface, (InsertMoves(), ChooseDigitOrder()))
    assert len(compiled.funcs[0].body) >= sum(len(plan(a, b, compiled.mesh).steps) > 0 for a, b in pairs)
    rng = np.random.default_rng(n_dims)
    values = {f"v{i}": rng.integers(-1000, 1000, extents, dtype=np.int32) for i in range(PAIRS)}
    results, _ = run_program(compiled, "f", values)
    for (name, value), result, (source, target) in zip(values.items(), results, pairs, strict=True):
        np.testing.assert_array_equal(result, value, f"{name}: {source} -> {target}")
