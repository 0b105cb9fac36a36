"""Programs from their text, for tests."""

from __future__ import annotations

from shardwright.cost.choosing.layout_problem import PlacementOptions
from shardwright.cost.choosing.layout_solution import Effort, LayoutSolution
from shardwright.cost.choosing.placement import Solver
from shardwright.cost.choosing.program_problems import ProgramProblems
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import explicit


def program(text: str) -> Program:
    """The program that a text means."""
    return elaborate(parse(Source("test.shard", text)))


def place_layouts(
    made: Program, options: PlacementOptions | None = None, effort: Effort | None = None
) -> LayoutSolution:
    """The layouts of a program with the fewest bytes received, movements counted each by itself."""
    return Solver(ProgramProblems(made).of(options or PlacementOptions()), effort).solve()


def by_bytes(made: Program) -> Program:
    """The explicit program whose layouts receive the fewest bytes: for tests that count them."""
    return explicit(made, place=Place(objective="bytes"))
