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
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]

FORBIDDEN = 1e30
"""The cost of what cannot be. It never enters the shifted costs, only minima over them."""


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

    def least(self, theta: Sequence[Costs]) -> float:
        """The least cost of the factor."""
        return float(self.totals(theta).min())

    def best(self, theta: Sequence[Costs]) -> list[int]:
        """A choice for each variable at the least cost of the factor; the earliest row of several."""
        return [int(chosen) for chosen in self.rows[int(np.argmin(self.totals(theta)))]]

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

    `moves` is over all layouts that may occur on the way; `places[i]` says which of them the choices of the
    i-th variable are. `rigid` uses take the value as it lies at home (movements that the author wrote). The
    others are the leaves of an arborescence rooted at home; by dynamic programming over subsets of them
    (Dreyfus and Wagner 1971).
    """

    variables: tuple[int, ...]
    moves: Costs
    places: tuple[NDArray[np.int64], ...]
    rigid: tuple[bool, ...]

    def spread(self, slot: int, costs: Costs) -> Costs:
        """Costs of a variable's choices as costs of layouts."""
        spread = np.full(len(self.moves), FORBIDDEN)
        spread[self.places[slot]] = costs
        return spread

    def _root_and_leaves(self, theta: Sequence[Costs]) -> tuple[Costs, list[Costs]]:
        """Costs by layout: of home, together with the uses that stay there, and of each other use."""
        root = self.spread(0, theta[0])
        leaves: list[Costs] = []
        for slot, stays in enumerate(self.rigid, 1):
            if stays:
                root = root + self.spread(slot, theta[slot])
            else:
                leaves.append(self.spread(slot, theta[slot]))
        return root, leaves

    def least(self, theta: Sequence[Costs]) -> float:
        """The least cost of the factor."""
        root, leaves = self._root_and_leaves(theta)
        return float((root + subtrees(self.moves, leaves)[1][-1] if leaves else root).min())

    def best(self, theta: Sequence[Costs]) -> list[int]:
        """A choice for each variable at the least cost of the factor; the earliest home of several."""
        root, leaves = self._root_and_leaves(theta)
        served, reached = subtrees(self.moves, leaves)
        home = int(np.argmin(root + reached[-1] if leaves else root))
        layouts = [home] * len(leaves)

        def descend(subset: int, at: int) -> None:
            to = int(np.argmin(self.moves[at] + served[subset]))
            if subset & (subset - 1) == 0:
                layouts[subset.bit_length() - 1] = to
                return
            _, part = min((float(reached[a][to] + reached[subset ^ a][to]), a) for a in _halves(subset))
            descend(part, to)
            descend(subset ^ part, to)

        if leaves:
            descend(len(served) - 1, home)
        moving = iter(layouts)
        chosen = [home, *(home if stays else next(moving) for stays in self.rigid)]
        return [int(np.searchsorted(place, layout)) for place, layout in zip(self.places, chosen, strict=True)]

    def min_marginals(self, theta: Sequence[Costs]) -> list[Costs]:
        """For each variable and each of its choices, the least cost of the factor with that choice."""
        root, leaves = self._root_and_leaves(theta)
        _, reached = subtrees(self.moves, leaves)
        home = root + reached[-1] if leaves else root
        marginals = iter(self._leaf_marginals(root, leaves, reached))
        by_slot = [home, *(home if stays else next(marginals) for stays in self.rigid)]
        return [marginal[place] for marginal, place in zip(by_slot, self.places, strict=True)]

    def _leaf_marginals(self, root: Costs, leaves: Sequence[Costs], reached: Sequence[Costs]) -> list[Costs]:
        """The least cost for each layout of each leaf: what lies outside its branch, and the leaf itself."""
        full = len(reached) - 1
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
        return [outside_served[1 << i] + leaf for i, leaf in enumerate(leaves)]

    def restricted(self, masks: Sequence[NDArray[np.bool_]]) -> TreeFactor:
        """The factor with fewer choices; layouts on the way stay."""
        places = tuple(place[mask] for place, mask in zip(self.places, masks, strict=True))
        return TreeFactor(self.variables, self.moves, places, self.rigid)

    def evaluate(self, choice: Sequence[int]) -> float:
        """The cost of the cheapest arborescence for one choice of home and uses."""
        layouts = [int(place[c]) for place, c in zip(self.places, choice, strict=True)]
        if any(stays and use != layouts[0] for use, stays in zip(layouts[1:], self.rigid, strict=True)):
            return FORBIDDEN
        targets = [use for use, stays in zip(layouts[1:], self.rigid, strict=True) if not stays]
        return arborescence(self.moves, layouts[0], targets)[0]


Factor = TableFactor | TreeFactor


@lru_cache(maxsize=1 << 12)
def _halves(subset: int) -> tuple[int, ...]:
    """The proper parts of a subset that hold its lowest element; with their complements, all ways to cut it in two."""
    low = subset & -subset
    rest = subset ^ low
    parts: list[int] = []
    part = rest
    while part:
        part = (part - 1) & rest
        parts.append(part | low)
    return tuple(parts)


def subtrees(moves: Costs, leaves: Sequence[Costs]) -> tuple[list[Costs], list[Costs]]:
    """`served[S][l]`: the least cost of the leaves S from a copy at l; `reached[S][h]`: with one move from h first."""
    n = 1 << len(leaves)
    served: list[Costs] = [np.zeros(len(moves))] * n
    reached: list[Costs] = [np.zeros(len(moves))] * n
    for subset in range(1, n):
        if subset & (subset - 1) == 0:
            served[subset] = leaves[subset.bit_length() - 1]
        else:
            served[subset] = np.minimum.reduce([reached[a] + reached[subset ^ a] for a in _halves(subset)])
        reached[subset] = (moves + served[subset][None, :]).min(axis=1)
    return served, reached


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
    served, reached = subtrees(moves, leaves)
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

    def minimize(self, tolerance: float, max_nodes: int = 300) -> Solution:
        """The least cost, proved to within `tolerance` unless `max_nodes` branches were not enough.

        Deterministic: ties go to the earlier choice. `cost >= FORBIDDEN / 2` means that nothing is feasible.
        """
        choice = [0] * len(self.sizes)
        cost = bound = 0.0
        nodes = 0
        for part in self._components():
            found = _Search(self, tolerance, max_nodes).run(part)
            cost, bound, nodes = cost + found.cost, bound + found.bound, nodes + found.nodes
            for f in part:
                for variable in self.factors[f].variables:
                    choice[variable] = found.choice[variable] if found.choice else 0
        return Solution(tuple(choice), cost, bound, nodes)

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


@dataclass
class _Problem:
    """What is left of the graph at a node of the search tree.

    `theta[f][slot]` are the costs shifted into factor f at one of its variables; `values[v]` are the original
    numbers of the choices that variable v still has. `constant` has been paid by factors that are decided.
    """

    factors: list[Factor]
    theta: list[list[Costs]]
    values: list[NDArray[np.int64]]
    constant: float = 0.0
    neighbours: list[list[tuple[int, int]]] = field(init=False)

    def __post_init__(self) -> None:
        self.neighbours = [[] for _ in self.values]
        for f, factor in enumerate(self.factors):
            for slot, variable in enumerate(factor.variables):
                self.neighbours[variable].append((f, slot))

    def bound(self) -> float:
        least = (factor.least(theta) for factor, theta in zip(self.factors, self.theta, strict=True))
        return self.constant + sum(least)

    def sweep(self, *, forward: bool) -> None:
        """Pushes each factor's costs on to the factors after it (or before it); the bound does not fall."""
        indices = range(len(self.factors))
        for f in indices if forward else reversed(indices):
            factor = self.factors[f]
            ahead = [
                (slot, g, other)
                for slot, variable in enumerate(factor.variables)
                for g, other in self.neighbours[variable]
                if ((g > f) if forward else (g < f))
            ]
            if not ahead:
                continue
            marginals = factor.min_marginals(self.theta[f])
            for slot, g, other in ahead:
                shift = (marginals[slot] - marginals[slot].min()) / len(ahead)
                self.theta[f][slot] = self.theta[f][slot] - shift
                self.theta[g][other] = self.theta[g][other] + shift

    def decode(self, *, forward: bool) -> tuple[int, ...]:
        """A choice (in original numbers) made factor by factor, each the best given those before.

        Backward after a forward sweep it is exact on trees: each factor then knows the costs of all before it.
        """
        choice = [-1] * len(self.values)
        indices = range(len(self.factors))
        for f in indices if forward else reversed(indices):
            factor = self.factors[f]
            fixed = [costs.copy() for costs in self.theta[f]]
            for slot, variable in enumerate(factor.variables):
                if choice[variable] >= 0:
                    _fix(fixed[slot], choice[variable])
            for variable, chosen in zip(factor.variables, factor.best(fixed), strict=True):
                if choice[variable] < 0:
                    choice[variable] = chosen
        choice = [max(c, 0) for c in choice]
        return tuple(int(values[c]) for values, c in zip(self.values, choice, strict=True))

    def restricted(self, keep: list[NDArray[np.bool_]], slack: float) -> _Problem | None:
        """The problem without choices that are not kept or cost more than `slack` above the bound; None if empty."""
        masks = [mask.copy() for mask in keep]
        rows_left: list[NDArray[np.bool_] | None] = []
        for factor, theta in zip(self.factors, self.theta, strict=True):
            marginals = factor.min_marginals(theta)
            least = float(marginals[0].min())
            for marginal, variable in zip(marginals, factor.variables, strict=True):
                masks[variable] &= marginal <= least + slack
            rows_left.append(factor.totals(theta) <= least + slack if isinstance(factor, TableFactor) else None)
        if not _consistent(self.factors, masks, rows_left):
            return None
        number = [np.cumsum(mask) - 1 for mask in masks]
        values = [v[mask] for v, mask in zip(self.values, masks, strict=True)]
        factors: list[Factor] = []
        shifted: list[list[Costs]] = []
        constant = self.constant
        for factor, theta, rows in zip(self.factors, self.theta, rows_left, strict=True):
            kept = [costs[masks[v]] for costs, v in zip(theta, factor.variables, strict=True)]
            if isinstance(factor, TableFactor):
                columns = [number[v][factor.rows[rows, k]] for k, v in enumerate(factor.variables)]
                smaller: Factor = TableFactor(
                    factor.variables, np.stack(columns, axis=1).astype(np.int64), factor.costs[rows]
                )
            else:
                smaller = factor.restricted([masks[v] for v in factor.variables])
            if all(len(costs) == 1 for costs in kept):
                constant += float(smaller.min_marginals(kept)[0][0])
                continue
            factors.append(smaller)
            shifted.append(kept)
        return _Problem(factors, shifted, values, constant)


def _consistent(
    factors: Sequence[Factor], masks: list[NDArray[np.bool_]], rows_left: list[NDArray[np.bool_] | None]
) -> bool:
    """Drops rows without support and choices without rows until nothing changes; False if a variable is left empty."""
    changed = True
    while changed:
        changed = False
        for f, factor in enumerate(factors):
            rows = rows_left[f]
            if not isinstance(factor, TableFactor) or rows is None:
                continue
            kept = rows.copy()
            for k, variable in enumerate(factor.variables):
                kept &= masks[variable][factor.rows[:, k]]
            rows_left[f] = kept
            for k, variable in enumerate(factor.variables):
                supported = np.zeros_like(masks[variable])
                supported[factor.rows[kept, k]] = True
                supported &= masks[variable]
                if supported.sum() < masks[variable].sum():
                    masks[variable] = supported
                    changed = True
                if not supported.any():
                    return False
    return all(bool(mask.any()) for mask in masks)


class _Search:
    """Depth-first branch and bound; every node shrinks the problem by what cannot be in a better solution."""

    def __init__(self, graph: FactorGraph, tolerance: float, max_nodes: int) -> None:
        self.graph = graph
        self.tolerance = tolerance
        self.max_nodes = max_nodes
        self.nodes = 0
        self.factors: list[Factor] = []
        self.best: tuple[int, ...] = ()
        self.best_cost = 2 * FORBIDDEN

    def run(self, part: list[int]) -> Solution:
        """The least cost of these factors; choices of other variables mean nothing."""
        self.factors = [self.graph.factors[f] for f in part]
        theta = [[np.zeros(self.graph.sizes[v]) for v in factor.variables] for factor in self.factors]
        values = [np.arange(size, dtype=np.int64) for size in self.graph.sizes]
        bound = self.explore(_Problem(list(self.factors), theta, values))
        return Solution(self.best, self.best_cost, min(bound, self.best_cost), self.nodes)

    def explore(self, problem: _Problem) -> float:
        """Searches beneath a node; returns a lower bound on everything there."""
        self.nodes += 1
        bound = problem.bound()
        for sweep in range(40):
            if self.best_cost - bound <= self.tolerance:
                return bound
            problem.sweep(forward=True)
            self.consider(problem, forward=False)
            problem.sweep(forward=False)
            self.consider(problem, forward=True)
            before, bound = bound, problem.bound()
            gap = self.best_cost - bound
            if gap <= self.tolerance:
                return bound
            everything = [np.ones(len(values), np.bool_) for values in problem.values]
            smaller = problem.restricted(everything, gap)
            if smaller is None:
                return self.best_cost
            problem = smaller
            if sweep >= 2 and bound - before < 0.05 * gap:
                break
        if self.nodes >= self.max_nodes:
            return bound
        variable = max(range(len(problem.values)), key=lambda v: self.ambiguity(problem, v))
        if self.ambiguity(problem, variable) <= 0:
            return bound
        pivot = int(np.argmin(self.local_costs(problem, variable)))
        beneath: list[float] = []
        for keep_pivot in (True, False):
            keep = [np.ones(len(values), np.bool_) for values in problem.values]
            keep[variable][:] = not keep_pivot
            keep[variable][pivot] = keep_pivot
            child = problem.restricted(keep, self.best_cost - bound)
            beneath.append(self.best_cost if child is None else self.explore(child))
        return max(bound, min(beneath))

    def local_costs(self, problem: _Problem, variable: int) -> Costs:
        """What the factors around a variable say of its choices."""
        total = np.zeros(len(problem.values[variable]))
        for f, slot in problem.neighbours[variable]:
            total = total + problem.factors[f].min_marginals(problem.theta[f])[slot]
        return total

    def ambiguity(self, problem: _Problem, variable: int) -> float:
        """How much deciding a variable would decide: the number of factors around it, if it has a choice left."""
        return len(problem.neighbours[variable]) if len(problem.values[variable]) > 1 else 0.0

    def consider(self, problem: _Problem, *, forward: bool) -> None:
        """Keeps a decoded solution if it is better than the best."""
        choice = problem.decode(forward=forward)
        if choice == self.best:
            return
        cost = sum(factor.evaluate([choice[v] for v in factor.variables]) for factor in self.factors)
        if cost < self.best_cost:
            self.best, self.best_cost = choice, cost


def _fix(costs: Costs, choice: int) -> None:
    kept = costs[choice]
    costs[:] = FORBIDDEN
    costs[choice] = kept
