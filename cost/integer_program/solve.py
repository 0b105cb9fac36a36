"""The best choice with a proof: reductions, prices for memory, frontiers, windows, and HiGHS for what is left."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from shardwright.cost.integer_program.elimination import MOST_ENTRIES, Order, eliminate
from shardwright.cost.integer_program.frontier import LEAST_LABELS, frontier
from shardwright.cost.integer_program.highs import GRACE
from shardwright.cost.integer_program.improvement import Neighbours
from shardwright.cost.integer_program.known import Solution, SolverState
from shardwright.cost.integer_program.mathopt import SolverOutcome, SolverRun
from shardwright.cost.integer_program.multipliers import Dual, best_prices
from shardwright.cost.integer_program.neighbourhood import Neighbourhoods
from shardwright.cost.integer_program.problem import Choice, Edge, Floats, Problem
from shardwright.cost.integer_program.reduction import ReducedProblem, reduce, reduced_further

MOST_COLUMNS = 2_000_000
"""Of an integer program that HiGHS is given."""

COLUMNS_A_SECOND = 20_000
"""HiGHS gets nowhere with more."""

FIRST_LABELS = 10_000
"""Of one table of a frontier, at first."""

MOST_LABELS = 400_000
"""Of one table, where the first ones were quick."""

MANY_NODES = 1000
"""From here on prices and branching come before frontiers."""

FEW_COLUMNS = 3000
"""HiGHS solves so many soon."""

LABELS_OF_ALL = 4_000_000
"""Of all tables of the first frontier together."""

FRONTIER_ENTRIES = 1 << 25
"""Of all tables together, beyond which no frontier is made."""

FIRST_ENTRIES = 1 << 22
"""Of all tables of an order together, at first; eight times as many each time that this rules out little."""

MOST_TIMES = 5
"""At which a frontier keeps memory."""


def solve(problem: Problem, seconds: float = 60.0, most_entries: int = MOST_ENTRIES) -> Solution:
    """Solves a problem within a time, to optimality where that is enough."""
    collecting = gc.isenabled()
    gc.disable()  # hundreds of thousands of small arrays and no cycles: looking for these takes most of the time
    try:
        found = _Solve(problem, seconds, most_entries).run()
    finally:
        if collecting:
            gc.enable()
    if problem.base:
        cost, bound = (int(x) + problem.base if x == x // 1 else x + problem.base for x in (found.cost, found.bound))
        found = replace(found, cost=cost, bound=bound)
    if found.status == "infeasible" and problem.beyond:
        found = replace(found, status="unknown")  # what costs too much to be counted may be all that fits
    return found


class _Solve(SolverState):
    def __init__(self, problem: Problem, seconds: float, most_entries: int) -> None:
        super().__init__(problem, seconds)
        self.most_entries = most_entries
        self.first: ReducedProblem | None = None
        """The problem before anything was ruled out by the best choice."""
        self.given = 0
        """The strategies and pairs of the problem that HiGHS has had from the beginning."""
        self.windows = 0
        """How often windows were looked at."""
        self.tried: int | None = None
        """The strategies and pairs of the problem of the last frontier that did not settle it."""
        self.labels_a_second = 0.0
        """Of one table of it."""
        self.prices: dict[int, float] = {}
        """The best ones known, by the first moment of their time."""

    def run(self) -> Solution:
        reduced = self.first = reduce(self.problem, lambda: self.late(0.25))
        if not reduced.problem.may_fit:
            self.bound = math.inf
            return self.finished()
        if self.late(0.5):  # a bound and a choice, whatever there is time for
            self.raise_bound(reduced.problem.least)
            self.take_least(reduced)
        if len(reduced.problem) > MANY_NODES and self.for_highs(reduced.problem, self.left()) and not self.done():
            # Prices take long too, and HiGHS may do as well from the beginning.
            self.given = reduced.problem.allowed
            with SolverRun(reduced.problem, max(self.left() - GRACE, 0.1)) as highs:
                self.looked_for(reduced)
                solved = None if self.done() else highs.result(self.left() + GRACE)
            if solved is not None:
                self.take(self.first, solved)
        else:
            self.looked_for(reduced)
        return self.finished()

    def looked_for(self, reduced: ReducedProblem) -> None:
        """All that there is to do, until the time is over or nothing is left to do."""
        if len(reduced.problem) > MANY_NODES:  # frontiers take long: what is left to them is made smaller before
            reduced = self.narrowed(reduced, None)
            if self.best is not None and not self.done():
                reduced = self.branched(reduced, None)
        tried = math.inf, math.inf
        while not self.done() and not self.late():
            reduced = self.narrowed(reduced, FIRST_LABELS)
            size = reduced.problem.allowed
            if size > FEW_COLUMNS and self.best is not None and not self.done():
                cost = self.cost
                self.around_best(reduced, 40, 0.1 * self.left())
                if cost - self.cost > 0.1 * (cost - self.bound):
                    continue
                if not self.done() and (size < 0.8 * tried[0] or self.cost < tried[1]):
                    tried = size, self.cost
                    branched = self.branched(reduced, FIRST_LABELS)
                    if branched is not reduced:
                        reduced = branched
                        continue
            if self.done() or self.late() or not self.searched(reduced):
                break

    def window(self, best: Choice) -> Choice | None:
        """Something cheaper than a choice that fits, where prices and frontiers find it; for a part of a problem."""
        self.best, self.cost = best, self.problem.cost(best)
        reduced = reduce(self.problem, lambda: self.late(0.5))
        if reduced.problem.may_fit:
            self.narrowed(reduced, FIRST_LABELS // 4)
        return None if self.best is best else self.best

    # ---------------------------------------------------------------- prices and what they rule out

    def narrowed(self, reduced: ReducedProblem, most_labels: int | None) -> ReducedProblem:
        """The problem after prices and what they rule out, as long as that makes it a good deal smaller.

        What rules out little is tried again with larger tables, until they are exact or too large.
        """
        room = float(FIRST_ENTRIES)
        while not self.late(0.9) and not self.done():
            problem = reduced.problem
            order = self.order(problem, room)
            found = self.priced_out(reduced, order, most_labels)
            if found is None or not found.problem.may_fit:  # whatever was cheaper than the best choice is ruled out
                self.nothing_cheaper()
                break
            reduced = found
            if reduced.problem.allowed > 0.9 * problem.allowed:
                if order.exact or room >= self.most_room():
                    break
                room *= 8
        return reduced

    def priced_out(self, reduced: ReducedProblem, order: Order, most_labels: int | None) -> ReducedProblem | None:
        """The problem without what the best prices for memory rule out; None where nothing is left."""
        problem = reduced.problem
        neighbours = Neighbours(problem)
        times = problem.memory.times
        dual = best_prices(problem, order, self.closes, self.after(0.3), self.prices_of(problem))
        if dual.bound == math.inf or dual.upward is None:
            return None
        self.prices = {t: price for t, price in zip(times, dual.prices.tolist(), strict=True) if price}
        self.raise_bound(dual.bound)
        for choice in dual.feasible:
            self.offer(reduced, choice)
        if not self.done():
            self.mended(reduced, order, neighbours, dual, few=True)
        size = problem.allowed
        if most_labels is not None and not self.done() and (self.tried is None or size < 0.7 * self.tried):
            self.with_frontiers(reduced, order, neighbours, dual, _affordable(most_labels, order))
            if self.tried is None and not self.done():
                self.mended(reduced, order, neighbours, dual)
            self.tried = size
        if self.best is None or self.done() or self.late():
            return reduced
        nodes, pairs = dual.upward.min_marginals()
        surplus = dual.bound - dual.upward.least
        keep = [~self.closed(each + surplus) for each in nodes]
        if any(not marks.any() for marks in keep):
            return None
        ruled_out = [self.closed(each + surplus) for each in pairs]
        best = reduced.of(self.best)
        if best is not None:  # it stays, to be made better in part
            for marks, s in zip(keep, best, strict=True):
                marks[s] = True
            for edge, marks in zip(problem.edges, ruled_out, strict=True):
                marks[best[edge.a], best[edge.b]] = False
        edges = tuple(
            Edge(e.a, e.b, np.where(marks, np.inf, e.costs)) for e, marks in zip(problem.edges, ruled_out, strict=True)
        )
        narrower = replace(reduced, problem=replace(problem, edges=edges)).restricted(keep)
        return reduced_further(narrower, lambda: self.late(0.9))

    def prices_of(self, problem: Problem) -> Floats:
        """The best prices known for the times of a problem."""
        return np.array([self.prices.get(t, 0.0) for t in problem.memory.times])

    def after(self, share: float, stop: Callable[[], bool] = lambda: False) -> Callable[[], bool]:
        """Tells from now on whether this share of the time that is left is over, or to stop in any case."""
        until = time.monotonic() + share * self.left()
        return lambda: time.monotonic() > until or stop()

    def most_room(self) -> float:
        """For entries of tables, in memory and in the time that is left many times over."""
        return min(64 * self.most_entries, max(1 << 20, 1.5e6 * self.left()))

    def order(self, problem: Problem, room: float) -> Order:
        """An order with about so many entries of tables."""
        room = min(room, self.most_room())
        # Tables are of all sizes, the average far below the largest.
        most = min(self.most_entries, max(1 << 10, 32 * int(room) // max(1, len(problem))))
        while True:
            order = Order.of([len(costs) for costs in problem.costs], problem.edges, most)
            if order.entries <= room or most <= 1 << 10:
                return order
            most >>= max(1, int(math.log2(order.entries / room) / 2))

    def mended(
        self, reduced: ReducedProblem, order: Order, neighbours: Neighbours, dual: Dual, *, few: bool = False
    ) -> None:
        """Choices at prices a little off the best ones, mended until they fit, and improved as far as that goes."""
        problem = reduced.problem
        assert dual.upward is not None
        late = self.after(0.15 if self.best is None else 0.03)

        def follow(start: Choice) -> None:
            now = neighbours.repaired(start, late)
            while now is not None and math.isfinite(problem.cost(now)) and not late():
                self.offer(reduced, now)
                better = neighbours.improved(_with_no_more_memory(problem, order, now), late)
                if problem.cost(better) >= problem.cost(now):
                    break
                now = better

        for choice in dual.feasible:
            self.offer(reduced, neighbours.improved(choice, late))
        follow(dual.upward.choice())
        if few and self.best is not None:
            return
        for choice in dual.near:
            follow(choice)
        for number in range(24) if dual.prices.any() else ():
            if late() or self.done():
                break
            # From just above the best prices up to twice them: the dearer memory is, the less there is to mend.
            factor = 1.0 + 2.0 ** (-number / 3)
            follow(eliminate(order, problem.priced(dual.prices * factor), problem.edges).choice())
            if few and self.best is not None:
                return
        if self.best is None:
            self.take_least(reduced)

    def with_frontiers(
        self,
        reduced: ReducedProblem,
        order: Order,
        neighbours: Neighbours,
        dual: Dual,
        most_labels: int,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """The choices near the prices' bound, with memory kept at the times that matter most."""
        problem = reduced.problem
        if order.entries > FRONTIER_ENTRIES or dual.upward is None:
            return
        seconds = 0.2 * self.left()
        late = self.after(0.3, stop)
        dearest = np.argsort(-dual.prices, kind="stable")
        rows = dearest[: min(MOST_TIMES - 2, int((dual.prices > 0).sum()))]
        while True:
            threshold = self.threshold() if self.best is not None else dual.bound + 0.5 * abs(dual.bound) + 1.0
            began = time.monotonic()
            found = frontier(problem, dual.upward, dual.prices, rows, threshold, most_labels, seconds, stop)
            if found is None:
                return
            self.labels_a_second = most_labels / max(0.01, time.monotonic() - began)
            if found.complete and not found.choices and self.best is not None:
                self.nothing_cheaper()
                return
            self.raise_bound(found.bound)
            added: int | None = None
            for number, choice in enumerate(found.choices):
                if not math.isfinite(problem.cost(choice)):
                    continue
                over = problem.memory.usage(problem, choice) - problem.memory.limit
                if over.max(initial=0.0) <= 0:
                    self.offer(reduced, choice)
                elif added is None and int(np.argmax(over)) not in rows:
                    added = int(np.argmax(over))
                if number > 2:
                    continue
                mended = neighbours.repaired(choice, late)
                if mended is not None and math.isfinite(problem.cost(mended)):
                    self.offer(reduced, neighbours.improved(mended, late))
                if late():
                    return
            if self.done() or added is None or len(rows) >= MOST_TIMES:
                return
            rows = np.append(rows, added)

    # ---------------------------------------------------------------- windows, and HiGHS beside them

    def for_highs(self, problem: Problem, seconds: float) -> bool:
        """Tells whether HiGHS can do anything with a problem in this time."""
        return seconds > 0 and problem.allowed <= min(MOST_COLUMNS, COLUMNS_A_SECOND * seconds)

    def searched(self, reduced: ReducedProblem) -> bool:
        """Windows and wider frontiers, while HiGHS has the whole where it can; whether to narrow the problem again."""
        problem = reduced.problem
        if not self.for_highs(problem, self.left()) or problem.allowed > 0.5 * self.given > 0:
            return self.beside(reduced, None)
        hint = None if self.best is None else reduced.of(self.best)
        cutoff = None
        if self.best is not None and hint is None:
            cutoff = self.cost - 1 if self.problem.integral else self.cost
        with SolverRun(problem, max(self.left() - GRACE, 0.1), cutoff, hint) as highs:
            return self.beside(reduced, highs)

    def beside(self, reduced: ReducedProblem, highs: SolverRun | None) -> bool:
        """Does what there is to do while HiGHS is at it, until that is done or the problem may have become smaller."""
        solved: SolverOutcome | None = None

        def over() -> bool:
            nonlocal solved
            if solved is None and highs is not None:
                solved = highs.result(0.0)
            return solved is not None

        cost, bound = self.cost, self.bound
        self.around_best(reduced, 60, 0.15 * self.left(), over)
        most = min(MOST_LABELS, int(0.15 * self.left() * self.labels_a_second))
        if not over() and not self.done() and most > 2 * FIRST_LABELS:
            self.with_wider_frontiers(reduced, most, over)
            if (self.cost < cost or self.bound > bound + 0.2 * abs(cost - bound)) and solved is None:
                return True
        self.around_best(reduced, 300, self.left(), over)
        if not over() and highs is not None and not self.done():
            if self.cost < cost and self.left() > 1:
                return True
            solved = highs.result(self.left() + GRACE)
        if solved is not None:
            self.take(reduced, solved)
        return self.cost < cost

    def around_best(
        self, reduced: ReducedProblem, patience: int, seconds: float, over: Callable[[], bool] = lambda: False
    ) -> None:
        """The best choice made better window by window, until so many in a row have nothing better, in the problem
        where it still is one of it."""
        if self.best is None or self.first is None:
            return
        until = time.monotonic() + seconds
        place = reduced if reduced.of(self.best) is not None else self.first
        problem, now = place.problem, place.of(self.best)
        neighbourhoods = Neighbourhoods(problem, self.windows)
        self.windows += 1
        if now is None:
            return
        self.offer(place, now)  # what follows others may do so at less cost than it did
        size, failed = 20.0, 0
        while failed < patience and self.left() > 0 and time.monotonic() <= until and not over() and not self.done():
            window = neighbourhoods.window(int(size))
            part = neighbourhoods.part(now, problem.memory.usage(problem, now), window)
            inner = _Solve(part, min(self.left(), 3.0), min(self.most_entries, 1 << 18))
            found = inner.window((*(now[n] for n in window), 0))
            failed += 1
            if found is not None:
                better = list(now)
                for n, s in zip(window, found, strict=False):
                    better[n] = s
                if problem.memory.excess(problem, better) == 0:
                    now, failed = tuple(better), 0
                    self.offer(place, now)
            if inner.done() and len(window) == len(neighbourhoods.free):
                self.nothing_cheaper()
                return
            took = time.monotonic() - inner.began
            size = max(size * (1.1 if inner.done() and took < 0.5 else 0.8 if took > 1.0 else 1.0), 8.0)

    def branched(self, reduced: ReducedProblem, most_labels: int | None) -> ReducedProblem:
        """The problem without strategies of one node, with each of which nothing is cheaper than the best choice.

        Prices, and frontiers of so many labels, look at each strategy apart: of the node that takes most memory at the
        prices, which is what leaves the largest gap, or of the one that most tables had to be split at.
        """
        problem = reduced.problem
        order = self.order(problem, FIRST_ENTRIES)
        node = self.branching_node(problem, order)
        late = self.after(0.3)
        keep = [np.ones(len(costs), np.bool_) for costs in problem.costs]
        least = np.full(len(problem.costs[node]), -math.inf)
        # Prices alone first: they find better choices, which close more.
        for labels in (None,) if most_labels is None else (None, most_labels):
            for s in np.argsort(least, kind="stable").tolist():
                if not late() and not self.closes(float(least[s])):
                    keep[node] = np.arange(len(least)) == s
                    least[s] = max(least[s], self.bound_of_part(reduced.restricted(keep), labels, late))
        self.raise_bound(min(float(least.min()), self.cost))
        keep[node] = ~self.closed(least)
        if not keep[node].any():
            self.nothing_cheaper()
            return reduced
        return reduced if keep[node].all() else reduced_further(reduced.restricted(keep), self.late)

    def branching_node(self, problem: Problem, order: Order) -> int:
        if order.exact and self.prices:
            priced = problem.priced(self.prices_of(problem))
            weights = [np.ptp(a - b) if len(a) > 1 else 0.0 for a, b in zip(priced, problem.costs, strict=True)]
            return int(np.argmax(weights))
        copies = np.zeros(len(problem))
        for clique in order.cliques:
            copies[clique.node] += not clique.first
        if not copies.any():
            copies = np.bincount([n for edge in problem.edges for n in (edge.a, edge.b)], minlength=len(problem))
        return int(np.argmax(copies * np.array([len(costs) > 1 for costs in problem.costs])))

    def bound_of_part(self, part: ReducedProblem, most_labels: int | None, late: Callable[[], bool]) -> float:
        """The least that choices of a part of the problem cost; infinite where there are none."""
        problem = part.problem
        if not problem.may_fit:
            return math.inf
        order = self.order(problem, FIRST_ENTRIES)
        dual = best_prices(problem, order, self.closes, late, self.prices_of(problem))
        for choice in dual.feasible:
            self.offer(part, choice)
        if dual.upward is None or self.closes(dual.bound) or most_labels is None or order.entries > FRONTIER_ENTRIES:
            return dual.bound
        rows = np.argsort(-dual.prices, kind="stable")[: min(MOST_TIMES - 2, int((dual.prices > 0).sum()))]
        most = _affordable(most_labels, order)
        seconds = 0.1 * self.left()
        found = frontier(problem, dual.upward, dual.prices, rows, self.threshold(), most, seconds, late)
        if found is None:
            return dual.bound
        for choice in found.choices:
            if problem.memory.excess(problem, choice) == 0:
                self.offer(part, choice)
        return math.inf if found.complete and not found.choices else max(dual.bound, found.bound)

    def with_wider_frontiers(self, reduced: ReducedProblem, most_labels: int, over: Callable[[], bool]) -> None:
        """Frontiers of more labels, where tables are exact."""
        problem = reduced.problem
        order = self.order(problem, FRONTIER_ENTRIES)
        if not order.exact:
            return
        dual = best_prices(problem, order, self.closes, over, self.prices_of(problem))
        if dual.upward is not None:
            self.raise_bound(dual.bound)
            self.with_frontiers(reduced, order, Neighbours(problem), dual, most_labels, over)

    def take(self, reduced: ReducedProblem, solved: SolverOutcome) -> None:
        """Takes over what HiGHS found."""
        # HiGHS may take a millionth more memory than there is; such a choice proves no more than its cost.
        fits = solved.choice is None or reduced.problem.memory.excess(reduced.problem, solved.choice) == 0
        if fits:
            self.offer(reduced, solved.choice)
        if solved.infeasible or (solved.optimal and fits):
            self.nothing_cheaper()
        elif math.isfinite(solved.bound):
            self.raise_bound(min(solved.bound, self.cost))


def _affordable(most_labels: int, order: Order) -> int:
    """So many labels of one table, or fewer where there are many tables."""
    return min(most_labels, max(LEAST_LABELS, LABELS_OF_ALL // len(order.cliques)))


def _with_no_more_memory(problem: Problem, order: Order, choice: Choice) -> Choice:
    """The cheapest choice in which no node takes more memory than in this one."""
    costs = [
        own if profile is None else np.where((profile.levels <= profile.levels[s]).all(axis=1), own, np.inf)
        for own, profile, s in zip(problem.costs, problem.profiles, choice, strict=True)
    ]
    found = eliminate(order, costs, problem.edges).choice()
    return found if problem.cost(found) <= problem.cost(choice) else choice
