"""`split-collectives`: collectives over few axes, digits in blocks between them, the same bytes and results."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from oracles.rewritten_programs import printed
from program_text import program

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import simulate
from shardwright.cost.movements.traffic import bytes_received
from shardwright.passes.compiling.split_collectives import SplitCollectives
from shardwright.passes.pipelines import explicit, run_passes

WHOLE_TORUS = """
mesh x=2 y=2 z=2
dim B=4 E=16 order z x y F=8
func gather(a: BE_xyz, w: E_yF_xz) -> (BE, EF) {
  g: BE = all_gather[xyz](a)
  v: EF = all_gather[xyz](w)
  return g, v
}
func scatter(a: BE_xyz, w: E_xyzF) -> BF_xyz {
  h: BF(partialsum-xyz) = a @[E] w
  y: BF_xyz = reduce_scatter[xyz -> F](h)
  return y
}
func spread(a: BE(partialsum-xyz)) -> B_yE_xz {
  y: B_yE_xz = reduce_scatter[y -> B, xz -> E](a)
  return y
}
func both(w: B_yE_xz) -> BE {
  v: BE = all_gather[xyz](w)
  return v
}
func few(a: BE_xz) -> BE {
  g: BE = all_gather[xz](a)
  return g
}
"""


@pytest.mark.parametrize("axes", [1, 2])
def test_before_and_after(axes: int, golden: Callable[[str, str], None]) -> None:
    made = explicit(program(WHOLE_TORUS), then=[SplitCollectives(axes, axes)])
    golden(f"passes/split_collectives_{axes}.shard", printed(made))


@pytest.mark.parametrize("axes", [0, 1, 2, 3])
def test_the_same_bytes_and_results(axes: int) -> None:
    before = program(WHOLE_TORUS)
    whole, split = explicit(before), explicit(before, then=[SplitCollectives(axes, axes)])
    assert (whole == split) == (axes == 0)
    for func in before.funcs:
        given = random_inputs(before, func, 0)
        wanted, _ = evaluate(before, func.name, given.args)
        run = simulate(split, func.name, given.args)
        for expected, found in zip(wanted, run.results, strict=True):
            assert np.abs(expected - found).max() <= 1e-12 * np.abs(expected).max()
        written = [bytes_received(made, made.func(func.name)).bytes for made in (whole, split)]
        assert written[0] == written[1]


def test_axes_of_one_chip_count_for_nothing() -> None:
    text = "mesh w=2 x=2 y=1 z=2\ndim B=4 E=16\nfunc f(a: BE_xyz) -> BE { g: BE = all_gather[xyz](a)\n return g }"
    whole = explicit(program(text))
    assert run_passes(whole, [SplitCollectives(2, 2)]) == whole
    assert "all_gather[yz](a)" in printed(run_passes(whole, [SplitCollectives(1, 1)]))


def test_a_mesh_of_one_chip_has_nothing_to_split() -> None:
    whole = program("mesh x=1\ndim B=4\nfunc f(a: B_x) -> B { g: B = all_gather[x](a)\n return g }")
    assert run_passes(whole, [SplitCollectives(2, 2)]) == whole


def test_a_dimension_without_digits_for_what_would_lie_between_is_one_step() -> None:
    """12 has no room for x, y and z: E_yz lies in blocks, and E_y has the digit of y, behind that of x."""
    whole = program("""
        mesh x=2 y=2 z=2
        dim B=4 E=12 order x y z
        func f(a: BE_yz, b: B_xE_y) -> (BE, B_xE_y) {
          g: BE = all_gather[yz](a)
          return g, b
        }""")
    assert run_passes(whole, [SplitCollectives(1, 1)]) == whole


@pytest.mark.parametrize(("mesh", "axes"), [("x=2 y=2", 2), ("x=2 y=1 z=2", 3), ("x=2 y=2 z=2", 3)])
def test_none_is_over_all_chips(mesh: str, axes: int) -> None:
    names = "".join(part[0] for part in mesh.split())
    text = f"mesh {mesh}\ndim B=4 E=16\nfunc f(a: BE_{names}) -> BE {{ g: BE = all_gather[{names}](a)\n return g }}"
    whole = explicit(program(text))
    made = run_passes(whole, [SplitCollectives(axes, axes)])
    assert f"all_gather[{names}]" in printed(whole)
    assert f"all_gather[{names}]" not in printed(made)
    assert run_passes(whole, [SplitCollectives(0, 0)]) == whole


def test_one_axis_cannot_be_parted() -> None:
    text = "mesh x=8\ndim B=4 E=16\nfunc f(a: BE_x) -> BE { g: BE = all_gather[x](a)\n return g }"
    whole = explicit(program(text))
    assert run_passes(whole, [SplitCollectives(1, 1)]) == whole


def test_strided_dimensions_stay() -> None:
    """What is gathered of a parameter comes in blocks, which a part of its axes alone would not."""
    text = "mesh w=2 x=2 y=2\ndim B=4 E=16 order w x y\nfunc f(a: BE_xy) -> BE { return a }"
    whole = explicit(program(text))
    assert run_passes(whole, [SplitCollectives(1, 1)]) == whole


def test_gathers_and_scatters_apart() -> None:
    whole = explicit(program(WHOLE_TORUS))
    made = printed(run_passes(whole, [SplitCollectives(gathers=0, scatters=1)]))
    assert "all_gather[xyz](a)" in made
    assert "reduce_scatter[xyz -> F](h)" not in made
