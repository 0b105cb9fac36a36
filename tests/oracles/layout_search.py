"""The oracle of the resharding tests: the least that any sequence of movements receives, over all pairs of types.

Written without the planner and its prices. A node is a type, given as one state for each axis: None, the number of
a dimension, SUM or MAX. An edge is any single movement over any set of axes; its weight is counted in elements
received per chip and in communicating steps, in that order. Shortest paths between all nodes at once by Floyd and
Warshall. Dimensions have room for some digits only, and the digits of all types on a path have to fit: the paths of
each largest set of digits that fit are searched on their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product

import numpy as np

SUM, MAX = "sum", "max"
State = int | str | None
Layout = tuple[State, ...]
Digits = frozenset[tuple[int, int]]
"""Pairs of a dimension and an axis that may split it."""

STEP = 1 << 20  # a weight is elements * STEP + steps
FAR = 1 << 60


def is_dim(state: State) -> bool:
    return isinstance(state, int)


def layouts(n_axes: int, n_dims: int, partials: Sequence[str] = (SUM,)) -> list[Layout]:
    """Every layout, with partial values of one kind at a time."""
    states: list[State] = [None, *range(n_dims), *partials]
    return [row for row in product(states, repeat=n_axes) if not (SUM in row and MAX in row)]


def movement(before: Layout, after: Layout, sizes: Sequence[int]) -> tuple[str, int] | None:
    """The one movement between two layouts with its number of chips, or None where it takes several."""
    kinds: set[str] = set()
    chips = 1
    for s, t, size in zip(before, after, sizes, strict=True):
        if s == t:
            continue
        chips *= size
        if t == MAX:
            return None
        if t == SUM:
            kinds.add("impossible" if s == MAX else "as_partial")
        elif s is None:
            kinds.add("slice")
        elif is_dim(s):
            kinds.add("all_gather" if t is None else "all_to_all")
        else:
            kinds.add("all_reduce" if t is None else "reduce_scatter")
    if len(kinds) != 1 or "impossible" in kinds:
        return None
    return kinds.pop(), chips


def received(kind: str, V: int, K: int) -> int:
    match kind:
        case "all_gather":
            return V * K - V
        case "reduce_scatter" | "all_to_all":
            return V - V // K
        case "all_reduce":
            return math.ceil(2 * (V - V / K))
        case _:
            return 0


def largest_digits(shape: Sequence[int], sizes: Sequence[int]) -> list[Digits]:
    """The largest choices of digits: no dimension has room for one more axis."""
    per_dim: list[list[frozenset[int]]] = []
    for size in shape:
        fitting = [
            frozenset(axes)
            for axes in product(*[(None, a) for a in range(len(sizes))])
            if size % math.prod(sizes[a] for a in axes if a is not None) == 0
        ]
        sets = {frozenset(a for a in axes if a is not None) for axes in fitting}
        per_dim.append([s for s in sets if not any(s < other for other in sets)])
    return [frozenset((dim, axis) for dim, axes in enumerate(choice) for axis in axes) for choice in product(*per_dim)]


def digits(*rows: Layout) -> Digits:
    return frozenset((state, axis) for row in rows for axis, state in enumerate(row) if isinstance(state, int))


@cache
def _movements(
    n_axes: int, n_dims: int, partials: tuple[str, ...]
) -> tuple[list[Layout], dict[str, np.ndarray], np.ndarray]:
    """All layouts; for each kind of movement the pairs that it joins; for each pair which axes change."""
    nodes = layouts(n_axes, n_dims, partials)
    n = len(nodes)
    kinds = {k: np.zeros((n, n), bool) for k in ("all_gather", "all_reduce", "all_to_all", "reduce_scatter", "free")}
    changed = np.zeros((n_axes, n, n), bool)
    for i, s in enumerate(nodes):
        for j, t in enumerate(nodes):
            changed[:, i, j] = [a != b for a, b in zip(s, t, strict=True)]
            found = movement(s, t, (1,) * n_axes)
            if found is not None:
                kinds[found[0] if found[0] in kinds else "free"][i, j] = True
    return nodes, kinds, changed


def cheapest(
    shape: Sequence[int], sizes: Sequence[int], partials: tuple[str, ...] = (SUM,)
) -> tuple[list[Layout], Mapping[tuple[int, int], tuple[int, int]]]:
    """The layouts that the shape has room for, and for each pair of their numbers that it has room for (by the
    digits of both) the least elements received per chip, and then steps."""
    nodes, kinds, changed = _movements(len(sizes), len(shape), partials)
    n = len(nodes)
    elements = math.prod(shape)
    V = np.array([elements // math.prod(k for s, k in zip(row, sizes, strict=True) if is_dim(s)) for row in nodes])
    log = np.where(changed, np.array(sizes)[:, None, None], 1)
    K = log.prod(axis=0)
    V = V[:, None]
    weight = np.full((n, n), FAR, np.int64)
    for kind, mask in kinds.items():
        if kind == "all_gather":
            cost = V * (K - 1)
        elif kind in ("reduce_scatter", "all_to_all"):
            cost = V - V // K
        elif kind == "all_reduce":
            cost = -(-2 * V * (K - 1) // K)
        else:
            cost = np.zeros((n, n), np.int64)
        steps = (K > 1) & (kind != "free")
        weight = np.where(mask, cost * STEP + steps, weight)
    np.fill_diagonal(weight, 0)

    best: dict[tuple[int, int], tuple[int, int]] = {}
    used = [digits(row) for row in nodes]
    for room in largest_digits(shape, sizes):
        inside = np.array([i for i, d in enumerate(used) if d <= room])
        distance = weight[np.ix_(inside, inside)].copy()
        for via in range(len(inside)):
            np.minimum(distance, distance[:, via, None] + distance[None, via, :], out=distance)
        for a, i in enumerate(inside.tolist()):
            for b, j in enumerate(inside.tolist()):
                d = int(distance[a, b])
                if d < FAR:
                    found = divmod(d, STEP)
                    if (i, j) not in best or found < best[i, j]:
                        best[i, j] = found
    return nodes, best
