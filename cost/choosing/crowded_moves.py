"""Movements along crowded dimensions, which have no room for the digits of all their values together.

A table of movements counts each by itself and by digits; a program's order of digits can make one along a crowded
dimension dearer. Which ones it does is seen in the programs of layouts that were chosen. What they cost under the best
of the orders that begin so is then put into the tables, and layouts are chosen again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.layout_codes import Codes, StateNumbering
from shardwright.cost.choosing.layout_solution import LayoutSolution
from shardwright.cost.choosing.layouts import Moves, seconds_of
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.choosing.program_problems import type_on
from shardwright.cost.hardware.topology import topology_of
from shardwright.cost.resharding.planner import MOST_ORDERS, ReshardingPlan, plan
from shardwright.ir.digit_orders import orders_in
from shardwright.ir.digits import Order
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.types import ON_DEVICE, TensorType

Pair = tuple[TensorType, TensorType]

_MORE = 1e-9
"""The share of a cost that is rounding."""


@dataclass
class CrowdedMoves:
    """The movements of a program, its layouts open, that were seen to cost more than was counted: bytes, or seconds
    where there is an `objective`."""

    program: Program
    objective: Objective | None = None
    pairs: dict[Pair, tuple[str, ...]] = field(default_factory=dict[Pair, tuple[str, ...]])
    """With the crowded dimensions of each; on the axes of several chips, for the others change no movement."""

    @property
    def mesh(self) -> Mesh:
        """The axes of several chips."""
        return self.program.mesh.dividing

    def learn(self, placement: LayoutSolution, made: Program) -> tuple[tuple[str, ...], bool]:
        """Looks at the movements of layouts and at their explicit program: along which dimensions some cost more than
        was counted, and whether they count more from now on under the same orders."""
        seen = orders_in(made, made.funcs[0])
        dims: dict[str, None] = {}
        more = False
        for pair, counts in placement.counted.items():
            crowded = self.crowded(pair)
            if not crowded or any(kind.placement != ON_DEVICE for kind in pair):
                continue
            counted = counts[0 if self.objective is None else 2] * (1 + _MORE)
            if self.cost(plan(*pair, made.mesh, {name: seen[name] for name in crowded})) > counted:
                known = type_on(pair[0], self.mesh), type_on(pair[1], self.mesh)
                self.pairs.setdefault(known, crowded)
                dims.update(dict.fromkeys(crowded))
                plans = self.plans(known, placement.orders)
                more |= bool(plans) and min(map(self.cost, plans)) > counted
        return tuple(dims), more

    def cost(self, made: ReshardingPlan) -> float:
        """The bytes or seconds of the collectives of a plan."""
        if self.objective is None:
            return made.bytes_received
        topology, constants = topology_of(self.objective.chip, self.program.mesh), self.objective.constants
        return sum(seconds_of(step.collective, topology, constants) for step in made.steps if step.collective)

    def crowded(self, pair: Pair) -> tuple[str, ...]:
        """The dimensions that a movement is along, and that may be crowded; none that a function gives another size."""
        own = {name for func in self.program.funcs for name, _ in func.overrides}
        return tuple(
            dim.name
            for dim, *splits in zip(pair[0].dims, pair[0].splits, pair[1].splits, strict=True)
            if dim.size % self.program.mesh.n_chips and any(splits) and dim.name not in own
        )

    def under(self, orders: Mapping[str, Order]) -> tuple[tuple[ReshardingPlan, ...], ...]:
        """The plans of each known movement under all orders that begin so."""
        return tuple(filter(None, (self.plans(pair, orders) for pair in self.pairs)))

    def plans(self, pair: Pair, first: Mapping[str, Order]) -> tuple[ReshardingPlan, ...]:
        """The plans of a movement under all orders that begin so; none where these are many."""
        dims = self.pairs[pair]
        ways = [self.orders(name, first.get(name, ()), pair) for name in dims]
        if math.prod(map(len, ways)) > MOST_ORDERS:
            return ()
        choices = (dict(zip(dims, chosen, strict=True)) for chosen in product(*ways))
        return tuple(plan(*pair, self.mesh, chosen) for chosen in choices)

    def orders(self, name: str, first: Order, pair: Pair) -> list[Order]:
        """The orders of a dimension that begin so, as far as they matter for a movement: its own digits follow in any
        order, then all others, which it may take for a time."""
        dim, mesh = self.program.dim(name), self.mesh
        if dim.order is not None:
            return [tuple(digit for digit in dim.order if isinstance(digit, int) or digit in mesh)]
        fitting = [axis for axis, size in mesh.items() if dim.size % size == 0]
        known = tuple(digit for digit in first if digit in fitting)
        own = mesh.sorted({*pair[0].split(name), *pair[1].split(name)}.difference(known))
        others = tuple(axis for axis in fitting if axis not in known and axis not in own)
        return [(*known, *rest, *others) for rest in permutations(own)]


def no_less_than_planned(
    found: Moves,
    coding: StateNumbering,
    codes: Codes,
    plans: Iterable[tuple[ReshardingPlan, ...]],
    seconds: Callable[[ReshardingPlan], float],
) -> Moves:
    """The costs of movements between layouts of one shape, `found` or no less than the cheapest of the plans of a
    movement, each plan by its `seconds`, whatever axes of one chip do. Plans on other axes are passed over."""
    digits, axes = coding.dividing_digits(codes), coding.mesh.dividing

    def layouts(kind: TensorType) -> NDArray[np.int64]:
        states = [coding.number(kind.state(axis)) for axis in axes]
        return np.flatnonzero((digits == np.array(states, np.int64)).all(axis=1))

    for each in (each for each in plans if each[0].mesh == axes):
        at = np.ix_(layouts(each[0].source), layouts(each[0].target))
        if found[0][at].size:
            received, steps, taken = (table if table.flags.writeable else table.copy() for table in found)
            received[at] = np.maximum(received[at], min(made.bytes_received for made in each))
            steps[at] = np.maximum(steps[at], min(made.communicating_steps for made in each))
            taken[at] = np.maximum(taken[at], min(map(seconds, each)))
            found = received, steps, taken
    return found
