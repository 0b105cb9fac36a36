"""The edges of emitted modules: what they take and return, on which meshes, and that nothing else moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from oracles.example_programs import NAMES, in_format, load, small
from oracles.jax_agreement import check, random_array
from oracles.random_programs.texts import TYPED, surface_program
from program_text import program
from versus_xla import compile_ours

from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.module_files import load_module
from shardwright.backends.jax.session import run_program
from shardwright.backends.number_formats import numpy_dtype
from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.program import Func, Let, Program
from shardwright.ir.types import DType
from shardwright.ir.walk import statements
from shardwright.passes.pipelines import Edges, explicit

# ---------------------------------------------------------------- what is compiled moves what the text says


def counted(compiled: Program, func: Func, edges: Edges = "global") -> tuple[int, int]:
    """Bytes that a device receives: in the compiled module, edges included, and in the text."""
    inputs = random_inputs(compiled, func, seed=0)
    ours = compile_ours(compiled, func.name, inputs, in_digits=edges == "digits")
    return ours.counts.bytes, bytes_received(compiled, func).bytes


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("13")])
def test_examples_move_what_their_texts_say(name: str) -> None:
    compiled = explicit(in_format(load(name, small(name)), "f16"))
    for func in compiled.funcs:
        compiled_bytes, written = counted(compiled, func)
        assert compiled_bytes == written, func.name


FEEDFORWARD = """mesh x=2 y=2 z=2
dim B=8 L=16 E=64 F=256
func ffn(x: f16 {0}, w_in: f16 E_xF_yz, w_out: f16 F_yzE_x) -> f16 {0} {{
  h: f16 {1} = x @ w_in
  y: f16 {0} = gelu(h) @ w_out
  return y
}}
"""
STRIDED = {
    "x gathered": FEEDFORWARD.format("B_xLE_yz", "B_xLF_yz"),
    "xy gathered": FEEDFORWARD.format("B_xyLE_z", "B_xyLF_z"),
    "pinned": FEEDFORWARD.format("B_xLE_yz", "B_xLF_yz").replace("E=64", "E=64 order x y z"),
    "two dimensions": """mesh x=2 y=2
dim A=8 B=12
dim A=8 order x y
dim B=12 order y x
func f(a: f32 A_yB_x) -> (f32 A_yB_x, f32 A_xB_y, f32 A_y) {
  b = a + 1
  c: f32 A_xB_y = b
  return a, c, sum[B](a)
}
""".replace("dim A=8 B=12\n", ""),
    "layers taken": """mesh x=2 y=2
dim N=3 E=16 F=8
dim E=16 order x y
func ffn(w: f32 NE_yF) -> (f32 EF, f16 EF) {
  one: f32 E_yF = take[N, 1](w)
  two: f16 E_yF = convert[f16](take[N, 2](w))
  return one, two
}
""".replace(" E=16 F=8\n", " F=8\n"),
    "returned twice": """mesh x=2 y=2
dim A=16 order x y
func f(a: f32 A_y, b: f32 A_xy) -> (f32 A_y, f32 A_y, f32 A_xy) {
  c = a * 2
  return c, c, b
}
""",
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("edges", ["global", "digits"])
@pytest.mark.parametrize("text", STRIDED.values(), ids=STRIDED)
def test_strided_values_move_what_the_text_says(text: str, edges: Edges) -> None:
    source = program(text)
    compiled = explicit(source, edges=edges)
    (func,) = compiled.funcs
    compiled_bytes, written = counted(compiled, func, edges)
    assert compiled_bytes == written
    permuted = any(isinstance(s, Let) and s.operation.keyword == "permute" for s in statements(func.body))
    assert permuted is (edges == "global" and func.name != "ffn")  # gathers and scatters take and leave blocks
    inputs = random_inputs(source, source.funcs[0], seed=1)
    found, _ = run_program(compiled, func.name, inputs.args)
    wanted, _ = evaluate(source, func.name, inputs.args, {}, {}, "declared")
    for ours, theirs in zip(found, wanted, strict=True):
        scale = np.abs(np.asarray(theirs, np.float64)).max()
        np.testing.assert_allclose(np.asarray(ours, np.float64), theirs, rtol=0, atol=2e-3 * scale)


def test_addends_that_chips_do_not_divide_are_counted_alike() -> None:
    """Chips along x=3 share 4 elements: the one with two of them receives 2 addends of each, then the others' sums."""
    text = "mesh x=3 y=2\ndim A=6 B=8\nfunc f(a: f32 A_xB) -> f32 B_y { return sum[A](a) }"
    compiled = explicit(program(text))
    assert counted(compiled, compiled.funcs[0]) == (24, 24)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(12))
def test_random_programs_move_no_more_than_their_texts_say(seed: int) -> None:
    """XLA leaves out what nobody needs, here and there; `bench/edges.py` counts more programs. On CPUs it widens bf16
    and 8-bit floats, which tests/targets counts."""
    compiled = explicit(in_format(surface_program(seed, replace(TYPED, eights=False)), "f16"))
    for func in compiled.funcs:
        compiled_bytes, written = counted(compiled, func)
        assert compiled_bytes <= written


# ---------------------------------------------------------------- specs


LAYERS = """mesh x=2 y=4
dim N=2 B=8 E=16 T=4
dim E=16 order x y
weights { w: f32 NE_yF
          s: f32 NE_y }
state { k: f32 NB_xT
        n: int32 }
func step(x: f32 B_xyE, at: int32) -> (f32 B_xE_y, f32 B_xy) {
  y: f32 B_xyE = x * 2
  z: f32 B_xE_y = y
  later = n + at
  set n = later
  return z, sum[E](x)
}
func one(x: f32 B_xE) -> f32 B_x {
  return sum[E](x)
}
""".replace("NE_yF", "NE_y").replace("B=8 E=16 T=4", "B=8 T=4")


def built(text: str, edges: Edges = "global") -> tuple[Program, Any]:
    compiled = explicit(program(text), edges=edges)
    return compiled, load_module(emit(compiled, in_digits=edges == "digits"))


def test_specs_are_of_arrays_as_functions_take_and_return_them() -> None:
    import jax
    from jax.sharding import NamedSharding
    from jax.sharding import PartitionSpec as P

    compiled, module = built(LAYERS)
    assert {"step": (P(("x", "y")), P()), "one": (P("x"),)} == module.IN_SPECS
    assert {"step": (P("x", "y"), P(("x", "y"))), "one": (P("x"),)} == module.OUT_SPECS
    assert module.WEIGHTS["w"][::2] == ((2, 2, 4, 2), P(None, None, "y"))
    mesh = module.make_mesh()
    rng = np.random.default_rng(0)
    arrays = {v.name: random_array(v.type, rng) for v in (*compiled.weights, *compiled.state)} | {"n": np.int32(5)}
    weights, state = (
        module.put(
            {n: a.reshape(module.WEIGHTS[n][0]) for n, a in arrays.items() if n in module.WEIGHTS}, module.WEIGHTS, mesh
        ),
        module.put(arrays, module.STATE, mesh),
    )
    x, at = np.arange(128, dtype=np.float32).reshape(8, 16), np.int32(3)
    placed = [
        jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in zip((x, at), module.IN_SPECS["step"], strict=True)
    ]
    step = module.build_step(mesh)
    compiled_step = step.lower(weights, state, *placed).compile()
    for array, wanted in zip(placed, compiled_step.input_shardings[0][2:], strict=True):
        assert array.sharding.is_equivalent_to(wanted, array.ndim)
    results, new = step(weights, state, *placed)
    for array, spec in zip(results, module.OUT_SPECS["step"], strict=True):
        assert array.sharding.is_equivalent_to(NamedSharding(mesh, spec), array.ndim)
    np.testing.assert_array_equal(results[0], 2 * x)
    np.testing.assert_array_equal(results[1], x.sum(1))
    assert new["n"] == arrays["n"] + np.int32(3)


def test_digits_have_a_dimension_each() -> None:
    from jax.sharding import PartitionSpec as P

    _, module = built(STRIDED["returned twice"], "digits")
    assert {"f": (P(None, "y"), P(("x", "y")))} == module.IN_SPECS
    assert {"f": (P(None, "y"), P(None, "y"), P(("x", "y")))} == module.OUT_SPECS
    a = np.arange(16, dtype=np.float32)
    twice, again, b = module.build_f(module.make_mesh())(a.reshape(2, 2, 4), a)
    np.testing.assert_array_equal(twice, (2 * a).reshape(2, 2, 4))
    np.testing.assert_array_equal(again, twice)
    np.testing.assert_array_equal(b, a)
    assert "    f: takes a: f32 A_y as (2, 2, 4)" in (module.__doc__ or "").splitlines()


# ---------------------------------------------------------------- meshes


def mesh_of(sizes: dict[str, int], kind: str = "Explicit") -> Any:
    import jax

    types = (getattr(jax.sharding.AxisType, kind),) * len(sizes)
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=types, devices=jax.devices()[: np.prod([*sizes.values()])]
    )


@pytest.mark.parametrize("sizes", [{"x": 4, "y": 2}, {"x": 2, "y": 2}, {"x": 2, "y": 1}, {"x": 2}, {"a": 2, "b": 4},
                                   {"x": 2, "y": 2, "z": 2}])  # fmt: skip
@pytest.mark.parametrize("kind", ["Explicit", "Auto"])
def test_a_mesh_of_other_sizes_is_refused(sizes: dict[str, int], kind: str) -> None:
    _, module = built(LAYERS)
    with pytest.raises(ValueError, match="build_one is compiled for the mesh") as caught:
        module.build_one(mesh_of(sizes, kind))
    assert str(caught.value) == (
        f"build_one is compiled for the mesh {{'x': 2, 'y': 4}}, and this one is {sizes}: take one of these sizes, as"
        " make_mesh() makes it, or compile the program for this one (--mesh)"
    )


@pytest.mark.one_in(4)
@pytest.mark.parametrize("sizes", [{"x": 2, "y": 4}, {"y": 4, "x": 2}, {"x": 2, "z": 1, "y": 4}])
@pytest.mark.parametrize("kind", ["Explicit", "Auto"])
@pytest.mark.parametrize("edges", ["global", "digits"])
def test_meshes_of_the_same_sizes_are_taken(sizes: dict[str, int], kind: str, edges: Edges) -> None:
    """In any order, with further axes of one chip, with arrays from anywhere, and inside one's own jit."""
    import jax
    from jax.sharding import NamedSharding

    text = """mesh x=2 y=4
dim A=16 B=8
dim A=16 order x y
func f(a: f32 A_yB, b: f32 A_xyB, c: f32 AB_xy) -> (f32 A_yB, f32 AB_xy, f32 A_xB_y, f32 A) {
  d = a * 2
  e: f32 AB_xy = b
  g: f32 A_xB_y = c
  return d, e, g, sum[B](g)
}
""".replace("A=16 B=8", "B=8")
    compiled, module = built(text, edges)
    mesh = mesh_of(sizes, kind)
    f = module.build_f(mesh)
    given = [random_array(v.type, np.random.default_rng(i)) for i, v in enumerate(compiled.funcs[0].params)]
    a, b, c = given
    strided = (2, 4, 2, 8) if edges == "digits" else (16, 8)
    args = [a.reshape(strided), b, c]
    placed = [jax.device_put(x, NamedSharding(mesh, s)) for x, s in zip(args, module.IN_SPECS["f"], strict=True)]

    def inside(*args: Any) -> Any:
        return [2 * y for y in f(*args)]

    for arrays in (args, [jax.numpy.asarray(x) for x in args], placed):
        for function, scale in ((f, 1), (jax.jit(inside), 2)):
            with jax.set_mesh(mesh):
                under = function(*arrays)
            for results in (function(*arrays), under):
                for found, wanted in zip(results, (2 * a, b, c, c.sum(1)), strict=True):
                    np.testing.assert_allclose(np.asarray(found).reshape(wanted.shape), scale * wanted, rtol=1e-5)
    for array, spec in zip(f(*placed), module.OUT_SPECS["f"], strict=True):
        assert array.sharding.is_equivalent_to(NamedSharding(mesh, spec), array.ndim)


@pytest.mark.parametrize("kind", ["Explicit", "Auto"])
def test_state_is_donated_on_every_mesh(kind: str) -> None:
    _, module = built(LAYERS)
    mesh = mesh_of({"x": 2, "y": 4}, kind)
    weights = module.put({n: np.zeros(s, np.float32) for n, (s, _, _) in module.WEIGHTS.items()}, module.WEIGHTS, mesh)
    state = module.zero_state(mesh)
    _, new = module.build_step(mesh)(weights, state, np.ones((8, 16), np.float32), np.int32(2))
    assert int(new["n"]) == 2
    assert state["n"].is_deleted()


# ---------------------------------------------------------------- partial values


PARTIAL = """mesh x=2 y=2
dim A=4 B=6
func f(a: {0} AB(partial{1}-x), b: {0} (partial{1}-xy)) -> ({0} AB(partial{1}-x), {0} AB_x, {0} (partial{1}-xy)) {{
  {2}
  return a, c, b
}}
"""


@pytest.mark.parametrize("dtype", ["f32", "f16", "int32"])
def test_addends_come_in_and_go_out_as_they_are(dtype: str) -> None:
    from jax.sharding import PartitionSpec as P

    text = PARTIAL.format(dtype, "sum", "c = reduce_scatter[x -> B](a)")
    compiled, module = built(text)
    assert {"f": (P("x"), P("x", "y"))} == module.IN_SPECS
    assert {"f": (P("x"), P(None, "x"), P("x", "y"))} == module.OUT_SPECS
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, shape).astype(numpy_dtype(DType(dtype))) for shape in ((2, 4, 6), (2, 2)))
    found = module.build_f(module.make_mesh())(a, b)
    for array, wanted in zip(found, (a, a.sum(0), b), strict=True):
        np.testing.assert_array_equal(np.asarray(array), wanted)
    check(text)
    compiled_bytes, written = counted(compiled, compiled.funcs[0])
    assert compiled_bytes == written


def test_maximands_too() -> None:
    text = PARTIAL.format("f32", "max", "c_whole = all_reduce[x](a)\n  c = slice[x -> B](c_whole)")
    compiled, _ = built(text)
    check(text)
    compiled_bytes, written = counted(compiled, compiled.funcs[0])
    assert compiled_bytes == written


def test_weights_and_state_of_addends() -> None:
    check("""mesh x=2 y=2
dim A=4
weights { w: f32 A(partialsum-x) }
state { s: f32 A(partialsum-y)
        n: int32 }
func f(a: f32 A) -> f32 A {
  v = all_reduce[x](w)
  t = all_reduce[y](s)
  y = a * v
  u = y + t
  p = as_partial[y](u)
  set s = p
  return u
}
""")
