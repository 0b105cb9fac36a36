"""The bound of a program under a memory limit, case by case: how much room weights and state take, and what is moved.

Under prices (`PricedGraph`) the least cost, less what memory costs, is a lower bound of all that fits. The best prices
leave a gap, because weights come in lumps: a weight is split over one axis more or not, and gathered in a loop or not.
So cases are told apart, each with prices of its own: a weight or state value takes at most so many bytes, or more; one
that a loop takes is moved there, or is not. One of the two holds of every program, so the least bound of all cases is
one of all programs. Where one value takes much, what room is left for the others rules out most of theirs.

Prices are improved one at a time, by doubling and halving: the bound is concave in them. Message passing is not begun
anew for each, so that a trial takes a few sweeps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.factor_graph import Remainder
from shardwright.cost.factors import FORBIDDEN, TreeFactor
from shardwright.cost.layout_problem import Node
from shardwright.cost.layout_program.priced_graph import PricedGraph
from shardwright.cost.time_placement import Floats, TimeSolver

_SWEEPS = 12
"""There and back, at most, for each set of prices."""

_SHARE = 0.1
"""Of what loops hide, where none was seen before: the price to begin with. Of the time for all the memory likewise."""

_RISE = 0.02
"""Of the gap: a bound that rises by less has settled, or is not worth another trial."""

_UNDECIDED = 0.02
"""Of the bound: a choice that costs so much more than another is decided against."""


_ROOM_FIRST = 2.0
"""What deciding room counts more than deciding movements: it decides on others too."""


@dataclass
class Case:
    """What is left of the graph, the trees whose values are moved or not, and the prices that gave the bound.

    `above` is how far above the bound a program was looked for and not found, as a share.
    """

    left: Remainder
    moved: Mapping[int, tuple[float, float]]
    prices: Floats
    bound: float = -math.inf
    above: float = 0.0

    @property
    def choices(self) -> int:
        """Of all variables together."""
        return sum(map(len, self.left.values))


@dataclass(frozen=True)
class Cut:
    """How a case may be told apart: a value takes at most so many bytes, or more; a movement of a tree takes at most so
    long, or longer."""

    worth: float
    """About what the prices say of the difference."""
    node: Node
    most: float
    tree: int = -1


class Cases:
    """Bounds cases of a solver's problem, and tells them apart."""

    def __init__(self, solver: TimeSolver, limit: float) -> None:
        self.priced = PricedGraph(solver)
        self.limit = limit
        self.kept = [node for node in solver.problem.nodes if node.func is None]
        self.nbytes = {node.home: solver.device_bytes(node)[solver.choices[node.home]] for node in self.kept}

    def first(self, byte_ns: float) -> Case:
        """All of it, memory at this price."""
        return Case(self.priced.whole(), {}, np.array([byte_ns] + [0.0] * len(self.priced.funcs)))

    def ways(self) -> list[Floats]:
        """The prices that are doubled or halved together: each, and that of memory with each share."""
        hidden = {1 + self.priced.funcs.index(node.func or "") for node in self.priced.hiding.values()}
        alone = [np.eye(1 + len(self.priced.funcs))[k] for k in (0, *sorted(hidden))]
        return [*alone, *(alone[0] + each for each in alone[1:])]

    # ------------------------------------------------------------ bounds

    def bounded(self, case: Case, upper: float) -> bool:
        """Improves a case's prices and bound, and leaves out what costs more than `upper`; whether anything is left."""
        if not self.make_room(case):
            return False
        ways = self.ways()
        if sum(float(nbytes[case.left.values[v]].max()) for v, nbytes in self.nbytes.items()) <= self.limit:
            case.prices[0] = 0.0  # everything fits
            ways = [way for way in ways if not way[0]]
        best = self.settle(case, case.prices, upper)
        rising = True
        while rising and best < upper:
            before = best
            for way in ways:
                best = self.improve(case, way, best, upper)
            rising = best - before > 0.1 * (upper - before if math.isfinite(upper) else _UNDECIDED * best)
        return self.settle(case, case.prices, upper) < upper

    def settle(self, case: Case, prices: Floats, upper: float) -> float:
        """Message passing under these prices until the bound rises no more; what costs more than `upper` is left
        out, and the bound is `upper` where nothing is left."""
        self.priced.follow(case.left, prices, case.moved)
        room = prices[0] * self.limit
        bound = -math.inf
        for sweep in range(_SWEEPS):
            case.left.sweep(forward=True)
            case.left.sweep(forward=False)
            before, bound = bound, case.left.bound() - room
            if sweep % 2 and math.isfinite(upper) and bound < upper:
                everything = [np.ones(len(values), np.bool_) for values in case.left.values]
                left = case.left.restricted(everything, upper - bound, settle=False)
                if left is None:
                    bound = upper
                else:
                    case.left = left
            case.bound = max(case.bound, min(bound, upper))
            if bound >= upper or bound - before < _RISE * (min(upper, (1 + 2 * _UNDECIDED) * abs(bound)) - bound):
                break
        return bound

    def improve(self, case: Case, way: Floats, best: float, upper: float) -> float:
        """Doubles or halves some prices as long as the bound rises."""
        units = np.full(len(way), _SHARE)
        units[0] *= best / self.limit
        most = np.where(np.arange(len(way)) > 0, 1.0, np.inf)
        for factor in (2.0, 0.5):
            moved = False
            while best < upper:
                now = case.prices
                then = now * factor if factor < 1 else np.maximum(now * factor, units * 0.5)
                if moved and factor < 1:
                    then = np.where(then < units / 4, 0.0, then)
                trial = np.where(way > 0, np.minimum(then, most), now)
                if (trial == now).all():
                    break
                bound = self.settle(case, trial, upper)
                if bound <= best + 1e-6 * abs(best):
                    break
                moved, best, case.prices = True, bound, trial
            if moved:
                break
        return best

    def make_room(self, case: Case) -> bool:
        """Leaves out what takes more room than all others leave; False where nothing fits."""
        taken = {v: nbytes[case.left.values[v]] for v, nbytes in self.nbytes.items()}
        least = sum(float(nbytes.min()) for nbytes in taken.values())
        if least > self.limit:
            return False
        keep = [np.ones(len(values), np.bool_) for values in case.left.values]
        for v, nbytes in taken.items():
            keep[v] = least - nbytes.min() + nbytes <= self.limit
        return all(mask.all() for mask in keep) or self.restrict(case, keep)

    @staticmethod
    def restrict(case: Case, keep: Sequence[NDArray[np.bool_]]) -> bool:
        """Leaves only these choices; False where none are left that go together."""
        left = case.left.restricted(keep, 2 * FORBIDDEN, settle=False)
        if left is None:
            return False
        case.left = left
        return True

    # ------------------------------------------------------------ telling apart

    def cut(self, case: Case) -> Cut | None:
        """What the bound says least of, for what it costs: two ways that cost about as much at these prices."""
        self.priced.follow(case.left, case.prices, case.moved)
        enough = _UNDECIDED * case.bound
        found: list[Cut] = []
        for node in self.kept:
            nbytes = self.nbytes[node.home][case.left.values[node.home]]
            least = self.least_of(case.left, node.home)
            sizes = np.unique(nbytes)
            costs = np.array([least[nbytes == size].min() for size in sizes])
            best = int(costs.argmin())
            for size, cost in zip(sizes, costs, strict=True):
                apart = abs(size - sizes[best]) * case.prices[0] * max(0.0, 1 - (cost - costs[best]) / enough)
                if apart:
                    found.append(Cut(float(apart), node, float(min(size, sizes[best]))))
        for i, f in enumerate(case.left.origins):
            tree = case.left.factors[i]
            if f in self.priced.hiding and isinstance(tree, TreeFactor) and not all(tree.rigid):
                of, slope = self.priced.slopes[f]
                costs = tree.move_marginals(case.left.theta[i])[-1]
                best = np.unravel_index(int(costs.argmin()), costs.shape)
                differs = np.abs(slope - slope[best]) * case.prices[of]
                differs = differs * np.maximum(0.0, 1 - (costs - costs[best]) / enough)
                at = np.unravel_index(int(differs.argmax()), costs.shape)
                if differs[at] > 0:
                    most = 0.5 * float(slope[at] + slope[best])
                    found.append(Cut(float(differs[at]), self.priced.hiding[f], most, f))
        return max(found, key=lambda cut: cut.worth * (1 if cut.tree >= 0 else _ROOM_FIRST), default=None)

    def least_of(self, left: Remainder, variable: int) -> Floats:
        """What each choice of a variable costs at least above the bound, as one of the factors around it says."""
        above = np.zeros(len(left.values[variable]))
        for f, slot in left.neighbours[variable]:
            costs = left.factors[f].min_marginals(left.theta[f])[slot]
            above = np.maximum(above, costs - costs.min())
        return above

    def apart(self, case: Case, cut: Cut) -> list[Case]:
        """The two cases that a case is cut in, those of them that can be."""
        made: list[Case] = []
        for first in (True, False):
            theta = [list(costs) for costs in case.left.theta]
            copied = Remainder(list(case.left.factors), theta, list(case.left.values), list(case.left.origins))
            each = Case(copied, case.moved, case.prices.copy(), case.bound)
            if cut.tree >= 0:
                low, high = case.moved.get(cut.tree, (-math.inf, math.inf))
                each.moved = {**case.moved, cut.tree: (low, cut.most) if first else (cut.most, high)}
                made.append(each)
                continue
            keep = [np.ones(len(values), np.bool_) for values in copied.values]
            keep[cut.node.home] = (self.nbytes[cut.node.home][copied.values[cut.node.home]] <= cut.most) == first
            if keep[cut.node.home].any() and self.restrict(each, keep):
                made.append(each)
        return made
