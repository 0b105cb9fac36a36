"""Integer programs solved by HiGHS alone, with nothing before it."""

from __future__ import annotations

import math

from shardwright.cost.highs import GRACE
from shardwright.cost.integer_program.mathopt import Solved, Solving
from shardwright.cost.integer_program.problem import Problem


def solve_integer_program(problem: Problem, seconds: float) -> Solved:
    """Solves a problem within a time. What HiGHS found is lost where it has to be stopped at the limit."""
    with Solving(problem, seconds) as solving:
        return solving.result(seconds + 2 * GRACE) or Solved(None, -math.inf, optimal=False, infeasible=False)
