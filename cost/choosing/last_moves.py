"""Last moves of a value, into kernels that compute slices themselves: they cost less from some layouts, by way of which
it may go from others, too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.layouts import Moves

Costs = NDArray[np.float64]

Edge = tuple[int, int]
"""Two layouts of a value, by their numbers: it moves from the first to the second."""


_AT_ONCE = 1 << 17
"""Sums of two moves that are all made before the least are taken; more are, target by target."""


def slices_free(costs: Costs, moves: Moves, summed: NDArray[np.bool_]) -> Costs:
    """The costs of moves where slices cost nothing; axes that begin to make addends, `summed` in a layout, are none."""
    padded = (~summed[:, None, :] & summed[None, :, :]).any(axis=2)
    return np.where(np.isfinite(moves[2]) & (moves[1] == 0) & ~padded, 0.0, costs)


def with_stops(moves: Costs, last: Costs) -> Costs:
    """The least costs of moves of which the last one costs what `last` says, also by way of another layout."""
    made, less = last.copy(), last < moves
    stops = np.flatnonzero(less.any(axis=1))
    if not len(stops):
        return made
    if len(stops) * made.size <= _AT_ONCE:
        onward = np.where(less[stops], last[stops], np.inf)
        return np.minimum(made, np.minimum.reduce(moves[:, stops, None] + onward, axis=1))
    for target in np.flatnonzero(less.any(axis=0)):
        (stops,) = np.nonzero(less[:, target])
        through = (moves[:, stops] + last[stops, target]).min(axis=1)
        made[:, target] = np.minimum(made[:, target], through)
    return made


def stopping(
    edges: Sequence[Edge], moves: Costs, last: Costs, inside: Sequence[bool], uses: Sequence[int]
) -> list[Edge]:
    """The moves of a value, those to the layouts of its `uses` by way of another where that costs less: of what only
    kernels that compute slices themselves read, which are `inside`, and nothing sets out from."""
    ends = {use for use, each in zip(uses, inside, strict=True) if each}
    ends -= {use for use, each in zip(uses, inside, strict=True) if not each} | {source for source, _ in edges}
    made: list[Edge] = []
    for source, target in edges:
        through = np.where(last[:, target] < moves[:, target], moves[source] + last[:, target], np.inf)
        stop = int(through.argmin())
        by_way = target in ends and stop != source and through[stop] < min(moves[source, target], last[source, target])
        made += [(source, stop), (stop, target)] if by_way else [(source, target)]
    return list(dict.fromkeys(made))
