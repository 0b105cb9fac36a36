"""A search keeps its time limit, and has an answer however short it is."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from shardwright.compiling.compile_program import load
from shardwright.cost.choosing.objective import SOLVERS, Objective
from shardwright.cost.hardware.chips import load_chip
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.found import SearchResult

PALM = str(Path(__file__).parent.parent / "examples" / "search" / "palm.shard")
FEW_SECONDS = 5.0
"""Of processor time beyond the limit: the first steps of the descent, and writing the program down."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize("limit", [0.0, 0.1, 2.0])
@pytest.mark.parametrize("dims", [{"B": 1}, {"B": 64, "L": 1}, {"B": 512, "L": 2048}], ids=str)
def test_something_that_fits_in_time(dims: dict[str, int], limit: float) -> None:
    began = time.process_time()
    found = search(load(PALM, dims=dims), Objective.on(load_chip("tpu-v4")), limit)
    assert found.fits
    assert time.process_time() - began < limit + FEW_SECONDS


TIGHT = """
mesh x=8
dim B=32 E=2048 T=512 H=8 D=64

func f(q: bf16 BHD?, k: bf16 BTD_x, v: bf16 BTD_x, wo: bf16 HDE?) -> bf16 BE? {
  s = q @[D] k
  p = softmax[T](s)
  o = p @[T] v
  return o @[HD] wo
}
"""


@pytest.mark.parametrize("solver", SOLVERS)
def test_more_memory_is_no_worse_and_none_takes_for_ever(solver: str) -> None:
    """From little more than anything takes to what the fastest takes."""
    best = float("inf")
    for memory in (1.2e6, 2.6e6, 2.9e6, 3.3e6):
        began = time.process_time()
        found = tight(memory, solver)
        assert found.status == "optimal"
        assert time.process_time() - began < 10.0
        assert found.objective_s <= best * (1 + 1e-3)
        best = found.objective_s


@pytest.mark.parametrize("solver", SOLVERS)
def test_nothing_fits(solver: str) -> None:
    with pytest.raises(DiagnosticError, match="does-not-fit"):
        tight(4e5, solver)


def tight(memory: float, solver: str) -> SearchResult:
    chip = replace(load_chip("tpu-v4"), memory_bytes=memory)
    return search(load(Source("tight", TIGHT)), replace(Objective.on(chip), solver=solver), 300.0)


GATHERED = """
mesh x=4 y=2
dim B=8 E=2048 F=64
weights { w: bf16 EF? }

func f(x: bf16 BE?) -> bf16 BF? {
  normed = x * rsqrt(sum[E](x * x))
  return normed @[E] w
}
"""


@pytest.mark.parametrize("memory", [72_273, 50_000])
@pytest.mark.parametrize("limit", [0.0, 0.5])
def test_what_fits_when_weights_stay_small_where_they_are_used(memory: int, limit: float) -> None:
    """Gathered, the weight alone takes 262,144 bytes."""
    chip = replace(load_chip("a100-80g"), memory_bytes=memory)
    assert search(load(Source("gathered", GATHERED)), Objective.on(chip), limit).fits
