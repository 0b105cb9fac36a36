"""The bound of a program under a memory limit, case by case: how much room weights and state take.

At a price for each byte (`PricedGraph`) the least cost, less what memory costs, is a lower bound of all that fits. The
best price leaves a gap, because weights come in lumps: a weight is split over one axis more or not. So cases are told
apart, each with a price of its own: a weight or state value takes at most so many bytes, or more. One of the two holds
of every program, so the least bound of all cases is one of all programs. Where one value takes much, what room is left
for the others rules out most of theirs.

A price is improved by doubling and halving: the bound is concave in it. Message passing is not begun anew for each, so
that a trial takes a few sweeps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.factors import FORBIDDEN
from shardwright.cost.choosing.layout_problem import ValueNode
from shardwright.cost.choosing.layout_program.priced_graph import PricedGraph
from shardwright.cost.choosing.remainder import Remainder
from shardwright.cost.choosing.time_placement import Floats, TimeSolver

_SWEEPS = 12
"""There and back, at most, for each price."""

_SHARE = 0.1
"""The price to begin with, for all the memory, as a share of the time."""

_RISE = 0.02
"""Of the gap: a bound that rises by less has settled, or is not worth another trial."""

_UNDECIDED = 0.02
"""Of the bound: a choice that costs so much more than another is decided against."""


@dataclass
class Case:
    """The part that is left of the graph, the price of a byte that gave the bound, and how far above the bound a
    program was looked for and not found, as a share."""

    left: Remainder
    price: float
    bound: float = -math.inf
    above: float = 0.0

    @property
    def choices(self) -> int:
        """The choices of all variables together."""
        return sum(map(len, self.left.values))


@dataclass(frozen=True)
class CaseCut:
    """How a case may be told apart: a value takes at most so many bytes, or more."""

    worth: float
    """About what the price says of the difference."""
    node: ValueNode
    most: float


class Cases:
    """Bounds cases of a solver's problem, and tells them apart; `shared` as in `PricedGraph`."""

    def __init__(
        self, solver: TimeSolver, limit: float, shared: Mapping[int, tuple[float, Floats]] | None = None
    ) -> None:
        self.priced = PricedGraph(solver, shared)
        self.shared = sum(float(nbytes.max()) for _, nbytes in (shared or {}).values())
        self.out_of_time = solver.out_of_time
        self.limit = limit
        self.kept = [node for node in solver.problem.nodes if node.func is None]
        self.nbytes = {node.home: solver.device_bytes(node)[solver.choices[node.home]] for node in self.kept}

    def first(self, byte_ns: float) -> Case:
        """All of it, memory at this price."""
        return Case(self.priced.whole(), byte_ns)

    # ------------------------------------------------------------ bounds

    def bounded(self, case: Case, upper: float) -> bool:
        """Improves a case's price and bound, and leaves out what costs more than `upper`; whether anything is left."""
        if not self.make_room(case):
            return False
        most = self.shared + sum(float(nbytes[case.left.values[v]].max()) for v, nbytes in self.nbytes.items())
        if most <= self.limit:
            case.price = 0.0  # everything fits
            return self.settle(case, 0.0, upper) < upper
        best = self.settle(case, case.price, upper)
        rising = True
        while rising and best < upper and not self.out_of_time():
            before = best
            best = self.improve(case, best, upper)
            rising = best - before > 0.1 * (upper - before if math.isfinite(upper) else _UNDECIDED * best)
        return self.settle(case, case.price, upper) < upper

    def settle(self, case: Case, price: float, upper: float) -> float:
        """Message passing at this price until the bound rises no more; what costs more than `upper` is left out, and
        the bound is `upper` where nothing is left."""
        self.priced.follow(case.left, price)
        room = price * self.limit
        bound = -math.inf
        for sweep in range(_SWEEPS):
            case.left.sweep(forward=True)
            case.left.sweep(forward=False)
            before, bound = bound, case.left.bound() - room
            if sweep % 2 and math.isfinite(upper) and bound < upper:
                left = case.left.restricted({}, upper - bound, settle=False)
                if left is None:
                    bound = upper
                else:
                    case.left = left
            case.bound = max(case.bound, min(bound, upper))
            enough = _RISE * (min(upper, (1 + 2 * _UNDECIDED) * abs(bound)) - bound)
            if bound >= upper or bound - before < enough or self.out_of_time():
                break
        return bound

    def improve(self, case: Case, best: float, upper: float) -> float:
        """Doubles or halves the price as long as the bound rises."""
        unit = _SHARE * best / self.limit
        for factor in (2.0, 0.5):
            moved = False
            while best < upper and not self.out_of_time():
                trial = case.price * factor if factor < 1 else max(case.price * factor, unit * 0.5)
                if moved and factor < 1 and trial < unit / 4:
                    trial = 0.0
                if trial == case.price:
                    break
                bound = self.settle(case, trial, upper)
                if bound <= best + 1e-6 * abs(best):
                    break
                moved, best, case.price = True, bound, trial
            if moved:
                break
        return best

    def make_room(self, case: Case) -> bool:
        """Leaves out what takes more room than all others leave; False where nothing fits."""
        taken = {v: nbytes[case.left.values[v]] for v, nbytes in self.nbytes.items()}
        least = sum(float(nbytes.min()) for nbytes in taken.values())
        if least > self.limit:
            return False
        keep = {v: least - nbytes.min() + nbytes <= self.limit for v, nbytes in taken.items()}
        return all(mask.all() for mask in keep.values()) or self.restrict(case, keep)

    @staticmethod
    def restrict(case: Case, keep: Mapping[int, NDArray[np.bool_]]) -> bool:
        """Leaves only these choices; False where none are left that go together."""
        left = case.left.restricted(keep, 2 * FORBIDDEN, settle=False)
        if left is None:
            return False
        case.left = left
        return True

    # ------------------------------------------------------------ telling apart

    def cut(self, case: Case) -> CaseCut | None:
        """The cut of which the bound says least, for what it costs: two ways that cost about as much at this price."""
        self.priced.follow(case.left, case.price)
        enough = _UNDECIDED * case.bound
        found: list[CaseCut] = []
        for node in self.kept:
            nbytes = self.nbytes[node.home][case.left.values[node.home]]
            least = self.least_of(case.left, node.home)
            sizes = np.unique(nbytes)
            costs = np.array([least[nbytes == size].min() for size in sizes])
            best = int(costs.argmin())
            for size, cost in zip(sizes, costs, strict=True):
                more = cost - costs[best]
                near = max(0.0, 1 - more / enough) if more and enough > 0 else float(not more)
                apart = abs(size - sizes[best]) * case.price * near
                if apart:
                    found.append(CaseCut(float(apart), node, float(min(size, sizes[best]))))
        return max(found, key=lambda cut: cut.worth, default=None)

    def least_of(self, left: Remainder, variable: int) -> Floats:
        """The least that each choice of a variable costs above the bound, as one of the factors around it says."""
        above = np.zeros(len(left.values[variable]))
        for f, slot in left.neighbours[variable]:
            costs = left.factors[f].min_marginals(left.theta[f])[slot]
            above = np.maximum(above, costs - costs.min())
        return above

    def apart(self, case: Case, cut: CaseCut) -> list[Case]:
        """The two cases that a case is cut in, those of them that can be."""
        made: list[Case] = []
        for first in (True, False):
            theta = [list(costs) for costs in case.left.theta]
            copied = Remainder(list(case.left.factors), theta, list(case.left.values), list(case.left.origins))
            each = Case(copied, case.price, case.bound)
            keep = (self.nbytes[cut.node.home][copied.values[cut.node.home]] <= cut.most) == first
            if keep.any() and self.restrict(each, {cut.node.home: keep}):
                made.append(each)
        return made
