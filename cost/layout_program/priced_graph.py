"""A program's factor graph under prices that change: its costs are linear in them.

The first price is for a byte of weights and state, the others are for each function the share of what its loops hide
that is seen (`cost.time_placement.Prices`). Message passing goes on from what it has found under other prices: costs
that were shifted between factors add up to nothing whatever the factors cost.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shardwright.cost.factor_graph import FactorGraph, Remainder
from shardwright.cost.factors import Factor, TableFactor, TreeFactor
from shardwright.cost.layout_problem import MadeTree, Node, Table, UsesTree
from shardwright.cost.time_placement import NEVER, Floats, Prices, TimeSolver


class PricedGraph:
    """The graph of a solver that has made it without prices.

    `moved` says of trees, by their numbers, that their movements take longer than the one and at most the other, in
    nanoseconds that a loop hides; the former only of values that are used once, for of several uses one may move.
    """

    def __init__(self, solver: TimeSolver) -> None:
        self.base = solver.graph
        self.funcs = [func.name for func in solver.problem.program.funcs]
        self.slopes: dict[int, tuple[int, Floats]] = {}
        """Of factors, by number, the price that they depend on, and by how much."""
        self.hiding: dict[int, Node] = {}
        """Trees, by number, whose movements a loop may hide."""
        dearer = solver.under(Prices(byte_ns=1.0, seen=dict.fromkeys(self.funcs, 1.0))).graph
        for f, (here, there) in enumerate(zip(self.base.factors, dearer.factors, strict=True)):
            slope = np.where(_costs(here) < NEVER, _costs(there) - _costs(here), 0.0)
            entry = solver.entries[f]
            if not slope.any():
                continue
            if entry is None:
                self.slopes[f] = 0, slope
            elif isinstance(entry, Table | UsesTree | MadeTree):
                node = entry.nodes[-1] if isinstance(entry, Table) else entry.node
                self.slopes[f] = 1 + self.funcs.index(node.func or ""), slope
                if isinstance(entry, UsesTree) and node.loops and (node.func, node.name) in solver.ahead:
                    self.hiding[f] = node

    def factor(self, f: int, prices: Floats, moved: Mapping[int, tuple[float, float]], left: Factor) -> Factor:
        """What is left of a factor, at other prices."""
        costs = _costs(self.base.factors[f])
        if f in self.slopes:
            of, slope = self.slopes[f]
            costs = costs + prices[of] * slope
        if isinstance(left, TableFactor):
            return left.priced(costs[left.numbers])
        if f in moved:
            (low, high), slope = moved[f], self.slopes[f][1]
            costs = np.where((slope <= high) & ((slope > low) | (left.rigid.count(False) > 1)), costs, NEVER)
        return TreeFactor(left.variables, costs, left.places, left.rigid)

    def graph(self, prices: Floats, moved: Mapping[int, tuple[float, float]]) -> FactorGraph:
        """All of it."""
        factors = [self.factor(f, prices, moved, factor) for f, factor in enumerate(self.base.factors)]
        return FactorGraph(list(self.base.sizes), factors)

    def whole(self) -> Remainder:
        """All of it, with nothing shifted yet."""
        factors = self.base.factors
        theta = [[np.zeros(self.base.sizes[v]) for v in factor.variables] for factor in factors]
        values = [np.arange(size, dtype=np.int64) for size in self.base.sizes]
        return Remainder(list(factors), theta, values, list(range(len(factors))))

    def follow(self, left: Remainder, prices: Floats, moved: Mapping[int, tuple[float, float]]) -> None:
        """Gives what is left of the graph, no factor of which has been settled, these prices."""
        for i, f in enumerate(left.origins):
            if f in self.slopes or f in moved:
                left.factors[i] = self.factor(f, prices, moved, left.factors[i])


def _costs(factor: Factor) -> Floats:
    return factor.costs if isinstance(factor, TableFactor) else factor.moves
