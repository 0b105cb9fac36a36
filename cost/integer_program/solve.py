"""The best choice with a proof: reductions, prices for memory, what they rule out, and HiGHS for what is left."""

from __future__ import annotations

import gc
import math
import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.integer_program.elimination import MOST_ENTRIES, Order, eliminate
from shardwright.cost.integer_program.improvement import Neighbours
from shardwright.cost.integer_program.mathopt import solve_integer_program
from shardwright.cost.integer_program.multipliers import Dual, best_prices, priced
from shardwright.cost.integer_program.problem import Choice, Edge, Floats, Problem
from shardwright.cost.integer_program.reduction import Reduced, reduce

MOST_COLUMNS = 2_000_000
"""Of an integer program that HiGHS is given."""

COLUMNS_A_SECOND = 10_000
"""HiGHS gets nowhere with more; handing them over takes an eighth of that."""

_SLACK = 1e-7
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


def solve(problem: Problem, seconds: float = 60.0, most_entries: int = MOST_ENTRIES) -> Solution:
    """Solves a problem within a time, to optimality where that is enough."""
    collecting = gc.isenabled()
    gc.disable()  # hundreds of thousands of small arrays and no cycles: looking for these takes most of the time
    try:
        return _Solve(problem, seconds, most_entries).run()
    finally:
        if collecting:
            gc.enable()


class _Solve:
    def __init__(self, problem: Problem, seconds: float, most_entries: int) -> None:
        self.problem = problem
        self.most_entries = most_entries
        self.began = time.monotonic()
        self.end = self.began + seconds
        self.best: Choice | None = None
        self.cost = math.inf
        self.bound = -math.inf

    def run(self) -> Solution:
        reduced = reduce(self.problem, lambda: self.late(0.25))
        if not _may_fit(reduced.problem):
            self.bound = math.inf
            return self.finished()
        while True:
            reduced = self.narrowed(reduced)
            if self.done() or self.late():
                return self.finished()
            # A better choice rules out more, so that HiGHS is asked again about less.
            cost = self.cost
            wanted = max(5.0, self.left() / 4, 2 * reduced.problem.columns / COLUMNS_A_SECOND)
            proved = self.by_integer_program(reduced, min(self.left(), wanted))
            if proved or self.left() <= 0:
                return self.finished()
            if self.cost >= cost:
                self.by_integer_program(reduced, self.left())
                return self.finished()

    def narrowed(self, reduced: Reduced) -> Reduced:
        """The problem after prices and what they rule out, as long as that makes it a good deal smaller."""
        before = math.inf
        while not self.late(0.9) and not self.done():
            size = _free(reduced.problem)
            if size > 0.9 * before:
                break
            before = size
            found = self.priced_out(reduced)
            if found is None:  # whatever was cheaper than the best choice is ruled out
                self.bound = self.cost
                break
            reduced = found
        return reduced

    def left(self) -> float:
        """Seconds until the end."""
        return self.end - time.monotonic()

    def late(self, share: float = 1.0) -> bool:
        """Whether this share of the time is over."""
        return time.monotonic() > self.began + share * (self.end - self.began)

    def done(self) -> bool:
        return self.best is not None and self.closes(self.bound)

    def closes(self, bound: float) -> bool:
        """Whether no choice above this bound is cheaper than the best one."""
        if self.best is None:
            return False
        return bound > self.threshold()

    def closed(self, bounds: Floats) -> NDArray[np.bool_]:
        """Where no choice above these bounds is cheaper than the best one."""
        return bounds > self.threshold()

    def threshold(self) -> float:
        slack = _SLACK * max(1.0, abs(self.cost))
        return self.cost - (1 - slack if self.problem.integral and slack < 0.5 else slack)

    def offer(self, reduced: Reduced, choice: Choice | None) -> None:
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

    def priced_out(self, reduced: Reduced) -> Reduced | None:
        """The problem without the strategies that the best prices for memory rule out; None where none are left."""
        problem = reduced.problem
        order = self.order(problem)
        neighbours = Neighbours(problem)
        # What is too much for HiGHS has the time to itself.
        share = 0.3 if self.for_highs(problem, 0.65 * self.left()) else 0.6
        dual = best_prices(problem, order, self.closes, lambda: self.late(share))
        if dual.bound == math.inf or dual.upward is None:
            return None
        self.raise_bound(dual.bound)
        for choice in dual.feasible:
            self.offer(reduced, choice)
            if not self.done():
                self.offer(reduced, neighbours.improved(choice, self.late))
        if not self.done():
            self.heuristics(reduced, order, neighbours, dual)
        if self.best is None or self.done() or self.late(0.8):
            return reduced
        nodes, pairs = dual.upward.min_marginals(problem.edges)
        surplus = dual.bound - dual.upward.least
        keep = [~self.closed(each + surplus) for each in nodes]
        if any(not marks.any() for marks in keep):
            # Nothing is cheaper than the best choice.
            self.bound = self.cost
            return reduced
        edges = tuple(
            Edge(e.a, e.b, np.where(self.closed(each + surplus), np.inf, e.costs))
            for e, each in zip(problem.edges, pairs, strict=True)
        )
        return Reduced(replace(problem, edges=edges), reduced.kept).restricted(keep)

    def order(self, problem: Problem) -> Order:
        """An order whose tables fit in memory together, and in the time that is left many times over."""
        room = min(64 * self.most_entries, max(1 << 20, int(1.5e6 * self.left())))
        # Tables are of all sizes, the average far below the largest.
        most = min(self.most_entries, max(1 << 10, 32 * room // max(1, len(problem))))
        while True:
            order = Order.of([len(costs) for costs in problem.costs], problem.edges, most)
            entries = sum(math.prod(order.sizes[n] for n in (c.node, *c.over)) for c in order.cliques)
            if entries <= room or most <= 1 << 10:
                return order
            most >>= max(1, int(math.log2(entries / room) / 2))

    def heuristics(self, reduced: Reduced, order: Order, neighbours: Neighbours, dual: Dual) -> None:
        """Choices at prices a little off the best ones, mended until they fit, and improved as far as that goes."""
        problem = reduced.problem
        assert dual.upward is not None

        def follow(start: Choice) -> None:
            now = neighbours.repaired(start, lambda: self.late(0.6))
            while now is not None and math.isfinite(problem.cost(now)) and not self.late(0.6):
                self.offer(reduced, now)
                better = neighbours.improved(_with_no_more_memory(problem, order, now), lambda: self.late(0.6))
                if problem.cost(better) >= problem.cost(now):
                    break
                now = better

        follow(dual.upward.choice())
        for choice in dual.near:
            follow(choice)
        rounds = range(24) if dual.prices.any() else ()
        for number in rounds:
            if self.late(0.6) or self.done():
                break
            # From just above the best prices up to twice them: the dearer memory is, the less there is to mend.
            factor = 1.0 + 2.0 ** (-number / 3)
            follow(eliminate(order, priced(problem, dual.prices * factor), problem.edges).choice())
        if self.best is None:
            least = tuple(int(usages.argmin()) for usages in problem.usages)
            if math.isfinite(problem.cost(least)):
                self.offer(reduced, neighbours.improved(least, self.late))

    def for_highs(self, problem: Problem, seconds: float) -> bool:
        """Whether HiGHS can do anything with a problem in this time."""
        return seconds > 0 and problem.columns <= min(MOST_COLUMNS, COLUMNS_A_SECOND * seconds)

    def by_integer_program(self, reduced: Reduced, seconds: float) -> bool:
        """HiGHS on what is left, asked for something cheaper than the best choice; whether that settled it."""
        problem = reduced.problem
        if not self.for_highs(problem, seconds):
            return False
        cutoff = None
        if self.best is not None:
            cutoff = self.cost - 1 if self.problem.integral else self.cost
        handing_over = problem.columns / COLUMNS_A_SECOND / 8
        solved = solve_integer_program(problem, seconds - handing_over, cutoff)
        if solved.choice is not None and problem.memory.excess(problem, solved.choice) == 0:
            self.offer(reduced, solved.choice)
        if solved.infeasible or solved.optimal:
            self.bound = self.cost
            return True
        if math.isfinite(solved.bound):
            self.raise_bound(min(solved.bound, self.cost))
        return self.done()

    def finished(self) -> Solution:
        seconds = time.monotonic() - self.began
        if self.best is None:
            status = "infeasible" if self.bound == math.inf else "unknown"
            return Solution(status, None, math.inf, self.bound, seconds)
        bound = self.cost if self.closes(self.bound) else self.bound
        return Solution("optimal" if bound == self.cost else "feasible", self.best, self.cost, bound, seconds)


def _with_no_more_memory(problem: Problem, order: Order, choice: Choice) -> Choice:
    """The cheapest choice in which no node takes more memory than in this one."""
    costs = [
        np.where(usages <= usages[s], own, np.inf) if problem.memory.limits(i) else own
        for i, (own, usages, s) in enumerate(zip(problem.costs, problem.usages, choice, strict=True))
    ]
    found = eliminate(order, costs, problem.edges).choice()
    return found if problem.cost(found) <= problem.cost(choice) else choice


def _free(problem: Problem) -> int:
    """Strategies and pairs that are not forbidden."""
    edges = sum(int(np.isfinite(edge.costs).sum()) for edge in problem.edges)
    return sum(map(len, problem.costs)) + edges


def _may_fit(problem: Problem) -> bool:
    """Whether each node has a strategy, and the ones that use least memory fit."""
    if not all(len(costs) for costs in problem.costs):
        return False
    return problem.memory.excess(problem, [int(usages.argmin()) for usages in problem.usages]) == 0
