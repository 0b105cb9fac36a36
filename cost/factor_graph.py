"""Exact minimisation over layouts: a dual bound by message passing, closed by branch and bound.

The problem is a bipartite graph. *Variables* are layouts: the one in which an operation leaves a value, and
the one in which each use takes it. *Factors* charge for combinations of them: a `TableFactor` lists the
strategies of an operation, a `TreeFactor` charges for moving one value from its home to all layouts that its
uses take, each layout paid once (a Steiner arborescence, minimised over all of them at once). Every variable
stands between at most two factors.

The bound is the sum of the factors' minima after costs have been shifted between factors that share a
variable (sequential reparametrised message passing, Kolmogorov 2015): exact on trees in one sweep, and in
general a lower bound that branching closes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]

FORBIDDEN = 1e18
"""The cost of what cannot be; sums of real costs stay far below it."""


@dataclass
class TableFactor:
    """Rows of choices, one column per variable, with the cost of each row."""

    variables: tuple[int, ...]
    rows: NDArray[np.int64]
    costs: Costs
    _sorted: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._sorted = []
        for column in self.rows.T:
            order = np.argsort(column, kind="stable")
            values, starts = np.unique(column[order], return_index=True)
            self._sorted.append((order, values.astype(np.int64), starts.astype(np.int64)))

    def totals(self, theta: Sequence[Costs]) -> Costs:
        total = self.costs.copy()
        for column, costs in zip(self.rows.T, theta, strict=True):
            total += costs[column]
        return total

    def min_marginals(self, theta: Sequence[Costs]) -> list[Costs]:
        """For each variable and each of its choices, the least cost of the factor with that choice."""
        total = self.totals(theta)
        made: list[Costs] = []
        for (order, values, starts), costs in zip(self._sorted, theta, strict=True):
            marginal = np.full(len(costs), FORBIDDEN)
            if len(values):
                marginal[values] = np.minimum.reduceat(total[order], starts)
            made.append(marginal)
        return made

    def evaluate(self, choice: Sequence[int]) -> float:
        """The cost of one choice for each variable."""
        fits = np.all(self.rows == np.asarray(choice)[None, :], axis=1)
        return float(self.costs[fits].min()) if fits.any() else FORBIDDEN


@dataclass
class TreeFactor:
    """A value's home (the first variable) and the layouts that its uses take, with the costs of moving between layouts.

    `rigid` uses take the value as it lies at home (movements that the author wrote). The others are the leaves
    of an arborescence rooted at home; by dynamic programming over subsets of them (Dreyfus and Wagner 1971).
    """

    variables: tuple[int, ...]
    moves: Costs
    rigid: tuple[bool, ...]

    def _split(self, theta: Sequence[Costs]) -> tuple[Costs, list[Costs]]:
        root = theta[0].copy()
        leaves: list[Costs] = []
        for costs, stays in zip(theta[1:], self.rigid, strict=True):
            if stays:
                root += costs
            else:
                leaves.append(costs)
        return root, leaves

    def subtrees(self, leaves: Sequence[Costs]) -> tuple[list[Costs], list[Costs]]:
        """`served[S][l]`: the leaves S from a copy at l; `reached[S][h]`: the same with one move from h first."""
        n = 1 << len(leaves)
        served: list[Costs] = [np.zeros(len(self.moves))] * n
        reached: list[Costs] = [np.zeros(len(self.moves))] * n
        for subset in range(1, n):
            if subset & (subset - 1) == 0:
                served[subset] = leaves[subset.bit_length() - 1]
            else:
                served[subset] = np.minimum.reduce([reached[a] + reached[subset ^ a] for a in _halves(subset)])
            reached[subset] = (self.moves + served[subset][None, :]).min(axis=1)
        return served, reached

    def min_marginals(self, theta: Sequence[Costs]) -> list[Costs]:
        """For each variable and each of its choices, the least cost of the factor with that choice."""
        root, leaves = self._split(theta)
        _, reached = self.subtrees(leaves)
        full = len(reached) - 1
        home = root + reached[full] if leaves else root
        made: list[Costs] = [home]
        marginals: list[Costs] = []
        if leaves:
            outside_reached: list[Costs] = [np.full(len(root), FORBIDDEN)] * (full + 1)
            outside_served = list(outside_reached)
            outside_reached[full] = root
            for subset in range(full, 0, -1):
                outside_served[subset] = (outside_reached[subset][:, None] + self.moves).min(axis=0)
                if subset & (subset - 1):
                    for part in _halves(subset):
                        for a in (part, subset ^ part):
                            rest = outside_served[subset] + reached[subset ^ a]
                            outside_reached[a] = np.minimum(outside_reached[a], rest)
            marginals = [outside_served[1 << i] + leaf for i, leaf in enumerate(leaves)]
        moving = iter(marginals)
        made.extend(home if stays else next(moving) for stays in self.rigid)
        return made

    def evaluate(self, choice: Sequence[int]) -> float:
        """The cost of the cheapest arborescence for one choice of home and uses."""
        if any(stays and use != choice[0] for use, stays in zip(choice[1:], self.rigid, strict=True)):
            return FORBIDDEN
        targets = [use for use, stays in zip(choice[1:], self.rigid, strict=True) if not stays]
        return arborescence(self.moves, choice[0], targets)[0]


Factor = TableFactor | TreeFactor


def _halves(subset: int) -> list[int]:
    """The proper parts of a subset that hold its lowest element; with their complements, all ways to cut it in two."""
    low = subset & -subset
    rest = subset ^ low
    parts: list[int] = []
    part = rest
    while part:
        part = (part - 1) & rest
        parts.append(part | low)
    return parts


def arborescence(moves: Costs, home: int, targets: Sequence[int]) -> tuple[float, list[tuple[int, int]]]:
    """The cheapest way to reach all targets from home: its cost, and its moves (from, to), parents first."""
    wanted = list(dict.fromkeys(t for t in targets if t != home))
    if not wanted:
        return 0.0, []
    leaves: list[Costs] = []
    for target in wanted:
        leaf = np.full(len(moves), FORBIDDEN)
        leaf[target] = 0.0
        leaves.append(leaf)
    tree = TreeFactor((), moves, (False,) * len(wanted))
    served, reached = tree.subtrees(leaves)
    edges: list[tuple[int, int]] = []

    def descend(subset: int, at: int) -> None:
        to = int(np.argmin(moves[at] + served[subset]))
        if to != at:
            edges.append((at, to))
        if subset & (subset - 1):
            totals = [(float(reached[a][to] + reached[subset ^ a][to]), a) for a in _halves(subset)]
            _, part = min(totals)
            descend(part, to)
            descend(subset ^ part, to)

    full = len(served) - 1
    descend(full, home)
    return float(reached[full][home]), list(dict.fromkeys(edges))


@dataclass(frozen=True)
class Solution:
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

    def minimize(self, tolerance: float, max_nodes: int = 400) -> Solution:
        """The least cost, proved to within `tolerance` unless `max_nodes` branches were not enough.

        Deterministic: ties go to the earlier choice. `cost >= FORBIDDEN / 2` means that nothing is feasible.
        """
        return _Search(self, tolerance, max_nodes).run()


class _Search:
    def __init__(self, graph: FactorGraph, tolerance: float, max_nodes: int) -> None:
        self.graph = graph
        self.tolerance = tolerance
        self.max_nodes = max_nodes
        self.nodes = 0
        self.best: tuple[int, ...] = ()
        self.best_cost = float("inf")
        self.places: list[list[tuple[int, int]]] = [[] for _ in graph.sizes]
        for f, factor in enumerate(graph.factors):
            for slot, variable in enumerate(factor.variables):
                self.places[variable].append((f, slot))

    def run(self) -> Solution:
        theta = [[np.zeros(self.graph.sizes[v]) for v in factor.variables] for factor in self.graph.factors]
        bound = self.node(theta)
        return Solution(self.best, self.best_cost, min(bound, self.best_cost), self.nodes)

    def node(self, theta: list[list[Costs]]) -> float:
        """Explores one node of the tree; returns a lower bound on everything beneath it."""
        self.nodes += 1
        bound = -float("inf")
        for sweep in range(60):
            self.sweep(theta, forward=True)
            self.decode(theta, forward=False)
            self.sweep(theta, forward=False)
            self.decode(theta, forward=True)
            new = self.bound(theta)
            if self.best_cost - new <= self.tolerance:
                return new
            stalled = new - bound <= max(self.tolerance, 1e-3 * (self.best_cost - new))
            bound = max(bound, new)
            if stalled and sweep >= 2:
                break
        if self.nodes >= self.max_nodes:
            return bound
        variable = self.branching_variable(theta)
        if variable is None:
            return bound
        pivot = self.best[variable]
        results: list[float] = []
        for keep in (True, False):
            child = [[costs.copy() for costs in slots] for slots in theta]
            f, slot = self.places[variable][0]
            penalty = np.full(self.graph.sizes[variable], FORBIDDEN if keep else 0.0)
            penalty[pivot] = 0.0 if keep else FORBIDDEN
            child[f][slot] += penalty
            results.append(self.node(child) if self.best_cost - bound > self.tolerance else bound)
        return max(bound, min(results))

    def sweep(self, theta: list[list[Costs]], *, forward: bool) -> None:
        """Pushes each factor's costs on to the factors after it (or before it)."""
        indices = range(len(theta))
        for f in indices if forward else reversed(indices):
            factor = self.graph.factors[f]
            ahead: list[tuple[int, int, int]] = []
            for slot, variable in enumerate(factor.variables):
                for g, other in self.places[variable]:
                    if (g > f) if forward else (g < f):
                        ahead.append((slot, g, other))
            if not ahead:
                continue
            marginals = factor.min_marginals(theta[f])
            for slot, g, other in ahead:
                shift = (marginals[slot] - marginals[slot].min()) / len(ahead)
                theta[f][slot] -= shift
                theta[g][other] += shift

    def bound(self, theta: list[list[Costs]]) -> float:
        total = 0.0
        for factor, slots in zip(self.graph.factors, theta, strict=True):
            if isinstance(factor, TableFactor):
                total += float(factor.totals(slots).min())
            else:
                total += float(factor.min_marginals(slots)[0].min())
        return total

    def decode(self, theta: list[list[Costs]], *, forward: bool) -> None:
        """A choice made factor by factor, each the best given those before; kept if it is the best so far.

        Backward after a forward sweep it is exact on trees: each factor then knows the costs of all before it.
        """
        choice: dict[int, int] = {}
        indices = range(len(theta))
        for f in indices if forward else reversed(indices):
            factor, slots = self.graph.factors[f], theta[f]
            fixed = [costs.copy() for costs in slots]
            for slot, variable in enumerate(factor.variables):
                if variable in choice:
                    _fix(fixed[slot], choice[variable])
            if isinstance(factor, TableFactor):
                row = factor.rows[int(np.argmin(factor.totals(fixed)))]
                for variable, chosen in zip(factor.variables, row, strict=True):
                    choice.setdefault(variable, int(chosen))
                continue
            for slot, variable in enumerate(factor.variables):
                if variable not in choice:
                    choice[variable] = int(np.argmin(factor.min_marginals(fixed)[slot]))
                    _fix(fixed[slot], choice[variable])
        complete = tuple(choice.get(v, 0) for v in range(len(self.graph.sizes)))
        cost = sum(factor.evaluate([complete[v] for v in factor.variables]) for factor in self.graph.factors)
        if cost < self.best_cost:
            self.best, self.best_cost = complete, cost

    def branching_variable(self, theta: list[list[Costs]]) -> int | None:
        """The variable whose two factors disagree most about the best choice found."""
        worst, chosen = self.tolerance * 1e-3, None
        regrets = [0.0] * len(self.graph.sizes)
        for factor, slots in zip(self.graph.factors, theta, strict=True):
            for slot, marginal in enumerate(factor.min_marginals(slots)):
                variable = factor.variables[slot]
                regrets[variable] += float(marginal[self.best[variable]] - marginal.min())
        for variable, regret in enumerate(regrets):
            if regret > worst and len(self.places[variable]) > 0:
                worst, chosen = regret, variable
        return chosen


def _fix(costs: Costs, choice: int) -> None:
    kept = costs[choice]
    costs += FORBIDDEN
    costs[choice] = kept
