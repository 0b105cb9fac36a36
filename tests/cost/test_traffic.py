"""What a program receives: movement by movement, loops by their trips, as the simulator counts it."""

from __future__ import annotations

import pytest
from oracles.example_programs import NAMES, load, small
from program_text import program

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.simulator import simulate
from shardwright.cost.movements.traffic import bytes_received
from shardwright.passes.pipelines import explicit

LAYERS = """
mesh x=2 y=4
dim B=8 E=16 N=3
func f(a: f32 BE_x, w: f32 NBE_xy) -> f32 BE_x {
  y: f32 BE_x = loop[N](h: f32 BE_x = a) {
    whole: f32 BE = all_gather[x](h)
    rows: f32 BE_xy = slice[xy -> E](whole)
    s: f32 BE_xy = rows + w
    wide: f32 BE_x = all_gather[y](s)
    next wide
  }
  return y
}
"""


def test_a_loop_counts_by_its_trips() -> None:
    made = program(LAYERS)
    traffic = bytes_received(made, made.func("f"))
    assert [(m.operation.keyword, m.bytes_once, m.trips) for m in traffic.movements] == [
        ("all_gather", 8 * 8 * 4, 3),
        ("slice", 0, 3),
        ("all_gather", 3 * 8 * 2 * 4, 3),
    ]
    assert traffic.bytes == 3 * (256 + 192)


def test_a_collective_over_one_chip_is_none() -> None:
    made = program("""
mesh x=1
dim B=8
func f(a: f32 B_x) -> f32 B {
  b: f32 B = all_gather[x](a)
  return b
}
""")
    traffic = bytes_received(made, made.func("f"))
    assert (traffic.bytes, len(traffic.movements)) == (0, 1)


def test_holes_are_refused() -> None:
    made = program("""
mesh x=2
dim B=8
func f(a: f32 B_x) -> f32 B {
  c: f32 B? = a + a
  b: f32 B = all_gather[x](c)
  return b
}
""")
    with pytest.raises(TypeError, match=r"^c: f32 B\? still has holes$"):
        bytes_received(made, made.func("f"))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NAMES)
def test_as_the_simulator_counts(name: str) -> None:
    made = explicit(load(name, small(name)))
    for func in made.funcs:
        inputs = random_inputs(made, func, seed=0)
        simulated = simulate(made, func.name, inputs.args, inputs.weights, inputs.state)
        assert bytes_received(made, func).bytes == simulated.total
