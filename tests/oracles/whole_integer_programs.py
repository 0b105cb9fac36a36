"""Integer programs solved by HiGHS alone, with nothing before it."""

from __future__ import annotations

import math

from shardwright.cost.integer_program.highs import GRACE
from shardwright.cost.integer_program.mathopt import SolverOutcome, SolverRun
from shardwright.cost.integer_program.problem import Problem


def solve_integer_program(problem: Problem, seconds: float) -> SolverOutcome:
    """Solves a problem within a time. What HiGHS found is lost where it has to be stopped at the limit."""
    with SolverRun(problem, seconds) as solving:
        return solving.result(seconds + 2 * GRACE) or SolverOutcome(None, -math.inf, optimal=False, infeasible=False)
