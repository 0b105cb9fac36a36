"""Factors of a layout problem: an operation's table of strategies, and the tree of a value's movements.

Both say, for costs put on their variables' choices, what each choice costs at least (its min-marginal), which is
what `cost.factor_graph` passes between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
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
    numbers: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Of the rows, in the table that they are left of."""
    _sorted: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not len(self.numbers):
            self.numbers = np.arange(len(self.rows), dtype=np.int64)
        self._sorted = []
        for column in self.rows.T:
            order = np.argsort(column, kind="stable")
            values, starts = np.unique(column[order], return_index=True)
            self._sorted.append((order, values.astype(np.int64), starts.astype(np.int64)))

    @property
    def entries(self) -> int:
        """How many numbers are looked at when the factor is asked once."""
        return self.rows.size

    def priced(self, costs: Costs) -> TableFactor:
        """The same rows at other costs."""
        made = copy(self)
        made.costs = costs
        return made

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

    @property
    def entries(self) -> int:
        """How many numbers are looked at when the factor is asked once."""
        return self.moves.size * ((1 << self.rigid.count(False)) - 1)

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
            _, part = min((float(reached[a][to] + reached[subset ^ a][to]), a) for a in halves(subset))
            descend(part, to)
            descend(subset ^ part, to)

        if leaves:
            descend(len(served) - 1, home)
        moving = iter(layouts)
        chosen = [home, *(home if stays else next(moving) for stays in self.rigid)]
        # Where rigid uses contradict each other or home nothing is allowed, and any choice costs as much.
        at = [int(np.searchsorted(place, layout)) for place, layout in zip(self.places, chosen, strict=True)]
        return [min(i, len(place) - 1) for i, place in zip(at, self.places, strict=True)]

    def min_marginals(self, theta: Sequence[Costs]) -> list[Costs]:
        """For each variable and each of its choices, the least cost of the factor with that choice."""
        root, leaves = self._root_and_leaves(theta)
        _, reached = subtrees(self.moves, leaves)
        home = root + reached[-1] if leaves else root
        marginals = iter(self._leaf_marginals(root, leaves, reached))
        by_slot = [home, *(home if stays else next(marginals) for stays in self.rigid)]
        return [marginal[place] for marginal, place in zip(by_slot, self.places, strict=True)]

    def move_marginals(self, theta: Sequence[Costs]) -> list[Costs]:
        """For each subset of the leaves (of which there must be one) and each pair of layouts, the least cost of the
        factor where the branch of just these leaves goes from the one to the other."""
        root, leaves = self._root_and_leaves(theta)
        served, reached = subtrees(self.moves, leaves)
        outside, _ = self._outside(root, reached)
        return [o[:, None] + self.moves + s[None, :] for o, s in zip(outside, served, strict=True)]

    def _leaf_marginals(self, root: Costs, leaves: Sequence[Costs], reached: Sequence[Costs]) -> list[Costs]:
        """The least cost for each layout of each leaf: what lies outside its branch, and the leaf itself."""
        _, outside_served = self._outside(root, reached)
        return [outside_served[1 << i] + leaf for i, leaf in enumerate(leaves)]

    def _outside(self, root: Costs, reached: Sequence[Costs]) -> tuple[list[Costs], list[Costs]]:
        """The least cost of all but a subset's branch, by the layout that it sets out from, and that it arrives at."""
        full = len(reached) - 1
        outside_reached: list[Costs] = [np.full(len(root), FORBIDDEN)] * (full + 1)
        outside_served = list(outside_reached)
        outside_reached[full] = root
        for subset in range(full, 0, -1):
            outside_served[subset] = (outside_reached[subset][:, None] + self.moves).min(axis=0)
            if subset & (subset - 1):
                for part in halves(subset):
                    for a in (part, subset ^ part):
                        rest = outside_served[subset] + reached[subset ^ a]
                        outside_reached[a] = np.minimum(outside_reached[a], rest)
        return outside_reached, outside_served

    def restricted(self, masks: Sequence[NDArray[np.bool_]]) -> TreeFactor:
        """The factor with fewer choices; layouts on the way stay."""
        places = tuple(place[mask] for place, mask in zip(self.places, masks, strict=True))
        return TreeFactor(self.variables, self.moves, places, self.rigid)

    def compacted(self) -> TreeFactor:
        """The factor without the layouts that are no choice: the one move of a single use has none on its way."""
        if self.rigid.count(False) > 1:
            return self
        left = np.unique(np.concatenate(self.places))
        if len(left) > 0.7 * len(self.moves):
            return self
        places = tuple(np.searchsorted(left, place).astype(np.int64) for place in self.places)
        return TreeFactor(self.variables, self.moves[np.ix_(left, left)], places, self.rigid)

    def evaluate(self, choice: Sequence[int]) -> float:
        """The cost of the cheapest arborescence for one choice of home and uses."""
        layouts = [int(place[c]) for place, c in zip(self.places, choice, strict=True)]
        if any(stays and use != layouts[0] for use, stays in zip(layouts[1:], self.rigid, strict=True)):
            return FORBIDDEN
        targets = [use for use, stays in zip(layouts[1:], self.rigid, strict=True) if not stays]
        return arborescence(self.moves, layouts[0], targets)[0]


Factor = TableFactor | TreeFactor


@lru_cache(maxsize=1 << 12)
def halves(subset: int) -> tuple[int, ...]:
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
            served[subset] = np.minimum.reduce([reached[a] + reached[subset ^ a] for a in halves(subset)])
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
            totals = [(float(reached[a][to] + reached[subset ^ a][to]), a) for a in halves(subset)]
            _, part = min(totals)
            descend(part, to)
            descend(subset ^ part, to)

    full = len(served) - 1
    descend(full, home)
    return float(reached[full][home]), list(dict.fromkeys(edges))
