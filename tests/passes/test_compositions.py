"""Passes in many orders: each finds its pattern after the others, and results stay those of the program before."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import permutations

import numpy.typing as npt
import pytest
from oracles.example_programs import load, small
from oracles.rewritten_programs import Change, largest_error, printed
from program_text import program

from shardwright.ir.program import Program
from shardwright.passes.base import Pass
from shardwright.passes.fuse_parallel_block import FuseParallelBlock
from shardwright.passes.packing import pack, packing
from shardwright.passes.pipelines import parse_pipeline, run_passes
from shardwright.passes.quantize_weights import QuantizeWeights, quantization, quantize

Arrays = Mapping[str, npt.ArrayLike]

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


def applied(before: Program, pipeline: str) -> tuple[Program, Change]:
    """The program after the passes, and what they do to its arrays."""
    changes: list[Change] = []
    after = before
    for made in parse_pipeline(pipeline):
        changes.append(change_of(made, after))
        after = run_passes(after, [made])

    def change(arrays: Arrays, func: str | None = None) -> Arrays:
        for one in changes:
            arrays = one(arrays, func)
        return arrays

    return after, change


def change_of(made: Pass, before: Program) -> Change:
    match made:
        case FuseParallelBlock():
            recipe = packing(before)
            return lambda arrays, func=None: pack(recipe, arrays, func)
        case QuantizeWeights(bits=bits, group=group):
            stored = quantization(before, bits, group)
            return lambda arrays, func=None: quantize(stored, arrays, func)
        case _:
            return lambda arrays, func=None: arrays


@pytest.mark.parametrize("order", list(permutations(range(4))), ids=lambda order: "".join(map(str, order)))
def test_a_block(order: tuple[int, ...]) -> None:
    passes = ("fuse-parallel-block", "quantize-weights", "reduce-into{dim=sequence}", "weight-gather{axes=x}")
    before = program(BLOCK)
    after, change = applied(before, ",".join(passes[i] for i in order))
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
