"""A program's factor graph under a price for each byte of weights and state: its costs are linear in it.

A value on the host of which a share may lie on the device takes that share at its price, or saves what its bytes save,
whichever is less: either all of it lies there or nothing.

Message passing goes on from what it has found under another price: costs that were shifted between factors add up to
nothing whatever the factors cost.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shardwright.cost.choosing.factor_graph import FactorGraph
from shardwright.cost.choosing.factors import Factor, TableFactor
from shardwright.cost.choosing.memory_prices import MemoryPrices
from shardwright.cost.choosing.remainder import Remainder
from shardwright.cost.choosing.time_placement import Floats, TimeSolver


class PricedGraph:
    """The graph of a solver that has made it without a price."""

    def __init__(self, solver: TimeSolver, shared: Mapping[int, tuple[float, Floats]] | None = None) -> None:
        """For each home of what may be `shared`, what a byte on the device saves, and the bytes of its choices."""
        self.base = solver.graph
        self.shared: dict[int, tuple[float, Floats]] = {}
        """The same of factors, by number, for their rows."""
        for home, (saved, nbytes) in (shared or {}).items():
            tables = ((f, x) for f, x in enumerate(self.base.factors) if isinstance(x, TableFactor))
            f, table = next((f, x) for f, x in tables if x.variables == (home,))
            self.shared[f] = saved, nbytes[table.rows[:, 0]]
        self.slopes: dict[int, Floats] = {}
        """Of factors, by number, the bytes that the price is for."""
        dearer = solver.under(MemoryPrices(byte_ns=1.0)).graph
        for f, (here, there) in enumerate(zip(self.base.factors, dearer.factors, strict=True)):
            if isinstance(here, TableFactor) and isinstance(there, TableFactor):
                slope = there.costs - here.costs
                if slope.any():
                    self.slopes[f] = slope

    def factor(self, f: int, price: float, left: Factor) -> Factor:
        """The part left of a factor, at another price."""
        base = self.base.factors[f]
        if not isinstance(left, TableFactor) or not isinstance(base, TableFactor) or not self.is_priced(f):
            return left
        costs = base.costs + price * self.slopes[f] if f in self.slopes else base.costs
        if f in self.shared:
            saved, nbytes = self.shared[f]
            costs = costs + min(0.0, price - saved) * nbytes
        return left.priced(costs[left.numbers])

    def is_priced(self, f: int) -> bool:
        """Tells whether the price changes what a factor costs."""
        return f in self.slopes or f in self.shared

    def graph(self, price: float) -> FactorGraph:
        """All of it."""
        factors = [self.factor(f, price, factor) for f, factor in enumerate(self.base.factors)]
        return FactorGraph(list(self.base.sizes), factors)

    def whole(self) -> Remainder:
        """All of it, with nothing shifted yet."""
        factors = self.base.factors
        theta = [[np.zeros(self.base.sizes[v]) for v in factor.variables] for factor in factors]
        values = [np.arange(size, dtype=np.int64) for size in self.base.sizes]
        return Remainder(list(factors), theta, values, list(range(len(factors))))

    def follow(self, left: Remainder, price: float) -> None:
        """Gives what is left of the graph, no factor of which has been settled, this price."""
        for i, f in enumerate(left.origins):
            if self.is_priced(f):
                left.factors[i] = self.factor(f, price, left.factors[i])
