"""The candidates that a factor graph's solutions below a cost can be made of: choices, rows of tables, moves of trees.

The graph is reparametrised by message passing under prices; what its min-marginals put above the cost is ruled out
(reduced-cost fixing). Several prices together rule out more than any one of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.factor_graph import FactorGraph
from shardwright.cost.choosing.factors import FORBIDDEN, Factor, TableFactor, TreeFactor

Masks = list[NDArray[np.bool_]]

_ROUNDING = 1e-9
"""Of costs: what sums of shifted costs may be off by."""


@dataclass
class Candidates:
    """The choices, rows and moves that are left: of each variable the choices, of each table (by its number in the
    graph) the rows, and of each tree for each subset of its leaves the moves between layouts. `bound` is below every
    solution that is left.
    """

    choices: Masks
    rows: dict[int, NDArray[np.bool_]]
    moves: dict[int, Masks]
    bound: float

    @staticmethod
    def all_of(graph: FactorGraph) -> Candidates:
        """Nothing ruled out."""
        rows = {f: np.ones(len(x.rows), np.bool_) for f, x in enumerate(graph.factors) if isinstance(x, TableFactor)}
        return Candidates([np.ones(size, np.bool_) for size in graph.sizes], rows, {}, -math.inf)

    @property
    def size(self) -> int:
        """Rows and moves that are left."""
        moves = sum(int(mask.sum()) for masks in self.moves.values() for mask in masks)
        return sum(int(mask.sum()) for mask in self.rows.values()) + moves


def possible_moves(tree: TreeFactor) -> Masks:
    """The moves of a tree that can be, for each subset of its leaves: the whole sets out from choices of home, and a
    leaf arrives at one of its own."""
    possible = tree.moves < FORBIDDEN / 2
    leaves = [place for place, stays in zip(tree.places[1:], tree.rigid, strict=True) if not stays]
    masks = [possible.copy() for _ in range(1 << len(leaves))]
    for i, place in enumerate(leaves):
        masks[1 << i][:, ~np.isin(np.arange(len(possible)), place)] = False
    masks[-1][~np.isin(np.arange(len(possible)), tree.places[0])] = False
    return masks


def narrowed(
    before: Candidates, graph: FactorGraph, upper: float, room: float, out_of_time: Callable[[], bool]
) -> Candidates | None:
    """The candidates without those that cost more than `upper` in a graph with prices, of which `room` is paid back;
    None where none are left.
    """
    upper += _ROUNDING * max(1.0, abs(upper) + room)
    parts = graph.remainders(upper + room, before.choices, out_of_time)
    if parts is None:
        return None
    bound = sum(part.bound() for part in parts)
    slack = upper + room - bound
    choices = [mask.copy() for mask in before.choices]
    rows = dict(before.rows)
    moves = dict(before.moves)
    for part in parts:
        for variable, values in enumerate(part.values):
            left = np.zeros_like(choices[variable])
            left[values] = True
            choices[variable] &= left
    fixed: dict[int, tuple[Factor, Sequence[NDArray[np.float64]]]] = {
        f: (factor, theta)
        for part in parts
        for f, factor, theta in zip(part.origins, part.factors, part.theta, strict=True)
    }
    for f, factor in enumerate(graph.factors):
        if isinstance(factor, TableFactor):
            keep = rows[f].copy()
            for column, variable in zip(factor.rows.T, factor.variables, strict=True):
                keep &= choices[variable][column]
            if f in fixed:
                left_factor = fixed[f][0]
                assert isinstance(left_factor, TableFactor)
                own = np.zeros_like(keep)
                own[left_factor.numbers] = True
                keep &= own
            rows[f] = keep
        elif not all(factor.rigid):
            if f in fixed:
                tree, theta = fixed[f]
                assert isinstance(tree, TreeFactor)
            else:
                tree = factor.restricted([choices[v] for v in factor.variables])
                theta = [np.zeros(int(choices[v].sum())) for v in factor.variables]
            found = tree.move_marginals(theta)
            least = float(found[-1].min())
            masks = [np.zeros(found[0].shape, np.bool_), *(each <= least + slack for each in found[1:])]
            if f in moves:
                masks = [mask & old for mask, old in zip(masks, moves[f], strict=True)]
            moves[f] = masks
    if any(not mask.any() for mask in choices):
        return None
    return Candidates(choices, rows, moves, max(before.bound, bound - room))
