"""Exact minimisation over layouts: a dual bound by message passing, closed by branch and bound.

The problem is a bipartite graph. *Variables* are layouts: the one in which an operation leaves a value, and
the one in which each use takes it. *Factors* (`cost.choosing.factors`) charge for combinations of them. A variable may
stand between any number of factors; most stand between two.

The bound is the sum of the factors' minima after costs have been shifted between factors that share a
variable (sequential reparametrised message passing, Kolmogorov 2015): exact on trees in one sweep, and in
general a lower bound that branching closes. Every step drops the choices that cannot be in a better solution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.factors import FORBIDDEN, Costs, Factor
from shardwright.cost.choosing.remainder import Remainder
from shardwright.cost.choosing.work_limit import WorkLimit
from shardwright.cost.integer_program.elimination import CostTable, Order, Upward, eliminate

_SWEEPS = 40
"""At most, there and back, before choices are ruled out for the last time."""

_DEAD_ENDS = 64
"""At most on the way to a first choice."""

_AT_ONCE = 16
"""Variables that are decided together on the way there."""

_EXACT = 1e-12
"""The share of a sum of costs that its rounding may be."""


PASSES = 10
"""How often a sweep there and back, with what is read off after each way, looks at every factor."""


@dataclass(frozen=True)
class GraphSolution:
    """A choice for every variable with its cost, a proved lower bound, and how much work the proof took."""

    choice: tuple[int, ...]
    cost: float
    bound: float
    nodes: int


@dataclass
class FactorGraph:
    """Variables with the numbers of their choices, and factors in the order of the program."""

    sizes: list[int] = field(default_factory=list[int])
    factors: list[Factor] = field(default_factory=list[Factor])

    def variable(self, size: int) -> int:
        """A new variable with that many choices."""
        self.sizes.append(size)
        return len(self.sizes) - 1

    def near(self, variable: int, steps: int) -> set[int]:
        """The variables that so many factors, one after the other, join to one, and that one."""
        found = {variable}
        for _ in range(steps):
            found |= {v for factor in self.factors if not found.isdisjoint(factor.variables) for v in factor.variables}
        return found

    def fixed(self, choice: Mapping[int, int]) -> FactorGraph:
        """The graph in which these variables have one choice left."""
        masks = [np.ones(size, np.bool_) for size in self.sizes]
        for variable, chosen in choice.items():
            masks[variable] = np.arange(self.sizes[variable]) == chosen
        factors = [factor.restricted([masks[v] for v in factor.variables]) for factor in self.factors]
        return FactorGraph([int(mask.sum()) for mask in masks], factors)

    def minimize(
        self,
        tolerance: float,
        max_nodes: int = 300,
        out_of_time: Callable[[], bool] = lambda: False,
        limit: WorkLimit | None = None,
        known: Callable[[], tuple[int, ...] | None] = lambda: None,
        patience: int = 8,
        cutoff: float = np.inf,
        *,
        needed: bool = False,
    ) -> GraphSolution:
        """The least cost, proved to within `tolerance` unless `max_nodes` branches, or the time, or the limit of work,
        were not enough. Where so many branches as `patience` do not close the proof, `known` gives a good choice.
        Choices that cost the `cutoff` or more are not told apart: once a bound reaches it any choice will do. Where a
        choice is `needed`, time and work end the search only once messages have decoded to one.

        Deterministic: ties go to the earlier choice. `cost >= FORBIDDEN / 2` means that nothing is feasible.
        """
        choice = [0] * len(self.sizes)
        cost = bound = 0.0
        nodes = 0
        parts = self._components()
        each = tolerance / max(1, sum(len(part) > 1 for part in parts))
        known = cache(known)
        for part in parts:
            if self._settled(part):
                alone = sum(self.factors[f].evaluate([0] * len(self.factors[f].variables)) for f in part)
                cost, bound = cost + alone, bound + alone
                continue
            variables = list(dict.fromkeys(v for f in part for v in self.factors[f].variables))
            number = {variable: i for i, variable in enumerate(variables)}
            factors = [self.factors[f].over([number[v] for v in self.factors[f].variables]) for f in part]
            sizes = [self.sizes[variable] for variable in variables]
            search = _Search(
                factors, sizes, each, max_nodes, out_of_time, limit or WorkLimit(), cutoff - bound, needed=needed
            )
            found = search.run(lambda own=variables: (good := known()) and tuple(good[v] for v in own), patience)
            cost, bound, nodes = cost + found.cost, bound + found.bound, nodes + found.nodes
            for variable, chosen in zip(variables, found.choice, strict=False):
                choice[variable] = chosen
        return GraphSolution(tuple(choice), cost, bound, nodes)

    def eliminated(self, most: int) -> GraphSolution | None:
        """The least cost by eliminating one variable after the other; None where that takes tables of more than `most`
        entries."""
        if (found := self.upward(most)) is None:
            return None
        upward, numbers, constant = found
        choice, cost = [0] * len(self.sizes), upward.least + constant
        for variable, chosen in zip(numbers, upward.choice(), strict=True):
            choice[variable] = chosen
        return GraphSolution(tuple(choice), cost, cost, 0)

    def min_marginals(self, most: int) -> dict[int, Costs] | None:
        """For each variable with a choice what each of its choices costs at least; None as in `eliminated`."""
        if (found := self.upward(most)) is None or np.isinf(found[0].least):
            return None
        upward, numbers, constant = found
        return {v: costs + constant for v, costs in zip(numbers, upward.min_marginals()[0], strict=True)}

    def upward(self, most: int) -> tuple[Upward, list[int], float] | None:
        """The elimination of all variables with a choice, these in its order, and the cost of the factors that have
        none; what cannot be costs infinitely much. None as in `eliminated`."""
        tables: list[CostTable] = []
        constant = 0.0
        for factor in self.factors:
            variables = tuple(dict.fromkeys(factor.variables))
            sizes = [self.sizes[v] for v in factor.variables]
            if len(variables) < len(sizes) or factor.dense_entries(sizes) > most:  # a variable twice, or too large
                return None
            open_ones = tuple(v for v in variables if self.sizes[v] > 1)
            costs = factor.dense(sizes).reshape([self.sizes[v] for v in open_ones])
            costs = np.where(costs < FORBIDDEN / 2, costs, np.inf)
            if open_ones:
                tables.append(CostTable(open_ones, costs))
            else:
                constant += float(costs)
        numbers = sorted({v for table in tables for v in table.nodes})
        number = {variable: i for i, variable in enumerate(numbers)}
        tables = [CostTable(tuple(number[v] for v in table.nodes), table.costs) for table in tables]
        own = [self.sizes[v] for v in numbers]
        order = Order.of(own, tables, most, whole=True)
        return (eliminate(order, [np.zeros(size) for size in own], tables), numbers, constant) if order.exact else None

    def remainders(
        self, upper: float, keep: Sequence[NDArray[np.bool_]], out_of_time: Callable[[], bool] = lambda: False
    ) -> list[Remainder] | None:
        """The part that is left, by component, of the choices in `keep` that may be in a solution whose cost is at most
        `upper`; None where there is none. Components without a choice count as one.
        """
        made: list[Remainder] = []
        components = self._components()
        settled = [f for part in components if self._settled(part) for f in part]
        for part in filter(None, (settled, *(part for part in components if not self._settled(part)))):
            factors = [self.factors[f] for f in part]
            theta = [[np.zeros(self.sizes[v]) for v in factor.variables] for factor in factors]
            values = [np.arange(size, dtype=np.int64) for size in self.sizes]
            own = {v: keep[v] for factor in factors for v in factor.variables}
            left = Remainder(factors, theta, values, list(part)).restricted(own, 2 * FORBIDDEN)
            if left is None:
                return None
            made.append(left)
        before = -np.inf
        for sweep in range(_SWEEPS):
            for each in made:
                each.sweep(forward=True)
                each.sweep(forward=False)
            bound = sum(each.bound() for each in made)
            slack = upper - bound
            if slack < 0:
                return None
            smaller: list[Remainder] = []
            for each in made:
                left = each.restricted({}, slack)
                if left is None:
                    return None
                smaller.append(left)
            made = smaller
            if (sweep >= 4 and bound - before < 0.01 * slack) or out_of_time():
                break
            before = bound
        return made

    def _settled(self, part: Sequence[int]) -> bool:
        """Tells whether the variables of these factors have no choice."""
        return all(self.sizes[v] == 1 for f in part for v in self.factors[f].variables)

    def _components(self) -> list[list[int]]:
        """Factors (in order) that variables with a choice connect; what is demanded cuts a program in parts."""
        owner: dict[int, int] = {}
        parent = list(range(len(self.factors)))

        def find(f: int) -> int:
            while parent[f] != f:
                parent[f] = parent[parent[f]]
                f = parent[f]
            return f

        for f, factor in enumerate(self.factors):
            for variable in factor.variables:
                if self.sizes[variable] > 1:
                    parent[find(f)] = find(owner.setdefault(variable, f))
        parts: dict[int, list[int]] = {}
        for f in range(len(self.factors)):
            parts.setdefault(find(f), []).append(f)
        return list(parts.values())


class _Search:
    """Depth-first branch and bound; every node shrinks the problem by what cannot be in a better solution."""

    def __init__(
        self,
        factors: Sequence[Factor],
        sizes: Sequence[int],
        tolerance: float,
        max_nodes: int,
        out_of_time: Callable[[], bool],
        limit: WorkLimit,
        cutoff: float,
        *,
        needed: bool,
    ) -> None:
        self.factors = factors
        self.sizes = sizes
        self.tolerance = tolerance
        self.max_nodes = max_nodes
        self.out_of_time = out_of_time
        self.limit = limit
        self.cutoff = cutoff
        self.needed = needed
        self.nodes = 0
        self.best: tuple[int, ...] = ()
        self.evaluated: list[dict[tuple[int, ...], float]] = [{} for _ in factors]
        """What choices of its variables cost each factor."""
        self.best_cost = 2 * FORBIDDEN
        self.dived = False
        """True where a dive ended at the best choice, which may be dear."""

    def run(self, known: Callable[[], tuple[int, ...] | None], patience: int) -> GraphSolution:
        """The least cost of the factors."""
        theta = [[np.zeros(self.sizes[v]) for v in factor.variables] for factor in self.factors]
        values = [np.arange(size, dtype=np.int64) for size in self.sizes]
        whole = Remainder(list(self.factors), theta, values, list(range(len(self.factors))))
        most, bound = self.max_nodes, -np.inf
        for nodes in (min(patience, most), most):
            self.max_nodes, self.nodes = nodes, 0
            if nodes:
                bound = max(bound, self.explore(whole))
            if self.best_cost - bound <= self.tolerance or self.cut(bound) or self.ended() or nodes == most:
                break
            if (choice := known()) is not None:
                self.keep(choice)
        return GraphSolution(self.best, self.best_cost, min(bound, self.best_cost), self.nodes)

    def explore(self, problem: Remainder) -> float:
        """Searches beneath a node; returns a lower bound on everything there."""
        self.nodes += 1
        bound = problem.bound()
        for sweep in range(40):
            if self.best_cost - bound <= self.tolerance or self.cut(bound):
                return bound
            before = bound
            for forward in (True, False):
                self.limit.charge(PASSES / 2 * problem.entries())
                bound = problem.sweep(forward=forward)
                self.consider(problem, forward=not forward)
                gap = self.best_cost - bound
                # What is a tree is done after the way there, ties included.
                if gap <= (_EXACT * abs(bound) if forward else self.tolerance):
                    return bound
            smaller = problem.restricted({}, gap)
            if smaller is None:
                return self.best_cost
            problem = smaller
            if (sweep >= 2 and bound - before < 0.05 * gap) or self.ended():
                break
        if self.best_cost >= FORBIDDEN / 2:
            self.dive(problem)
        if self.nodes >= self.max_nodes or self.ended():
            return bound
        pivot = self.pivots(problem, 1)
        if not pivot:
            return bound
        beneath: list[float] = []
        for keep in (True, False):
            child = self.decided(problem, pivot, keep, self.best_cost - bound)
            beneath.append(self.best_cost if child is None else self.explore(child))
        return max(bound, min(beneath))

    def dive(self, problem: Remainder) -> None:
        """Decides several variables at a time, each at its least cost, and rules out what does not go with them: a
        first choice, where messages decode to none that goes together. From a dead end it goes back to the last
        decision, and takes fewer at a time, or of one variable anything else; so many times as `_DEAD_ENDS`."""
        decisions: list[tuple[Remainder, dict[int, int]]] = []
        dead_ends, width = 0, _AT_ONCE
        while not self.ended():
            self.limit.charge(problem.entries())
            pivots = self.pivots(problem, width)
            if not pivots:
                self.keep(problem.decode(forward=True), dived=True)
                return
            decisions.append((problem, pivots))
            width = min(2 * width, _AT_ONCE)
            left = self.decided(problem, pivots, True, FORBIDDEN / 2)
            while left is None:
                dead_ends += 1
                self.limit.charge(problem.entries())
                if not decisions or dead_ends > _DEAD_ENDS:
                    return
                problem, pivots = decisions.pop()
                width = max(1, len(pivots) // 4)
                left = problem if len(pivots) > 1 else self.decided(problem, pivots, False, FORBIDDEN / 2)
            problem = left

    def pivots(self, problem: Remainder, most: int) -> dict[int, int]:
        """So many variables that have no factor in common, the most ambiguous first, with their choices of least cost;
        none where none has a choice left."""
        ambiguity = [self.ambiguity(problem, variable) for variable in range(len(problem.values))]
        made: dict[int, int] = {}
        taken: set[int] = set()
        for variable in sorted(range(len(ambiguity)), key=lambda v: -ambiguity[v]):
            around = {f for f, _ in problem.neighbours[variable]}
            if len(made) == most or not ambiguity[variable]:
                break
            if not around & taken:
                taken |= around
                made[variable] = int(np.argmin(self.local_costs(problem, variable)))
        return made

    @staticmethod
    def decided(problem: Remainder, pivots: dict[int, int], keep: bool, slack: float) -> Remainder | None:
        """The part that is left with variables at their `pivots`, or at anything else; None where nothing is."""
        sizes = {variable: len(problem.values[variable]) for variable in pivots}
        return problem.restricted({v: (np.arange(sizes[v]) == pivot) == keep for v, pivot in pivots.items()}, slack)

    def cut(self, bound: float) -> bool:
        """Tells whether a choice is known, and none with this bound can matter."""
        return bound >= self.cutoff and self.best_cost < FORBIDDEN / 2

    def ended(self) -> bool:
        """Tells whether what was found so far has to do."""
        found = self.best_cost < FORBIDDEN / 2 and not self.dived
        return (found or not self.needed) and (self.limit.exhausted or self.out_of_time())

    def local_costs(self, problem: Remainder, variable: int) -> Costs:
        """The costs that the factors around a variable give its choices."""
        total = np.zeros(len(problem.values[variable]))
        for f, slot in problem.neighbours[variable]:
            total = total + problem.factors[f].min_marginals(problem.theta[f], {slot})[slot]
        return total

    def ambiguity(self, problem: Remainder, variable: int) -> float:
        """How much deciding a variable would decide: the number of factors around it, if it has a choice left."""
        return len(problem.neighbours[variable]) if len(problem.values[variable]) > 1 else 0.0

    def consider(self, problem: Remainder, *, forward: bool) -> None:
        """Keeps a decoded solution if it is better than the best."""
        choice = problem.decode(forward=forward)
        if choice != self.best:
            self.keep(choice)

    def keep(self, choice: tuple[int, ...], *, dived: bool = False) -> None:
        """Keeps a choice if it is better than the best."""
        cost = 0.0
        for factor, known in zip(self.factors, self.evaluated, strict=True):
            own = tuple(choice[v] for v in factor.variables)
            if own not in known:
                known[own] = factor.evaluate(own)
            cost += known[own]
        if cost < self.best_cost:
            self.best, self.best_cost, self.dived = choice, cost, dived


def improved(
    graph: FactorGraph, solution: GraphSolution, blocks: Sequence[tuple[list[int], list[list[int]]]]
) -> GraphSolution:
    """The solution with each block of variables, one after the other, at the best of its values as all else is; for
    what is gained within the tolerance of a proof."""
    choice, saved = list(solution.choice), 0.0
    touching: dict[int, list[Factor]] = {}
    for factor in graph.factors:
        for variable in factor.variables:
            touching.setdefault(variable, []).append(factor)
    for variables, values in blocks:
        factors = {id(factor): factor for v in variables for factor in touching.get(v, ())}.values()
        costs: list[float] = []
        now = [choice[v] for v in variables]
        for each in (now, *values):
            instead = dict(zip(variables, each, strict=True))
            costs.append(sum(f.evaluate([instead.get(v, choice[v]) for v in f.variables]) for f in factors))
        best = min(range(len(costs)), key=costs.__getitem__)
        saved += costs[0] - costs[best]
        for variable, value in zip(variables, (now, *values)[best], strict=True):
            choice[variable] = value
    return replace(solution, choice=tuple(choice), cost=solution.cost - saved)
