"""Factors of a layout problem: an operation's table of strategies, and the tree of a value's movements.

Both say, for costs put on their variables' choices, what each choice costs at least (its min-marginal), which is
what `cost.choosing.factor_graph` passes between them.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.table_factor import EVERY, FORBIDDEN, Costs, TableFactor


@dataclass
class TreeFactor:
    """A value's home (the first variable) and the layouts that its uses take, with the costs of moving between layouts.

    `moves` is over all layouts that may occur on the way; `places[i]` says which of them the choices of the
    i-th variable are. `rigid` uses take the value as it lies at home (movements that the author wrote). The
    others are the leaves of an arborescence rooted at home; by dynamic programming over subsets of them
    (Dreyfus and Wagner 1971). `last` are the costs of the last move to a use, where they are others than `moves`.
    `parting`, by the layout of home, is added unless every use is reached by a single last move that costs nothing.
    """

    variables: tuple[int, ...]
    moves: Costs
    places: tuple[NDArray[np.int64], ...]
    rigid: tuple[bool, ...]
    last: tuple[Costs, ...] = ()
    parting: Costs | None = None
    _latest: tuple[tuple[Costs, ...], tuple[list[Costs], list[Costs]]] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    """Costs of the leaves, and what `_grown` made of them."""

    @staticmethod
    def of(
        variables: tuple[int, ...],
        moves: Costs,
        places: tuple[NDArray[np.int64], ...],
        rigid: tuple[bool, ...],
        last: tuple[Costs, ...] = (),
        parting: Costs | None = None,
    ) -> TreeFactor:
        """A tree; with a single leaf the costs of its last move, and of parting, are those of the move."""
        if rigid.count(False) > 1:
            return TreeFactor(variables, moves, places, rigid, last, parting)
        if last and not all(rigid):
            moves = last[rigid.index(False)]
        if parting is not None:
            moves = np.minimum(moves + np.where(moves == 0.0, 0.0, parting[:, None]), FORBIDDEN)
        return TreeFactor(variables, moves, places, rigid)

    def into(self, slot: int) -> Costs:
        """The costs of the last move to a use, by layouts from and to."""
        return self.last[slot - 1] if self.last else self.moves

    @property
    def entries(self) -> int:
        """How many numbers are looked at when the factor is asked once."""
        leaves = [len(self.places[slot]) for slot in self._leaf_slots]
        return tree_entries(len(self.moves), len(self.places[0]), leaves)

    @cached_property
    def _leaf_slots(self) -> list[int]:
        """The uses that may lie elsewhere than home."""
        return [slot for slot, stays in enumerate(self.rigid, 1) if not stays]

    @cached_property
    def _from_home(self) -> Costs:
        """Moves from the choices of home: to those of the only leaf, or to all layouts."""
        if len(self._leaf_slots) == 1:
            return self.moves[self.places[0][:, None], self.places[self._leaf_slots[0]][None, :]]
        return self.moves[self.places[0]]

    @cached_property
    def _to_leaf(self) -> list[Costs]:
        """Moves to the choices of each leaf, from all layouts, or to the only leaf from the choices of home."""
        if len(self._leaf_slots) == 1:
            return [self._from_home]
        return [self.into(slot).take(self.places[slot], axis=1) for slot in self._leaf_slots]

    @cached_property
    def _nothing_moved(self) -> list[Costs]:
        """For each leaf nothing where home's choice reaches its choice without parting, else `FORBIDDEN`."""
        at_home = [self.into(slot)[self.places[0][:, None], self.places[slot]] for slot in self._leaf_slots]
        return [np.where(costs == 0.0, 0.0, FORBIDDEN) for costs in at_home]

    def spread(self, slot: int, costs: Costs) -> Costs:
        """Costs of a variable's choices as costs of layouts."""
        spread = np.full(len(self.moves), FORBIDDEN)
        spread[self.places[slot]] = costs
        return spread

    def _root_and_leaves(self, theta: Sequence[Costs]) -> tuple[Costs, list[Costs]]:
        """Costs by choice: of home, together with the uses that stay there, and of each leaf."""
        root = theta[0]
        for slot, stays in enumerate(self.rigid, 1):
            if stays:
                root = root + self.spread(slot, theta[slot])[self.places[0]]
        return root, [theta[slot] for slot in self._leaf_slots]

    @cached_property
    def _single(self) -> bool:
        """Tells whether there is one use, which may lie elsewhere: most trees, whose costs are a table of two."""
        return self.rigid == (False,) and not self.last and self.parting is None

    def _to_single(self, leaf: Costs) -> Costs:
        """The least cost of the only use, by the choices of home."""
        return np.minimum.reduce(self._from_home + leaf, axis=1)

    def _grown(self, leaves: Sequence[Costs]) -> tuple[list[Costs], list[Costs]]:
        """`subtrees` from home: a single leaf is `served` where it has a choice, all are `reached` from those of home,
        anything else at every layout. Half of the calls are at the same costs of the leaves as the one before."""
        if self._latest is None or not all(map(np.array_equal, self._latest[0], leaves)):
            self._latest = tuple(leaf.copy() for leaf in leaves), self._growing(leaves)
        served, reached = self._latest[1]
        return [*served], [*reached]

    def _growing(self, leaves: Sequence[Costs]) -> tuple[list[Costs], list[Costs]]:
        n = 1 << len(leaves)
        proper = np.zeros((n - 1, len(self.moves)))
        reached = [*proper, np.zeros(len(self.places[0]))]
        served = reached[:1] * n
        for subset in range(1, n):
            if subset & (subset - 1) == 0:
                leaf = subset.bit_length() - 1
                served[subset], moves = leaves[leaf], self._to_leaf[leaf]
            else:
                part, rest = _cut(subset)[0]
                served[subset] = np.minimum.reduce(proper[part] + proper[rest], axis=0)
                moves = self._from_home if subset == n - 1 else self.moves
            np.minimum.reduce(moves + served[subset], axis=1, out=reached[subset])
        if self.parting is not None:
            reached[-1] = np.minimum(reached[-1] + self.parting[self.places[0]], _summed(self._staying(leaves)))
        return served, reached

    def _staying(self, leaves: Sequence[Costs]) -> list[Costs]:
        """The cost of each leaf where the value is not parted, by the choices of home."""
        return [(free + leaf).min(axis=1) for free, leaf in zip(self._nothing_moved, leaves, strict=True)]

    def _outside(self, root: Costs, reached: Sequence[Costs]) -> tuple[list[Costs], list[Costs]]:
        """The least cost of all but a subset's branch, by the layout that it sets out from, and that it arrives at; by
        the choices of home and of single leaves as in `_grown`. Of `reached` proper subsets are used."""
        full = (1 << len(self._leaf_slots)) - 1
        proper = np.full((full, len(self.moves)), FORBIDDEN)
        outside_reached = [*proper, root if self.parting is None else root + self.parting[self.places[0]]]
        outside_served = outside_reached[:1] * (full + 1)
        others = np.array(reached[:full])
        for subset in range(full, 0, -1):
            if subset & (subset - 1) == 0:
                moves = self._to_leaf[subset.bit_length() - 1]
            else:
                moves = self._from_home if subset == full else self.moves
            outside_served[subset] = np.minimum.reduce(outside_reached[subset][:, None] + moves, axis=0)
            if subset & (subset - 1):
                for part, rest in _cut(subset):
                    proper[part] = np.minimum(proper[part], outside_served[subset] + others[rest])
        return outside_reached, outside_served

    def least(self, theta: Sequence[Costs]) -> float:
        """The least cost of the factor."""
        if self._single:
            return float((theta[0] + self._to_single(theta[1])).min())
        root, leaves = self._root_and_leaves(theta)
        return float((root + self._grown(leaves)[1][-1] if leaves else root).min())

    def best(self, theta: Sequence[Costs]) -> list[int]:
        """A choice for each variable at the least cost of the factor; the earliest home of several."""
        if self._single:
            home = int((theta[0] + self._to_single(theta[1])).argmin())
            return [home, int((self._from_home[home] + theta[1]).argmin())]
        root, leaves = self._root_and_leaves(theta)
        served, reached = self._grown(leaves)
        home = int((root + reached[-1] if leaves else root).argmin())
        at_home = int(self.places[0][home])
        chosen = [home] * len(self.places)
        for slot, stays in enumerate(self.rigid, 1):
            if stays:
                chosen[slot] = self._nearest(slot, at_home)

        def descend(subset: int, at: int) -> None:
            if subset & (subset - 1) == 0:
                slot = self._leaf_slots[subset.bit_length() - 1]
                chosen[slot] = int((self.into(slot)[at, self.places[slot]] + served[subset]).argmin())
                return
            to = int((self.moves[at] + served[subset]).argmin())
            _, part = min((float(reached[a][to] + reached[subset ^ a][to]), a) for a in halves(subset))
            descend(part, to)
            descend(subset ^ part, to)

        if self.parting is not None and reached[-1][home] >= _summed(self._staying(leaves))[home]:
            for slot, free, leaf in zip(self._leaf_slots, self._nothing_moved, leaves, strict=True):
                chosen[slot] = int((free[home] + leaf).argmin())
        elif leaves:
            descend((1 << len(leaves)) - 1, at_home)
        return chosen

    def _nearest(self, slot: int, layout: int) -> int:
        """The choice that a use has of a layout. Where it has none nothing is allowed, and any choice costs as much."""
        return min(int(np.searchsorted(self.places[slot], layout)), len(self.places[slot]) - 1)

    def min_marginals(self, theta: Sequence[Costs], slots: Container[int] = EVERY) -> list[Costs]:
        """For each variable and each of its choices, the least cost of the factor with that choice.

        Of variables that are not in `slots` it is not worked out, and their costs mean nothing.
        """
        if self._single:
            root, leaf = theta
            made = [root + self._to_single(leaf) if 0 in slots else root]
            return [*made, np.minimum.reduce(root[:, None] + self._from_home, axis=0) + leaf if 1 in slots else leaf]
        root, leaves = self._root_and_leaves(theta)
        at_home = any(slot in slots for slot in range(len(self.places)) if slot not in self._leaf_slots)
        reached = self._grown(leaves)[1] if len(leaves) > 1 or (leaves and at_home) else ()
        home = root + reached[-1] if reached else root
        made = [home] * len(self.places)
        if any(stays and slot in slots for slot, stays in enumerate(self.rigid, 1)):
            spread = self.spread(0, home)
            made = [home, *(spread[place] for place in self.places[1:])]
        if any(slot in slots for slot in self._leaf_slots):
            outside = self._outside(root, reached)[1]
            for i, (slot, leaf) in enumerate(zip(self._leaf_slots, leaves, strict=True)):
                made[slot] = outside[1 << i] + leaf
            if self.parting is not None:
                staying = self._staying(leaves)
                for i, (slot, leaf) in enumerate(zip(self._leaf_slots, leaves, strict=True)):
                    others = root + _summed([*staying[:i], *staying[i + 1 :]])
                    unmoved = (others[:, None] + self._nothing_moved[i]).min(axis=0) + leaf
                    made[slot] = np.minimum(made[slot], unmoved)
        return made

    def move_marginals(self, theta: Sequence[Costs]) -> list[Costs]:
        """For each subset of the leaves (of which there must be one) and each pair of layouts, the least cost of the
        factor where the branch of just these leaves goes from the one to the other."""
        root, leaves = self._root_and_leaves(theta)
        served, reached = self._grown(leaves)
        outside, _ = self._outside(root, reached)
        first = root if self.parting is None else root + self.parting[self.places[0]]
        outside[-1], served[0] = self.spread(0, first), np.zeros(len(self.moves))
        for i, slot in enumerate(self._leaf_slots):
            served[1 << i] = self.spread(slot, leaves[i])
        arcs = [self.moves] * len(served)
        for i, slot in enumerate(self._leaf_slots):
            arcs[1 << i] = self.into(slot)
        return [o[:, None] + moves + s[None, :] for o, moves, s in zip(outside, arcs, served, strict=True)]

    def over(self, variables: Sequence[int]) -> TreeFactor:
        """The same factor of variables with these numbers."""
        return TreeFactor(tuple(variables), self.moves, self.places, self.rigid, self.last, self.parting)

    def restricted(self, masks: Sequence[NDArray[np.bool_] | None]) -> TreeFactor:
        """The factor with fewer choices, all of those without a mask; layouts on the way stay."""
        places = (place if mask is None else place[mask] for place, mask in zip(self.places, masks, strict=True))
        return TreeFactor(self.variables, self.moves, tuple(places), self.rigid, self.last, self.parting)

    def dense_entries(self, sizes: Sequence[int]) -> int:
        """How many numbers `dense` looks at."""
        return math.prod(sizes[1:]) * (sizes[0] if len(self._leaf_slots) < 2 else len(self.moves) ** 2)

    def dense(self, sizes: Sequence[int]) -> Costs:
        """The cost of every combination of choices, of which each variable has so many."""
        places = self.places
        reached = [np.zeros((len(self.moves), *(1 for _ in sizes[1:])))] * (1 << len(self._leaf_slots))
        for subset in range(1, len(reached)):
            if subset & (subset - 1) == 0:
                slot = self._leaf_slots[subset.bit_length() - 1]
                shape = [len(self.moves), *(size if i == slot else 1 for i, size in enumerate(sizes[1:], 1))]
                reached[subset] = self.into(slot)[:, places[slot]].reshape(shape)
                continue
            served: Costs = np.minimum.reduce([reached[part] + reached[subset ^ part] for part in halves(subset)])
            flat = served.reshape(len(self.moves), -1)
            reached[subset] = np.stack([(row[:, None] + flat).min(axis=0) for row in self.moves]).reshape(served.shape)
        made = reached[-1][places[0]]
        for slot, stays in enumerate(self.rigid, 1):
            if stays:
                shape = [sizes[0], *(size if i == slot else 1 for i, size in enumerate(sizes[1:], 1))]
                made = made + np.where(places[0][:, None] == places[slot], 0.0, FORBIDDEN).reshape(shape)
        if self.parting is not None:
            stays = np.ones((1,) * len(sizes), np.bool_)
            for slot, free in zip(self._leaf_slots, self._nothing_moved, strict=True):
                shape = [sizes[0], *(size if i == slot else 1 for i, size in enumerate(sizes[1:], 1))]
                stays = stays & (free == 0.0).reshape(shape)
            first = self.parting[places[0]].reshape(-1, *(1 for _ in sizes[1:]))
            made = made + np.where(stays, 0.0, first)
        return np.broadcast_to(np.minimum(made, FORBIDDEN), tuple(sizes))

    def evaluate(self, choice: Sequence[int]) -> float:
        """The cost of the cheapest arborescence for one choice of home and uses."""
        layouts = [int(place[c]) for place, c in zip(self.places, choice, strict=True)]
        if any(stays and use != layouts[0] for use, stays in zip(layouts[1:], self.rigid, strict=True)):
            return FORBIDDEN
        targets = [layouts[slot] for slot in self._leaf_slots]
        into = [self.into(slot) for slot in self._leaf_slots]
        cost = arborescence(self.moves, layouts[0], targets, into)[0]
        if self.parting is not None and any(x[layouts[0], at] != 0.0 for x, at in zip(into, targets, strict=True)):
            cost += float(self.parting[layouts[0]])
        return cost


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


Index = slice | NDArray[np.int64]


@lru_cache(maxsize=1 << 12)
def _cut(subset: int) -> tuple[tuple[Index, Index], tuple[Index, Index]]:
    """The `halves` of a subset and their complements as indices of rows, and the other way round."""
    parts = np.array(halves(subset))
    first, second = parts, subset ^ parts
    if len(parts) == 1:  # as slices, which index in a third of the time
        first, second = (slice(part, part + 1) for (part,) in (first.tolist(), second.tolist()))
    return (first, second), (second, first)


def tree_entries(layouts: int, homes: int, leaves: Sequence[int]) -> int:
    """How many moves are looked at for a tree, between so many layouts, with these choices of home and of each leaf;
    and in how many ways sets of leaves are parted in two."""
    n = len(leaves)
    if n < 2:
        return homes * sum(leaves)
    parted = (3**n - 2 ** (n + 1) + 1) // 2
    return layouts * (homes + sum(leaves) + layouts * ((1 << n) - n - 2) + parted)


def _summed(costs: Sequence[Costs]) -> Costs:
    """Their sum, no more than `FORBIDDEN`."""
    return np.minimum(np.sum(costs, axis=0), FORBIDDEN)


def subtrees(moves: Costs, leaves: Sequence[Costs], into: Sequence[Costs] = ()) -> tuple[list[Costs], list[Costs]]:
    """`served[S][l]`: the least cost of the leaves S from a copy at l; `reached[S][h]`: with one move from h first.
    `into` are the costs of the last move to each leaf, `moves` where there are none."""
    n = 1 << len(leaves)
    served: list[Costs] = [np.zeros(len(moves))] * n
    reached: list[Costs] = [np.zeros(len(moves))] * n
    for subset in range(1, n):
        arcs = moves
        if subset & (subset - 1) == 0:
            leaf = subset.bit_length() - 1
            served[subset], arcs = leaves[leaf], into[leaf] if into else moves
        else:
            served[subset] = np.minimum.reduce([reached[a] + reached[subset ^ a] for a in halves(subset)])
        reached[subset] = np.minimum.reduce(arcs + served[subset], axis=1)
    return served, reached


def arborescence(
    moves: Costs, home: int, targets: Sequence[int], into: Sequence[Costs] = ()
) -> tuple[float, list[tuple[int, int]]]:
    """The cheapest way to reach all targets from home: its cost, and its moves (from, to), parents first. `into` are
    the costs of the last move to each target, `moves` where there are none."""
    # Of uses that are alike the first two say whether a copy on their way pays.
    alike: dict[tuple[int, int], int] = {}
    leaves: list[Costs] = []
    last: list[Costs] = []
    for target, costs in zip(targets, into or [moves] * len(targets), strict=True):
        seen = alike[target, id(costs)] = alike.get((target, id(costs)), 0) + 1
        if (target != home or into) and seen <= (1 if costs is moves else 2):
            leaf = np.full(len(moves), FORBIDDEN)
            leaf[target] = 0.0
            leaves.append(leaf)
            last.append(costs)
    if not leaves:
        return 0.0, []
    served, reached = subtrees(moves, leaves, last)
    edges: list[tuple[int, int]] = []

    def descend(subset: int, at: int) -> None:
        single = subset & (subset - 1) == 0
        to = int(((last[subset.bit_length() - 1] if single else moves)[at] + served[subset]).argmin())
        if to != at:
            edges.append((at, to))
        if not single:
            totals = [(float(reached[a][to] + reached[subset ^ a][to]), a) for a in halves(subset)]
            _, part = min(totals)
            descend(part, to)
            descend(subset ^ part, to)

    full = len(served) - 1
    descend(full, home)
    return float(reached[full][home]), list(dict.fromkeys(edges))
