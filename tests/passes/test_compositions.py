"""Passes in many orders: each finds its pattern after the others, and results stay those of the program before."""

from __future__ import annotations

from itertools import permutations

import pytest
from oracles.array_changes import applied
from oracles.example_programs import load, small
from oracles.rewritten_programs import largest_error, printed
from program_text import program

BLOCK = """
mesh x=2 y=2
dim B=8 L=8 E=64 F=128 H=8 D=4
weights {
  ln: f32 E_xy
  wq: E_xH_yD
  w_in: E_xF_y
  wo: H_yDE_x
  w_out: F_yE_x
}
func block(x: BLE_xy) -> BLE_xy {
  a = rmsnorm[E, eps=1e-6](x, ln)
  q: BLH_xyD = a @[E] wq
  h: BLF_xy = a @[E] w_in
  attended: BLE_xy = q @[HD] wo
  mixed: BLE_xy = gelu(h) @[F] w_out
  y: BLE_xy = x + attended + mixed
  return y
}
"""


ORDERS = ["".join(order) for order in permutations("0123")]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("order", ORDERS)
def test_a_block(order: str) -> None:
    passes = ("fuse-parallel-block", "quantize-weights", "reduce-into{dim=sequence}", "weight-gather{axes=x}")
    before = program(BLOCK)
    after, change = applied(before, ",".join(passes[int(i)] for i in order))
    assert 0 < largest_error(before, after, change) < 0.01
    assert program(printed(after)) == after
    kinds = {value.name: str(value.type).split()[0] for value in after.weights}
    assert {kind for name, kind in kinds.items() if name.startswith("w") and not name.endswith("_scale")} == {"int8"}


@pytest.mark.parametrize(
    "pipeline",
    [
        "fuse-parallel-block,quantize-weights{bits=4},reduce-into{dim=batch}",
        "quantize-weights{bits=4},reduce-into{dim=batch},fuse-parallel-block",
        "decompose,fuse-parallel-block,cleanup,quantize-weights{bits=4}",
    ],
)
def test_int4(pipeline: str) -> None:
    before = program(BLOCK)
    after, change = applied(before, pipeline)
    assert 0 < largest_error(before, after, change) < 0.15


@pytest.mark.parametrize("name", ["09_serial_block", "10_palm_parallel_block"])
def test_an_example(name: str) -> None:
    before = load(name, small(name))
    after, change = applied(before, "fuse-parallel-block,quantize-weights,reduce-into{dim=batch}")
    assert 0 < largest_error(before, after, change) < 0.01
