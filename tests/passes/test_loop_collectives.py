"""`loop-collectives`: the same results and the same bytes, in rolls; every form, one way round and two."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from oracles.rewritten_programs import printed
from program_text import program

from shardwright.backends.jax.session import run_program
from shardwright.backends.random_inputs import random_inputs
from shardwright.backends.reference import evaluate
from shardwright.backends.simulator import simulate
from shardwright.cost.traffic import bytes_received
from shardwright.ir.completion import complete
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.ops import AllGather, ReduceScatter, Roll
from shardwright.ir.program import Let, Program
from shardwright.passes.loop_collectives import LoopCollectives, shuffling
from shardwright.passes.pipelines import explicit, parse_pipeline, run_passes
from shardwright.passes.shuffling import shuffle

FORMS = {
    "activations gathered": """
func f(x: BLE_{A}, w: EF_{A}) -> BLF_{A} {
  g = all_gather[{A}](x)
  h = g @[E] w
  return h
}""",
    "scattered": """
func f(h: BLF_{A}, w: F_{A}E) -> BLE_{A} {
  p = h @[F] w
  y = reduce_scatter[{A} -> E](p)
  return y
}""",
    "scattered over the sequence": """
func f(h: BLF_{A}, w: F_{A}E) -> BL_{A}E {
  p = h @[F] w
  y = reduce_scatter[{A} -> L](p)
  return y
}""",
    "sequence gathered": """
func f(x: BL_{A}E, w: EF_{A}) -> BLF_{A} {
  g = all_gather[{A}](x)
  h = g @[E] w
  return h
}""",
    "weights gathered along what is summed": """
func f(x: B_{A}LE, w: E_{A}F) -> B_{A}LF {
  g = all_gather[{A}](w)
  h = x @[E] g
  return h
}""",
    "weights gathered along what stays": """
func f(x: B_{A}LE, w: EF_{A}) -> B_{A}LF {
  g = all_gather[{A}](w)
  h = x @[E] g
  return h
}""",
    "int8 weights": """
func f(x: B_{A}LE, w: int8 E_{A}F, s: f32 F) -> f32 B_{A}LF {
  g = all_gather[{A}](w)
  c = convert[bf16](g)
  h = x @[E] c
  d = convert[f32](h)
  y = d * s
  return y
}""",
    "three products of one gather": """
func f(x: BLE_{A}, q: EH_{A}D, k: EK_{A}, w: EF_{A}) -> (BLH_{A}D, BLK_{A}, BLF_{A}) {
  g = all_gather[{A}](x)
  a = g @[E] q
  b = g @[E] k
  c = g @[E] w
  return a, b, c
}""",
    "two addends scattered": """
func f(h: BLF_{A}, w: F_{A}E, o: BLH_{A}D, v: H_{A}DE) -> BLE_{A} {
  p = h @[F] w
  q = o @[HD] v
  r = p + q
  y = reduce_scatter[{A} -> E](r)
  return y
}""",
    "in a loop over layers": """
weights { w: NEF_{A}
          v: NF_{A}E }
func f(x: BLE_{A}) -> BLE_{A} {
  y = loop[N](h = x) {
    g = all_gather[{A}](h)
    a = g @[E] w
    b = relu(a)
    p = b @[F] v
    s = reduce_scatter[{A} -> E](p)
    next s
  }
  return y
}""",
}
MESHES = {"x=2": "x", "x=3": "x", "x=4": "x", "x=8": "x", "x=2 y=2": "xy", "x=2 y=3": "xy"}
SIZES = "dim N=2 B=24 L=24 E=48 F=48 H=24 D=3 K=24"

MIXED = {
    "both dimensions of a weight": """
func f(x: B_xyLE, w: E_xF_y) -> B_xyLF {
  g = all_gather[xy](w)
  h = x @[E] g
  return h
}""",
    "one axis of a split dimension": """
func f(x: BLE_xy, w: E_xF_y) -> BLF_y(partialsum-x) {
  g = all_gather[y](x)
  h = g @[E] w
  return h
}""",
    "digits that do not follow each other": """
func f(x: BLE_xyz, w: E_yF_xz) -> BLF_xz(partialsum-y) {
  g = all_gather[xz](x)
  h = g @[E] w
  return h
}""",
    "an axis that the other operand lacks": """
func f(x: BLE_xy, w: EF_y) -> BLF_y {
  g = all_gather[xy](x)
  h = g @[E] w
  return h
}""",
    "scattered into two dimensions": """
func f(h: BLF_xy, w: F_xyE) -> BL_xE_y {
  p = h @[F] w
  y = reduce_scatter[x -> L, y -> E](p)
  return y
}""",
    "some of the axes scattered": """
func f(h: BLF_x(partialsum-y), w: F_xE) -> BL_yE_x {
  p = h @[F] w
  y = reduce_scatter[x -> E, y -> L](p)
  return y
}""",
    "partial over more than is scattered": """
func f(h: BLF_xz, w: F_xzE) -> BLE_x(partialsum-z) {
  p = h @[F] w
  y = reduce_scatter[x -> E](p)
  return y
}""",
}


def written(text: str, mesh: str = "x=2 y=2 z=2", axes: str = "", order: str = "") -> Program:
    f32 = text.replace("{A}", axes)
    made = program(f"mesh {mesh}\n{SIZES}\n{order}\n{f32}")
    return run_passes(complete(made), parse_pipeline("choose-digit-order"))


def looped(before: Program, options: str = "") -> Program:
    return run_passes(complete(before), parse_pipeline(f"loop-collectives{{{options}}}"))


def operations(of: Program, *kinds: type) -> list[object]:
    return [s.operation for f in of.funcs for s, _ in f.walk() if isinstance(s, Let) and isinstance(s.operation, kinds)]


def assert_same(before: Program, after: Program, seed: int = 0) -> None:
    """Unsharded and on simulated chips the same results and state; and what a chip receives, byte for byte."""
    for func in before.funcs:
        given = random_inputs(before, func, seed)
        wanted, kept = evaluate(before, func.name, given.args, given.weights, given.state)
        unsharded, state = evaluate(after, func.name, given.args, given.weights, given.state)
        on_chips = simulate(after, func.name, given.args, given.weights, given.state)
        triples = [*zip(wanted, unsharded, on_chips.results, strict=True)]
        triples += [(kept[name], state[name], on_chips.state[name]) for name in kept]
        for a, b, c in triples:
            scale = float(np.abs(a).max())
            assert float(np.abs(a - b).max()) <= 1e-12 * scale
            assert float(np.abs(b - c).max()) <= 1e-12 * scale
        assert on_chips.total == simulate(before, func.name, given.args, given.weights, given.state).total
        received = bytes_received(after, after.func(func.name)).bytes
        assert received == bytes_received(before, func).bytes == on_chips.total


@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("form", FORMS)
def test_every_form(form: str, mesh: str, ways: int) -> None:
    before = written(FORMS[form], mesh, MESHES[mesh])
    after = looped(before, f"ways={ways}")
    assert not operations(after, AllGather, ReduceScatter) or form == "in a loop over layers"
    assert {roll.shift for roll in operations(after, Roll)} == ({1} if ways == 1 else {1, -1})
    assert_same(before, after)


@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("form", MIXED)
def test_several_axes(form: str, ways: int) -> None:
    before = written(MIXED[form])
    after = looped(before, f"ways={ways}")
    assert operations(after, Roll)
    assert_same(before, after)


@pytest.mark.parametrize("form", FORMS)
def test_under_jax(form: str) -> None:
    text = FORMS[form].replace("x: ", "x: f32 ").replace("w: ", "w: f32 ")
    before = written(FORMS[form], "x=2 y=2", "xy")
    after = looped(before, "ways=2")
    for func in after.funcs:
        given = random_inputs(before, func, 3)
        wanted = simulate(before, func.name, given.args, given.weights, given.state, precision="declared")
        found, _ = run_program(after, func.name, given.args, given.weights, given.state)
        for a, b in zip(wanted.results, found, strict=True):
            scale = float(np.abs(np.asarray(a, np.float64)).max())
            print(form, np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max() / scale)


SHUFFLED = """
mesh x=2 y=2
dim N=2 B=4 L=2 E=48 F=48
weights { w: NEF_xy
          v: NF_xyE }
func f(x: BLE_xy) -> BLE_xy {
  y = loop[N](h = x) {
    g = all_gather[xy](h)
    a = g @[E] w
    b = relu(a)
    p = b @[F] v
    s = reduce_scatter[xy -> E](p)
    next s
  }
  return y
}
"""


@pytest.mark.parametrize("ways", [1, 2])
def test_shuffled(ways: int) -> None:
    before = run_passes(complete(program(SHUFFLED)), parse_pipeline("choose-digit-order"))
    options = LoopCollectives(weights="shuffled", ways=ways)
    after = run_passes(before, [options])
    print(printed(after))
    recipe = shuffling(before, options)
    given = random_inputs(before, before.funcs[0], 0)
    weights = shuffle(recipe, given.weights)
    (wanted,), _ = evaluate(before, "f", given.args, given.weights)
    found = simulate(after, "f", given.args, weights)
    assert np.abs(wanted - found.results[0]).max() <= 1e-12 * np.abs(wanted).max()
    assert found.total == simulate(before, "f", given.args, given.weights).total
