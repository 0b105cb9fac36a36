"""The choice of layouts with what orders of digits make them cost, by the first digits of these.

Layouts are chosen as if nothing moved at the edges of functions, and each movement cost what it does alone, which for
most programs is so; their cost then is a bound of all others, too. Where `edge-blocks` moves something along a
dimension, or movements along it cost more for lack of room, layouts are chosen anew for each axis that may be the first
of its digits, then the second, at what that costs at least under such orders (`cost.choosing.edge_costs`,
`cost.choosing.crowded_moves`): branch and bound, which ends where nothing below the least total is left.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from shardwright.cost.choosing.edge_costs import orders_from
from shardwright.cost.choosing.work_limit import OutOfWorkError
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.digit_orders import orders_in, splitting_axes, strided_dims
from shardwright.ir.digits import Order
from shardwright.ir.ops import Concat, Merge, Permute, Roll, Split, Take, Topk
from shardwright.ir.program import DimInfo, Program
from shardwright.ir.walk import lets_in
from shardwright.passes.compiling.choose_digit_order import ChooseDigitOrder

MOST_TRIES = 24
"""How often layouts are chosen anew."""

Orders = Mapping[str, Order]
"""The first digits of dimensions."""


C = TypeVar("C")


@dataclass(frozen=True)
class PricedChoice(Generic[C]):
    """A choice of layouts, the program with them and that with every movement written, its cost with edges, and what
    all others cost at least under the same orders; `shared` if with edges apart another might have been chosen.
    Movements along `crowded` dimensions cost more than was counted; under the same orders, too, if `learned`. Where
    digits did not agree, `bound` is of the layouts that were looked at, and `relaxed` one of all."""

    choice: C
    placed: Program
    program: Program
    total: float
    bound: float
    shared: bool
    crowded: tuple[str, ...] = ()
    learned: bool = False
    relaxed: float = math.inf

    @property
    def bound_of_all(self) -> float:
        """A bound of all layouts, whether or not they were looked at."""
        return min(self.bound, self.relaxed)


def moves_at_edges(placed: Program) -> bool:
    """Tells whether anything is strided at the edges of a program whose layouts are chosen."""
    program = ChooseDigitOrder().run(placed)
    used = splitting_axes(program)
    for func in program.funcs:
        orders = orders_in(program, func, used)
        kinds = (*(value.type for value in func.params), *func.results)
        if any(strided_dims(kind, orders, program.mesh) for kind in kinds):
            return True
    return False


def moved_dims(program: Program) -> list[str]:
    """The dimensions of which blocks are made at the edges of an explicit program, or digits of blocks."""
    operations = (let.operation for func in program.funcs for let in lets_in(func.body))
    return list(dict.fromkeys(dim for op in operations if isinstance(op, Permute) and op.blocks for dim in op.dims))


def in_cheaper_orders(placed: Program, orders: Orders, total: Callable[[Program], float]) -> Program:
    """A program whose layouts are chosen, in the orders that begin so where that costs less in `total` than in those
    that `choose-digit-order` takes, which weighs each dimension by itself. Of a dimension but one order may begin so;
    those that a function gives another size, or whose digits are those of others, are left to that pass."""
    used, mesh = splitting_axes(placed), placed.mesh
    left = {name for func in placed.funcs for name, _ in func.overrides}
    for let in (let for func in placed.funcs for let in lets_in(func.body)):
        match let.operation:
            case Split(name, parts) | Merge(parts, name):
                left.update((name, *parts))
            case Topk(dim=name, target=target):
                left.update((name, target))
            case Take(dim=name) | Concat(dim=name) | Roll(dim=name):  # which want axes to be its outermost digits
                left.add(name)
            case _:
                pass
    dims: list[DimInfo] = []
    for dim in placed.dims:
        axes = used.get((dim.name, None), ())
        open_ = axes and dim.order is None and dim.name in orders and dim.name not in left
        ways = orders_from(dim, orders[dim.name], mesh) if open_ else tuple[Order, ...]()
        if len(ways) != 1:
            dims.append(dim)
            continue
        alone = (axis for axis in axes if mesh[axis] == 1)  # which no way of beginning tells apart
        dims.append(replace(dim, order=(*(digit for digit in ways[0] if digit in axes), *alone)))
    ordered = replace(placed, dims=tuple(dims))
    if ordered == placed:
        return placed
    try:
        return ordered if total(ordered) < total(placed) else placed
    except DiagnosticError:  # renames do not agree on them
        return placed


def best_over_orders(
    first: PricedChoice[C],
    choose: Callable[[Orders, bool, float], PricedChoice[C]],
    enough: float = 0.0,
    late: Callable[[], bool] = lambda: False,
) -> PricedChoice[C]:
    """The best layouts, with what orders of digits make them cost, and a bound of all. `first` is chosen without that,
    and `choose` chooses under orders that begin so, once more with edges apart (`PlacementOptions`) where that leaves a
    gap; what its last argument or more is in total may as well be more. A share of the total that is `enough` need not
    be proved; nothing more is tried once it is `late`, by the clock or by the work that was done."""
    best, closed, tries = first, math.inf, 0
    heap: list[tuple[float, int, Orders, PricedChoice[C], float]] = [(first.bound, 0, {}, first, first.bound_of_all)]
    while heap and heap[0][0] < best.total * (1 - enough):
        bound, _, orders, parent, of_all = heapq.heappop(heap)
        following = _following(parent, orders)
        if not following or tries + len(following) > MOST_TRIES:
            closed = min(closed, of_all)
            continue
        for longer in following:
            if late():
                closed = min(closed, of_all)
                break
            tries += 1
            try:
                made = choose(longer, False, best.total * (1 - enough))
                best = min(best, made, key=lambda each: each.total)
                if made.shared and made.bound < min(best.total, made.total) * (1 - enough) and not late():
                    best = min(best, choose(longer, True, math.inf), key=lambda each: each.total)
            except (OutOfWorkError, DiagnosticError):
                closed = min(closed, of_all)
                continue
            above = max(of_all, made.bound_of_all)
            heapq.heappush(heap, (max(bound, made.bound), tries, longer, made, above))
    return replace(best, bound=min([best.total, closed, *(of_all for *_, of_all in heap)]))


def _following(parent: PricedChoice[C], orders: Orders) -> list[Orders]:
    """The same orders where more is known of what they cost; else the ways to give one more digit of the first
    dimension that costs something and whose order is still open, if there is one."""
    if parent.learned:
        return [orders]
    program = parent.placed
    for name in dict.fromkeys((*moved_dims(parent.program), *parent.crowded)):
        known = orders.get(name, ())
        ways = orders_from(program.dim(name), known, program.mesh)
        if len(ways) > 1 or name not in orders:
            return [{**orders, name: first} for first in dict.fromkeys(way[: len(known) + 1] for way in ways)]
    return []
