"""The oracle for shapes whose dimensions have no room for all digits together: the least over all sequences.

Written without the planner, its prices and its exchange. A node is every type that divides, addends included. An edge
is any single movement of digits over any set of axes where the indices that chips hold allow it, or a permute, taken
for what the chip that lacks most lacks by indices, which no way of sending whole blocks can undercut. Shortest paths
from all nodes to all nodes, for each order of each dimension's digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations, product

import numpy as np
from oracles.layout_search import FAR, STEP, SUM, Layout, is_dim, layouts, movement

from shardwright.ir.digits import common_order, fitting_order, global_indices

Least = tuple[int, int]
"""Elements that a chip receives, and communicating steps."""


def legal_layouts(extents: Sequence[int], sizes: Sequence[int], partials: Sequence[str] = (SUM,)) -> list[Layout]:
    """Every type whose dimensions the chips that split them divide."""
    return [
        row
        for row in layouts(len(sizes), len(extents), partials)
        if all(size % chips_of(row, dim, sizes) == 0 for dim, size in enumerate(extents))
    ]


def chips_of(row: Layout, dim: int, sizes: Sequence[int]) -> int:
    """The chips that split a dimension."""
    return math.prod(size for state, size in zip(row, sizes, strict=True) if state == dim and is_dim(state))


def all_orders(n_axes: int, n_dims: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Every order of the digits of every dimension, an order being numbers of axes."""
    yield from product(permutations(range(n_axes)), repeat=n_dims)


class Search:
    """The least elements and steps between all types of one shape on one mesh, under one order of each dimension."""

    def __init__(
        self,
        extents: Sequence[int],
        sizes: Sequence[int],
        orders: Sequence[Sequence[int]],
        nodes: Sequence[Layout] | None = None,
    ) -> None:
        self.extents, self.sizes = tuple(extents), tuple(sizes)
        self.axes = "xyzw"[: len(sizes)]
        self.mesh = dict(zip(self.axes, sizes, strict=True))
        self.orders = [tuple(self.axes[axis] for axis in order) for order in orders]
        self.nodes = legal_layouts(extents, sizes) if nodes is None else list(nodes)
        self.place = {node: i for i, node in enumerate(self.nodes)}
        self._held: dict[tuple[int, str], np.ndarray] = {}
        self._common: dict[tuple[int, str, str], tuple[np.ndarray, bool]] = {}
        self.distance = self._shortest()

    def least(self, before: Layout, after: Layout) -> Least:
        """The least from one type to the other."""
        elements, steps = divmod(int(self.distance[self.place[before], self.place[after]]), STEP)
        return elements, steps

    def _shortest(self) -> np.ndarray:
        n = len(self.nodes)
        distance = np.full((n, n), FAR, np.int64)
        for i, before in enumerate(self.nodes):
            for j, after in enumerate(self.nodes):
                distance[i, j] = 0 if i == j else self._edge(before, after)
        for via in range(n):
            np.minimum(distance, distance[:, via, None] + distance[None, via, :], out=distance)
        return distance

    def _edge(self, before: Layout, after: Layout) -> int:
        """Elements and steps of the one movement from one type to the other; `FAR` where it takes several."""
        best = FAR
        together = [self._compared(dim, before, after) for dim in range(len(self.extents))]
        if all(in_place for _, in_place in together):
            found = movement(before, after, self.sizes)
            if found is not None:
                best = self._priced(before, *found)
        if all((s == SUM) == (t == SUM) for s, t in zip(before, after, strict=True)):
            kept = np.ones((1,) * len(self.sizes), np.int64)
            for counts, _ in together:
                kept = kept * counts
            lacking = self._shard(after) - int(kept.min())
            best = min(best, lacking * STEP + (lacking > 0))
        return best

    def _priced(self, before: Layout, kind: str, chips: int) -> int:
        V, K = self._shard(before), chips
        match kind:
            case "all_gather":
                received = V * (K - 1)
            case "reduce_scatter" | "all_to_all":
                received = V - V // K
            case "all_reduce":
                received = -(-2 * V * (K - 1) // K)
            case _:
                return 0
        return received * STEP + (received > 0)

    def _shard(self, row: Layout) -> int:
        return math.prod(self.extents) // math.prod(
            size for state, size in zip(row, self.sizes, strict=True) if is_dim(state)
        )

    def _split(self, row: Layout, dim: int) -> str:
        return "".join(axis for axis, state in zip(self.axes, row, strict=True) if is_dim(state) and state == dim)

    def _compared(self, dim: int, before: Layout, after: Layout) -> tuple[np.ndarray, bool]:
        """For every chip how many indices of the dimension it holds in both types, and whether digits lead on."""
        was, becomes = self._split(before, dim), self._split(after, dim)
        key = dim, was, becomes
        if key not in self._common:
            size, order = self.extents[dim], self.orders[dim]
            both = (self._indices(dim, was) & self._indices(dim, becomes)).sum(axis=-1)
            in_place = was == becomes or common_order(order, was, becomes, size, self.mesh) is not None
            self._common[key] = both, in_place
        return self._common[key]

    def _indices(self, dim: int, split: str) -> np.ndarray:
        """Which indices of a dimension chips hold that split it over these axes: [sizes of axes..., extent]."""
        key = dim, split
        if key not in self._held:
            size = self.extents[dim]
            order = fitting_order(self.orders[dim], split, size, self.mesh)
            held = np.zeros((*self.sizes, size), np.bool_)
            for chip in np.ndindex(*self.sizes):
                coordinates = dict(zip(self.axes, chip, strict=True))
                held[(*chip, global_indices(size, order, split, coordinates, self.mesh))] = True
            self._held[key] = held
        return self._held[key]


def cheapest_of_all_orders(extents: Sequence[int], sizes: Sequence[int]) -> Mapping[tuple[Layout, Layout], Least]:
    """The least between any two types, whatever the orders of the digits.

    Those of the axes that split a dimension in one of the two types come before those of others.
    """
    best: dict[tuple[Layout, Layout], Least] = {}
    for orders in all_orders(len(sizes), len(extents)):
        search = Search(extents, sizes, orders)
        for before in search.nodes:
            for after in search.nodes:
                if all(leads(order, dim, before, after) for dim, order in enumerate(orders)):
                    found = search.least(before, after)
                    best[before, after] = min(best.get((before, after), found), found)
    return best


def leads(order: Sequence[int], dim: int, before: Layout, after: Layout) -> bool:
    """Tells whether the axes that split the dimension in one of the types come first in the order."""
    splits = [any(is_dim(row[axis]) and row[axis] == dim for row in (before, after)) for axis in order]
    return sorted(splits, reverse=True) == splits
