"""Cases of a program under a memory limit: prices, and bounds, against the graphs and the fillings themselves."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from search_fillings import every_filling, homes, least, limits_that_bind, products

from shardwright.compiling.compile_program import load
from shardwright.cost.choosing.factors import FORBIDDEN, TableFactor
from shardwright.cost.choosing.kernel_shares import structure_of
from shardwright.cost.choosing.layout_problem import PlacementOptions
from shardwright.cost.choosing.layout_program.cases import Case, Cases
from shardwright.cost.choosing.layout_program.priced_graph import PricedGraph
from shardwright.cost.choosing.layout_program.solver import Outcome, ProgramSolve
from shardwright.cost.choosing.memory_prices import MemoryPrices
from shardwright.cost.choosing.program_problems import ProgramProblems
from shardwright.cost.choosing.time_placement import NANOSECONDS, TimeSolver
from shardwright.cost.hardware.chips import load_chip
from shardwright.ir.diagnostics import Source
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.pipelines import run_passes

CHIP = load_chip("tpu-v4")
LOOP = """
mesh x=4
dim N=4 B={B} E={E} F={F}
weights {{ w: {w}
          v: {v} }}
func f(x: B_xE) -> BE_x {{
  {carried} = loop[N]({carry} = {x}) {{
    {body}
  }}
  {result}
}}
"""
OPEN = {
    "w": "NE_?F_?", "v": "NF_?E_?", "carried": "y: BE?", "carry": "h: B_?E_?", "x": "x",
    "body": "g = h @[E] w\n    next g @[F] v", "result": "return y",
}  # fmt: skip
FILLED = {
    "w": "N<w>", "v": "N<v>", "carried": "x0: bf16 <c> = x\n  y0: bf16 <c>", "carry": "h: bf16 <c>", "x": "x0",
    "body": "x1: bf16 <x1> = h\n    w1: bf16 <w1> = w\n    g: bf16 <h> = x1 @[E] w1\n    h1: bf16 <h1> = g\n"
    "    v1: bf16 <v1> = v\n    z: bf16 <z> = h1 @[F] v1\n    n: bf16 <c> = z\n    next n",
    "result": "y: bf16 BE_x = y0\n  return y",
}  # fmt: skip


def solver_of(sizes: dict[str, int]) -> TimeSolver:
    """The loop's solver, its graph made without prices."""
    program = run_passes(load(Source("loop", LOOP.format(**sizes, **OPEN))), (Decompose(), Cleanup()))
    problem = ProgramProblems(program).of(PlacementOptions())
    made = TimeSolver(problem, CHIP, CHIP.constants, structure_of(program), MemoryPrices())
    made.build()
    return made


@pytest.mark.parametrize("seed", range(3))
def test_a_priced_graph_is_the_graph_under_this_price(seed: int) -> None:
    rng = np.random.default_rng(seed)
    solver = solver_of({"B": 256, "E": 512, "F": 1024})
    byte_ns = float(rng.random())
    made = PricedGraph(solver).graph(byte_ns)
    wanted = solver.under(MemoryPrices(byte_ns=byte_ns)).graph
    for ours, theirs in zip(made.factors, wanted.factors, strict=True):
        if isinstance(ours, TableFactor):
            assert isinstance(theirs, TableFactor)
            assert ours.costs == pytest.approx(theirs.costs)
        else:
            assert not isinstance(theirs, TableFactor)
            can = theirs.moves < FORBIDDEN
            assert ((ours.moves < FORBIDDEN) == can).all()
            assert ours.moves[can] == pytest.approx(theirs.moves[can])


# Compute is too short for the gathers, and about as long.
@pytest.mark.one_in(2)
@pytest.mark.parametrize("rows", [64, 1024])
def test_bounds_of_all_cases_are_below_the_least_that_fits_and_rise(rows: int) -> None:
    """However far cases are told apart; every filling that fits is in one of them."""
    sizes = {"B": rows, "E": 1024, "F": 2048}
    choices = {
        ("x1", "w1", "h"): [*products("x", "B", "E", "F")],
        ("h1", "v1", "z"): [*products("x", "B", "F", "E")],
        ("w",): [(home,) for home in homes("x", "EF")],
        ("v",): [(home,) for home in homes("x", "FE")],
        ("c",): [(home,) for home in homes("x", "BE")],
    }
    fillings = every_filling(LOOP.format(**sizes, **FILLED), choices, CHIP)
    limits = limits_that_bind(fillings) or [max(filling.peak for filling in fillings)]
    for limit in {limits[0], limits[len(limits) // 2], limits[-1]}:
        wanted = least(fillings, limit) * NANOSECONDS
        cases = Cases(solver_of(sizes), float(limit))
        first = cases.first(0.0)
        assert cases.bounded(first, math.inf)
        level: list[Case] = [first]
        bound = first.bound
        for _ in range(4):
            below: list[Case] = []
            for case in level:
                cut = cases.cut(case)
                if cut is None:
                    below.append(case)
                else:
                    below.extend(each for each in cases.apart(case, cut) if cases.bounded(each, math.inf))
            level = below
            least_now = min(case.bound for case in level)
            assert bound - 1e-6 <= least_now <= wanted * (1 + 1e-6)
            bound = least_now


def test_a_bound_is_of_the_time_without_what_decides_between_equal_times() -> None:
    text = "mesh x=2 y=2\ndim B=8 E=16\nfunc f(p: B_xE_y, w: EF_y) -> BF_x {\n  return p @[E] w\n}\ndim F=8\n"
    program = run_passes(load(Source("f", text)), (Decompose(), Cleanup()))
    outcome = Outcome()
    solve = ProgramSolve(
        CHIP, CHIP.constants, structure_of(program), math.inf, end=time.monotonic() + 60.0, outcome=outcome
    )
    found = solve(ProgramProblems(program).of(PlacementOptions()))
    assert outcome.bound_ns < found.solution.cost == pytest.approx(outcome.bound_ns, rel=1e-5)
