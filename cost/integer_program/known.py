"""The facts known of a problem while it is being solved: the best choice so far, a bound, and the time that is left."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.integer_program.improvement import Neighbours
from shardwright.cost.integer_program.problem import Choice, Floats, Problem
from shardwright.cost.integer_program.reduction import ReducedProblem

_SLACK = 1e-9
"""What bounds may have lost to rounding, of their size."""


@dataclass(frozen=True)
class Solution:
    """The cheapest choice found (None where there is none), its cost, a proved lower bound, and the time it took.

    `status` is `optimal` where cost and bound meet, `feasible` where the time ran out first, `infeasible` where no
    choice fits, `unknown` where the time ran out before one was found.
    """

    status: str
    choice: Choice | None
    cost: float
    bound: float
    seconds: float

    @property
    def gap(self) -> float:
        """(cost - bound) / cost; infinite where there is no choice."""
        if self.choice is None:
            return math.inf
        return 0.0 if self.cost == self.bound else (self.cost - self.bound) / max(abs(self.cost), 1e-300)


class SolverState:
    """The best choice and the bound; choices of smaller problems are offered as those of the original."""

    def __init__(self, problem: Problem, seconds: float) -> None:
        self.problem = problem
        self.began = time.monotonic()
        self.end = self.began + seconds
        self.best: Choice | None = None
        self.cost = math.inf
        self.bound = -math.inf

    def left(self) -> float:
        """Seconds until the end."""
        return self.end - time.monotonic()

    def late(self, share: float = 1.0) -> bool:
        """Tells whether this share of the time is over."""
        return time.monotonic() > self.began + share * (self.end - self.began)

    def done(self) -> bool:
        return self.best is not None and self.closes(self.bound)

    def closes(self, bound: float) -> bool:
        """Tells whether no choice above this bound is cheaper than the best one."""
        if self.best is None:
            return False
        return bound > self.threshold()

    def closed(self, bounds: Floats) -> NDArray[np.bool_]:
        """Where no choice above these bounds is cheaper than the best one."""
        return bounds > self.threshold()

    def threshold(self) -> float:
        slack = _SLACK * max(1.0, abs(self.cost))
        return self.cost - (1 - slack if self.problem.integral and slack < 0.5 else slack)

    def offer(self, reduced: ReducedProblem, choice: Choice | None) -> None:
        """Takes a choice that fits, where it is better than the best so far."""
        if choice is None:
            return
        original = reduced.original(choice)
        cost = self.problem.cost(original)
        if cost < self.cost:
            self.cost, self.best = cost, original

    def raise_bound(self, bound: float) -> None:
        if self.problem.integral and math.isfinite(bound):
            bound = math.ceil(bound - _SLACK * max(1.0, abs(bound)))
        self.bound = max(self.bound, bound)

    def nothing_cheaper(self) -> None:
        """The best choice, or that there is none, is proved."""
        self.bound = self.cost

    def take_least(self, reduced: ReducedProblem) -> None:
        """The choice that takes least memory, if it is allowed, made better as far as one node at a time goes."""
        problem = reduced.problem
        least = tuple(
            int(costs.argmin()) if profile is None else int(profile.levels.sum(axis=1).argmin())
            for costs, profile in zip(problem.costs, problem.profiles, strict=True)
        )
        if problem.memory.excess(problem, least) == 0 and math.isfinite(problem.cost(least)):
            self.offer(reduced, least)
            self.offer(reduced, Neighbours(problem).improved(least, self.late))

    def finished(self) -> Solution:
        seconds = time.monotonic() - self.began
        if self.best is None:
            status = "infeasible" if self.bound == math.inf else "unknown"
            return Solution(status, None, math.inf, self.bound, seconds)
        bound = self.cost if self.closes(self.bound) else self.bound
        return Solution("optimal" if bound == self.cost else "feasible", self.best, self.cost, bound, seconds)
