"""Permutes under JAX where what chips end with comes out even and where it does not: contents, bytes, derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from oracles.jax_agreement import check, explicit

from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.module_files import load_module
from shardwright.backends.simulation.simulator import simulate
from shardwright.cost.resharding.planner import plan
from shardwright.ir.ops import Permute
from shardwright.ir.program import Let
from shardwright.ir.types import TensorType

UNEVEN = {
    # mesh, sizes, before, statics, after
    "fewer units than chips": ("x=2 y=4", "A=4", "A_y", "A: y -> x", "A_x"),
    "one unit for all": ("x=2 y=4", "A=4 B=3", "A_yB", "A: y -> {}, B: {} -> {}", "AB"),
    "some shared, some sent": ("x=2 y=4", "A=4 B=3", "A_yB", "A: y -> x", "A_xB"),
    "between dimensions": ("x=2 y=4", "A=4 B=6", "A_yB", "A: y -> {}, B: {} -> x", "AB_x"),
    "over two axes": ("x=2 y=2 z=2", "A=4 B=6", "A_xyB_z", "A: xy -> z, B: z -> {}", "A_zB"),
    "copies before": ("x=2 y=4", "A=4 B=5", "A_xB", "A: x -> y", "A_yB"),
}


def program(case: str, dtype: str = "f32") -> str:
    mesh, sizes, before, statics, after = UNEVEN[case]
    if "B" in sizes and "B" not in before:
        before, after = f"{before}B", f"{after}B"
    statics = statics.replace(", B: {} -> {}", "")
    return (
        f"mesh {mesh}\ndim {sizes}\nfunc f(v: {dtype} {before}) -> {dtype} {after} {{\n"
        f"  w: {dtype} {after} = permute[{statics}](v)\n  return w\n}}\n"
    )


@pytest.mark.parametrize("case", UNEVEN)
def test_contents(case: str) -> None:
    check(program(case))


@pytest.mark.parametrize("dtype", ["bf16", "f16", "int8", "int4", "int32", "uint32", "bool"])
@pytest.mark.parametrize("case", ["fewer units than chips", "some shared, some sent"])
def test_number_formats(case: str, dtype: str) -> None:
    check(program(case, dtype))


@pytest.mark.parametrize("case", UNEVEN)
def test_bytes_are_those_that_the_chip_with_least_lacks(case: str) -> None:
    made = explicit(program(case))
    func = made.func("f")
    (statement,) = (s for s in func.body if isinstance(s, Let) and isinstance(s.operation, Permute))
    before, after = func.params[0].type, statement.result.type
    assert isinstance(before, TensorType)
    assert isinstance(after, TensorType)
    shape = [dim.size for dim in before.dims]
    received = simulate(made, "f", {"v": np.zeros(shape, np.float32)}).total
    assert received == plan(before, after, made.mesh, dict.fromkeys("AB", made.mesh.axes)).lower_bound_bytes


def built(case: str) -> tuple[Any, np.ndarray]:
    made = explicit(program(case))
    module = load_module(emit(made))
    shape = [dim.size for dim in made.func("f").params[0].type.dims]
    return module.build_f(module.make_mesh()), np.random.default_rng(3).standard_normal(shape).astype(np.float32)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", UNEVEN)
def test_derivatives_are_those_of_the_identity(case: str) -> None:
    """A permute leaves every number as it is, so that tangents and cotangents come through as they are, exactly."""
    jax = pytest.importorskip("jax")
    f, v = built(case)
    d = 2 * v + 1

    def weighted(v: Any) -> Any:
        return (f(v) * d).sum()

    def cubes(v: Any) -> Any:
        return (jax.checkpoint(f)(v) ** 3).sum()

    np.testing.assert_array_equal(f(v), v)
    np.testing.assert_array_equal(jax.vjp(f, v)[1](d)[0], d)
    np.testing.assert_array_equal(jax.jvp(f, (v,), (d,))[1], d)
    np.testing.assert_array_equal(jax.jit(jax.grad(weighted))(v), d)
    np.testing.assert_allclose(jax.grad(cubes)(v), 3 * v**2, rtol=1e-6)


@pytest.mark.parametrize("case", ["fewer units than chips", "some shared, some sent"])
def test_batches_and_second_derivatives(case: str) -> None:
    jax = pytest.importorskip("jax")
    f, v = built(case)

    def cubes(v: Any) -> Any:
        return (f(v) ** 3).sum()

    np.testing.assert_array_equal(jax.vmap(f)(np.stack([v, 2 * v])), np.stack([v, 2 * v]))
    along = jax.jvp(jax.grad(cubes), (v,), (np.ones_like(v),))[1]
    np.testing.assert_allclose(along, 6 * v, rtol=1e-6)


def test_integers_beside_what_is_differentiated() -> None:
    """An integer value that is permuted has no tangent, and does not keep others from having theirs."""
    jax = pytest.importorskip("jax")
    text = """mesh x=2 y=4
dim A=4
func f(v: f32 A_x, m: int32 A_y) -> f32 A_x {
  w: int32 A_x = permute[A: y -> x](m)
  c = convert[f32](w)
  r = v * c
  return r
}
"""
    check(text)
    module = load_module(emit(explicit(text)))
    f = module.build_f(module.make_mesh())
    m = np.array([1, 2, 3, 4], np.int32)

    def total(v: Any) -> Any:
        return f(v, m).sum()

    np.testing.assert_array_equal(jax.grad(total)(np.ones(4, np.float32)), m.astype(np.float32))
