"""Movements along crowded dimensions, which have no room for the digits of all their values together.

A table of movements counts each by itself and by digits; a program's order of digits can make one along a crowded
dimension dearer. Which ones it does is seen in the programs of layouts that were chosen. What they cost under the best
of the orders that begin so is then put into the tables, and layouts are chosen again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations, product

from shardwright.cost.choosing.layout_problem import PricedMove
from shardwright.cost.choosing.layout_solution import LayoutSolution
from shardwright.cost.choosing.layouts import seconds_of
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.hardware.topology import topology_of
from shardwright.cost.resharding.planner import ReshardingPlan, plan
from shardwright.ir.digit_orders import orders_in, splitting_axes
from shardwright.ir.digits import Order
from shardwright.ir.program import Program
from shardwright.ir.types import ON_DEVICE, TensorType

Pair = tuple[TensorType, TensorType]

_MOST_ORDERS = 36
"""Of the crowded dimensions of a movement together; with more it is left as it is."""

_MORE = 1e-9
"""Of a cost: less than that is rounding."""


@dataclass
class CrowdedMoves:
    """The movements of a program, its layouts open, that were seen to cost more than was counted: bytes, or seconds
    where there is an `objective`."""

    program: Program
    objective: Objective | None = None
    pairs: dict[Pair, tuple[str, ...]] = field(default_factory=dict[Pair, tuple[str, ...]])
    """With the crowded dimensions of each."""

    def learn(self, placement: LayoutSolution, made: Program) -> tuple[tuple[str, ...], bool]:
        """Looks at the movements of layouts and at their explicit program: along which dimensions some cost more than
        was counted, and whether they count more from now on under the same orders."""
        mesh, used = self.program.mesh, splitting_axes(made)
        seen = {func.name: orders_in(made, func, used) for func in made.funcs}
        dims: dict[str, None] = {}
        more = False
        for func, pair in self.movements(placement):
            there = seen[func or made.funcs[0].name]
            crowded = tuple(name for name in self.crowded(pair) if name in there)
            if not crowded:
                continue
            counted = placement.counted[pair][0 if self.objective is None else 2] * (1 + _MORE)
            if self.cost(plan(*pair, mesh, {name: there[name] for name in crowded})) > counted:
                self.pairs.setdefault(pair, crowded)
                dims.update(dict.fromkeys(crowded))
                plans = self.plans(pair, placement.orders)
                more |= bool(plans) and min(map(self.cost, plans)) > counted
        return tuple(dims), more

    def cost(self, made: ReshardingPlan) -> float:
        """The bytes or seconds of the collectives of a plan."""
        if self.objective is None:
            return made.bytes_received
        topology, constants = topology_of(self.objective.chip, self.program.mesh), self.objective.constants
        return sum(seconds_of(step.collective, topology, constants) for step in made.steps if step.collective)

    def movements(self, placement: LayoutSolution) -> Iterator[tuple[str | None, Pair]]:
        """The movements between chips, with the functions that they are in."""
        for node in placement.nodes:
            made = [(placement.kinds[node.made], placement.kinds[node.home])] if node.made >= 0 else []
            for pair in (*made, *placement.trees.get(node, ())):
                if pair in placement.counted and all(kind.placement == ON_DEVICE for kind in pair):
                    yield node.func, pair

    def crowded(self, pair: Pair) -> list[str]:
        """The dimensions that a movement is along, and that may be crowded."""
        own = {name for func in self.program.funcs for name, _ in func.overrides}
        return [
            dim.name
            for dim, *splits in zip(pair[0].dims, pair[0].splits, pair[1].splits, strict=True)
            if dim.size % self.program.mesh.n_chips and any(splits) and dim.name not in own
        ]

    def under(self, orders: Mapping[str, Order]) -> tuple[PricedMove, ...]:
        """The known movements by their plans under all orders that begin so."""
        plans = {pair: self.plans(pair, orders) for pair in self.pairs}
        return tuple(PricedMove(*pair, made) for pair, made in plans.items() if made)

    def plans(self, pair: Pair, first: Mapping[str, Order]) -> tuple[ReshardingPlan, ...]:
        """The plans of a movement under all orders that begin so; none where these are many."""
        dims = self.pairs[pair]
        ways = [self.orders(name, first.get(name, ()), pair) for name in dims]
        if math.prod(map(len, ways)) > _MOST_ORDERS:
            return ()
        choices = (dict(zip(dims, chosen, strict=True)) for chosen in product(*ways))
        return tuple(plan(*pair, self.program.mesh, chosen) for chosen in choices)

    def orders(self, name: str, first: Order, pair: Pair) -> list[Order]:
        """The orders of a dimension that begin so, as far as they matter for a movement: its own digits follow in any
        order, then all others, which it may take for a time."""
        dim, mesh = self.program.dim(name), self.program.mesh
        if dim.order is not None:
            return [dim.order]
        fitting = [axis for axis, size in mesh.items() if size > 1 and dim.size % size == 0]
        known = tuple(digit for digit in first if digit in fitting)
        own = mesh.sorted({*pair[0].split(name), *pair[1].split(name)}.difference(known))
        others = tuple(axis for axis in fitting if axis not in known and axis not in own)
        return [(*known, *rest, *others) for rest in permutations(own)]
