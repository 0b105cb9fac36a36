"""How large the layout problems of the examples are, how long they take, and how much of the proof is branching.

    python bench/placement.py

prints a table: for each example the variables of its problem, the bytes received
per chip, how far the proved lower bound is below them, the nodes of the search tree, and seconds.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import shardwright
from shardwright.cost.choosing.layout_problem import PlacementOptions
from shardwright.cost.choosing.placement import Solver
from shardwright.cost.choosing.program_problems import ProgramProblems
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.compiling.decompose import Decompose

EXAMPLES = Path(__file__).parent.parent / "examples"


def main() -> None:
    """One row for each example."""
    print("| example | variables | bytes received | bound below by | nodes | seconds |")
    print("|---|---|---|---|---|---|")
    for path in sorted(EXAMPLES.glob("*.shard")):
        program = Cleanup().run(Decompose().run(shardwright.load(str(path))))
        began = time.perf_counter()
        placed = Solver(ProgramProblems(program).of(PlacementOptions())).solve()
        seconds = time.perf_counter() - began
        gap = math.ceil(placed.solution.cost - placed.solution.bound - 0.5)
        row = (
            path.stem[:2],
            len(placed.kinds),
            f"{placed.bytes_received:,.0f}",
            gap,
            placed.solution.nodes,
            f"{seconds:.2f}",
        )
        print("|", " | ".join(map(str, row)), "|")


if __name__ == "__main__":
    main()
