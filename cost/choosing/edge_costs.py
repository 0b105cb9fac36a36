"""The costs of strided layouts at the edges of functions: what `edge-blocks` would move, by layouts.

How much that is depends on the order of each dimension's digits, which is chosen after the layouts. Where the first
digits of an order are given (`PlacementOptions.orders`), a layout costs what it does under the best order that begins
so; nothing where a dimension has none given. So a problem with fewer digits given is a bound of those with more.

What renames want of the orders is left to the pass that chooses them. Dimensions to which a function gives another size
cost nothing here, and those that are split or merged, whose orders have digits of their parts, only where edges are
counted apart (`PlacementOptions.edges_apart`), which gives choices and no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise, permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.factors import TableFactor
from shardwright.cost.choosing.layout_problem import Group, LayoutProblem, LoopSlice, StrategyTable, UseKey, ValueNode
from shardwright.cost.movements.movement import Collective, collective_of
from shardwright.cost.resharding.planner import plan
from shardwright.ir.digit_orders import strided_dims
from shardwright.ir.digits import Order
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import AllGather, AllToAll, Convert, Merge, Permute, ReduceScatter, Slice, Split, Take
from shardwright.ir.program import DimInfo, Func, Let
from shardwright.ir.types import ON_DEVICE, TensorType
from shardwright.ir.walk import lets

_MOST_ROWS = 1 << 16
"""The most rows of an edge's table: with more, each use of the value has one, with its share of the cost."""

Price = Callable[[Collective], float]
"""The cost of one execution."""

Costs = NDArray[np.float64]

Tables = NDArray[np.bool_]


Detours = dict[tuple[int, int], dict[tuple[int, int], int]]
"""For the variables of a result's home and its return, and the numbers of their layouts, that of the layout between
which costs less than blocks would."""


@dataclass
class EdgeTables:
    """The tables of what parameters and results cost at the edges, by the layouts that they have inside, with how often
    that is paid; none where no order is given. `moving` has the costs of movements between the layouts of a group."""

    problem: LayoutProblem
    domains: Sequence[NDArray[np.int64]]
    price: Price
    moving: Callable[[Group], Costs]
    detours: Detours = field(default_factory=Detours)
    shared: bool = False
    """Tells whether a movement at an edge may have served something else, so that apart it would cost otherwise."""

    def tables(self) -> Iterator[tuple[float, TableFactor]]:
        if self.problem.options.orders:
            for func in self.problem.program.funcs:
                yield from _FuncEdges(self, func).tables()


def orders_from(dim: DimInfo, first: Order, mesh: Mesh) -> tuple[Order, ...]:
    """The orders of a dimension's digits that begin so: all axes of more than one chip, or what the author wrote."""
    if dim.order is not None:
        return (tuple(digit for digit in dim.order if isinstance(digit, int) or digit in mesh),)
    known = tuple(digit for digit in first if digit in mesh)
    return tuple((*known, *rest) for rest in permutations(a for a, n in mesh.items() if n > 1 and a not in known))


def with_detours(edges: Iterable[tuple[int, int]], detours: Mapping[tuple[int, int], int]) -> list[tuple[int, int]]:
    """Movements, with the layouts between that some of them go through."""
    stops = ((a, detours.get((a, b), a), b) for a, b in edges)
    return [(a, b) for stop in stops for a, b in pairwise(stop) if a != b]


@lru_cache(maxsize=1 << 14)
def _exchanges(
    kind: TensorType, begun: tuple[tuple[str, tuple[Order, ...]], ...], mesh: Mesh, side: str
) -> tuple[tuple[str, ...], tuple[Collective, ...]]:
    """The dimensions of a type that are strided under all orders that may be, and what moves under each of these."""
    strided = {
        name: orders
        for name, orders in begun
        if kind.split(name) and all(strided_dims(kind, {name: order}, mesh) for order in orders)
    }
    permute = Permute(dims=tuple(strided), blocks="to" if side == "to" else "from")
    made = (
        collective_of(permute, kind, mesh, dict(zip(strided, chosen, strict=True)))
        for chosen in product(*strided.values())
    )
    return tuple(strided), tuple(each for each in made if each is not None) if strided else ()


@lru_cache(maxsize=1 << 16)
def _whole_between(before: TensorType, after: TensorType, dims: frozenset[str], mesh: Mesh, last: bool) -> bool:
    """Tells whether dimensions are whole after the first step from one type to another, or before the last one."""
    types = [before, *(step.type for step in plan(before, after, mesh).steps)]
    between = types[max(0, len(types) - 2) if last else min(1, len(types) - 1)]
    return not any(map(between.split, dims))


class _FuncEdges:
    """The edges of one function."""

    def __init__(self, of: EdgeTables, func: Func) -> None:
        self.of, self.func = of, func
        self.problem = problem = of.problem
        self.domains, self.price = of.domains, of.price
        self.mesh = problem.program.mesh
        left = set(dict(func.overrides))
        for let, _ in lets(problem.program):
            match let.operation:
                case Split(source=name) | Merge(target=name) if name in problem.options.orders:
                    of.shared = True
                    if not problem.options.edges_apart:
                        left.add(name)
                case _:
                    pass
        self.begun: Mapping[str, tuple[Order, ...]] = {
            dim.name: orders_from(dim, problem.options.orders[dim.name], self.mesh)
            for dim in problem.program.dims
            if dim.name in problem.options.orders and dim.name not in left
        }
        entries = problem.entries
        self.statements: dict[object, Let] = {
            e.at: e.statement for e in entries if isinstance(e, StrategyTable) and e.statement
        }
        self.views: dict[int, list[ValueNode]] = {}
        for entry in entries:
            if isinstance(entry, LoopSlice):
                self.views.setdefault(entry.outer, []).append(entry.view)

    def tables(self) -> Iterator[tuple[float, TableFactor]]:
        often = self.problem.options.calls.get(self.func.name, 1.0)
        top = self.func.name, ()
        made = [self.taken(self.problem.defined[top, value.name]) for value in self.func.params]
        returned: set[ValueNode] = set()
        for number in range(len(self.func.returns)):
            node, variable = self.problem.by_use[top, number]
            if node not in returned:
                made.append(self.given(node, variable))
            returned.add(node)
        yield from ((often, table) for tables in made for table in tables if table.costs.any())

    # ------------------------------------------------------------ costs of layouts

    def digits(self, variable: int) -> NDArray[np.int64]:
        """The states of each axis in each choice of a variable: [choices, axes]."""
        codes = self.problem.variables[variable].group.root().codes[self.domains[variable]]
        return self.problem.coding.digits(codes)

    def costs(self, node: ValueNode, variable: int, side: str) -> tuple[NDArray[np.float64], Tables]:
        """The cost of each choice at the edge, and the axes that split its strided dimensions: [choices, axes]."""
        digits, coding = self.digits(variable), self.problem.coding
        costs, axes = np.zeros(len(digits)), np.zeros(digits.shape, np.bool_)
        if node.placement != ON_DEVICE or node.type.in_flight:
            return costs, axes
        begun = tuple((name, self.begun[name]) for name in node.shape.names if name in self.begun)
        wide = np.array([size > 1 for size in self.mesh.values()])
        for at, code in enumerate(node.group.root().codes[self.domains[variable]] if begun else ()):
            kind = coding.decode(int(code), node.shape, node.placement)
            strided, exchanges = _exchanges(kind, begun, self.mesh, side)
            if strided:
                costs[at] = min(map(self.price, exchanges), default=0.0)
                axes[at] = np.isin(digits[at], [coding.number_of_dim(name) for name in strided]) & wide
        return costs, axes

    def still(self, axes: Tables, one: int, other: int) -> Tables:
        """Tells whether an axis of a strided dimension splits it in both of two layouts: [choices, choices]. `axes` are
        those of the first."""
        a, b = self.digits(one), self.digits(other)
        return ((a[:, None, :] == b[None, :, :]) & axes[:, None, :]).any(axis=2)

    def free(self, node: ValueNode, before: int, after: int, axes: NDArray[np.bool_], *, last: bool) -> bool:
        """Tells whether dimensions that these axes split in the first of two layouts, by their numbers in the group,
        are whole after the first step; or of those that they split in the second, before the `last` one. Of sizes that
        not all chips divide they may be under some order of digits, which only a bound minds."""
        coding, placement, codes = self.problem.coding, node.placement, node.group.root().codes
        source, target = (coding.decode(int(codes[at]), node.shape, placement) for at in (before, after))
        uneven = any(dim.size % self.mesh.n_chips for dim in node.shape.dims)
        if target.partial is not None or (uneven and not self.problem.options.edges_apart):
            self.of.shared |= uneven
            return True
        edge = target if last else source
        names = {str(edge.state(axis)) for axis, split in zip(self.mesh, axes, strict=True) if split}
        return _whole_between(source, target, frozenset(names), self.mesh, last)

    def same(self, one: int, other: int) -> Tables:
        """Tells whether two choices are one layout."""
        return (self.digits(one)[:, None, :] == self.digits(other)[None, :, :]).all(axis=2)

    # ------------------------------------------------------------ parameters

    def taken(self, node: ValueNode) -> Iterator[TableFactor]:
        """The tables of a parameter. Where movements alone read it, which gather its strided dimensions, or where it is
        only returned, it costs nothing."""
        costs, axes = self.costs(node, node.home, "from")
        if not costs.any():
            return
        uses = list(self.uses(node))
        returned = all(self.returns(key) for key, _, _ in uses)
        reading: list[tuple[int, Tables]] = []
        for key, variable, rigid in uses:
            statement = self.statements.get(key[0])
            operation = None if statement is None else statement.operation
            if (isinstance(operation, Take) and not operation.by) or isinstance(operation, Convert):
                continue  # what reads that decides
            if rigid and isinstance(operation, AllGather | AllToAll | ReduceScatter | Slice):
                continue
            reading.append((variable, self.still(axes, node.home, variable)))
        same = [self.same(node.home, variable) & (not returned) for variable, _ in reading]
        if len(reading) == len(uses) == 1 and not uses[0][2]:
            ((variable, kept),) = reading
            homes, others = self.domains[node.home], self.domains[variable]
            for i, j in np.argwhere(axes.any(axis=1, keepdims=True) & ~kept).tolist():
                kept[i, j] = not self.free(node, homes[i], others[j], axes[i], last=False)
        yield from self.read(node.home, costs, reading, same)

    def uses(self, node: ValueNode) -> Iterator[tuple[UseKey, int, bool]]:
        """The uses of a value, and of the slices that loops take of it."""
        yield from node.uses
        for view in self.views.get(node.home, ()) if node.home >= 0 else ():
            yield from self.uses(view)

    def read(
        self, home: int, costs: Costs, reading: Sequence[tuple[int, Tables]], same: Sequence[Tables]
    ) -> Iterator[TableFactor]:
        """The costs of each choice at home where a use reads the very `same`, or all have some axis of it: what one of
        them gathers another could be cut from."""
        variables = (home, *(variable for variable, _ in reading))
        sizes = [len(costs), *(kept.shape[1] for _, kept in reading)]
        alone = [kept & (each | ~self.same(home, v)) for (v, kept), each in zip(reading, same, strict=True)]
        if self.problem.options.edges_apart:
            same = alone
        if math.prod(sizes) > _MOST_ROWS:
            self.of.shared = True
            for (variable, _), each in zip(reading, same, strict=True):
                yield _table((home, variable), np.where(each, np.floor(costs / len(reading))[:, None], 0.0))
            return
        any_same, any_alone, all_alone = (np.full(sizes, known) for known in (False, False, bool(reading)))
        for slot, (each, by_itself) in enumerate(zip(same, alone, strict=True), 1):
            any_same |= _spread(each, slot, len(sizes))
            any_alone |= _spread(by_itself, slot, len(sizes))
            all_alone &= _spread(by_itself, slot, len(sizes))
        paid = costs.reshape(-1, *[1] * len(reading))
        self.of.shared |= bool((any_alone & ~(any_same | all_alone) & (paid > 0.0)).any())
        yield _table(variables, np.where(any_same | all_alone, paid, 0.0))

    def returns(self, key: UseKey) -> bool:
        """Tells whether a use is the function's return."""
        return key[0] == (self.func.name, ())

    # ------------------------------------------------------------ results

    def given(self, node: ValueNode, variable: int) -> Iterator[TableFactor]:
        """The tables of a result. Where a movement makes it that cuts its strided dimensions from whole, or it is a
        parameter that is only returned, it costs nothing."""
        costs, axes = self.costs(node, variable, "to")
        if not costs.any():
            return
        apart = self.problem.options.edges_apart
        uses = [use for use in node.uses if use[1] != variable and not apart]
        self.of.shared |= bool(uses)
        homes = self.digits(node.home)
        table = self.beside(node, variable, costs, axes, [use for _, use, _ in uses])
        if table is None:
            return
        same = self.same(variable, node.home).reshape(len(costs), len(homes), *[1] * len(uses))
        if all(self.returns(key) for key, _, _ in uses):
            statement = self.statements.get(self.location(node))
            written = statement and isinstance(statement.operation, AllGather | AllToAll | ReduceScatter | Slice)
            if written or self.problem.defined.get(((self.func.name, ()), node.name)) is node:
                table = np.where(same, 0.0, table)
            elif node.made not in (-1, node.home) and not uses:
                made = self.domains[node.made]
                moved = self.still(axes, variable, node.made)
                for i, j in np.argwhere(axes.any(axis=1, keepdims=True) & ~moved).tolist():
                    moved[i, j] = not self.free(node, made[j], self.domains[variable][i], axes[i], last=True)
                free = same[:, :, None] & ~moved[:, None, :]
                if free.size <= _MOST_ROWS:
                    yield _table((variable, node.home, node.made), np.where(free, 0.0, table[:, :, None]))
                    return
                table = np.where(same, 0.0, table)
            elif node.made not in (-1, node.home):
                table = np.where(same, 0.0, table)
        yield _table((variable, node.home, *(use for _, use, _ in uses)), table)

    def location(self, node: ValueNode) -> object:
        """The statement that makes a value."""
        return next((at for (at, _), each in self.problem.defined.items() if each is node), None)

    def beside(self, node: ValueNode, variable: int, costs: Costs, axes: Tables, uses: Sequence[int]) -> Costs | None:
        """The least that a result costs by its own layout, that at home and those of other uses; None where there are
        too many of these.

        On the way to its own layout a result can go through another with whole dimensions, also where nothing else
        would: that costs the movements there and on, less what other uses can share of these.
        """
        at, homes, others = self.domains[variable], self.domains[node.home], [self.domains[use] for use in uses]
        sizes = (len(at), len(homes), *map(len, others))
        if math.prod(sizes) > _MOST_ROWS:
            return None
        table = np.broadcast_to(costs.reshape(-1, *[1] * (len(sizes) - 1)), sizes).copy()
        moving = self.of.moving(node.group.root())
        shared = np.zeros(sizes[1:])
        for slot, other in enumerate(others, 1):
            shared += _spread(moving[np.ix_(homes, other)], slot, len(sizes) - 1)
        digits = self.problem.coding.digits(node.group.root().codes)
        detours = self.of.detours.setdefault((node.home, variable), {}) if not uses else {}
        for i in np.flatnonzero(costs):
            own, direct = digits[at[i]], moving[homes, at[i]]
            whole = ~(np.isin(digits, own[axes[i]]) & (np.array(list(self.mesh.values())) > 1)).any(axis=1)
            for through in np.flatnonzero(
                whole & (moving[:, at[i]] - direct[np.isfinite(direct)].max(initial=0.0) < costs[i])
            ):
                on, there = moving[through, at[i]], moving[homes, through]
                with np.errstate(invalid="ignore"):
                    more = there + on - direct
                    wide = (-1, *[1] * len(uses))
                    least = np.maximum(np.maximum(0.0, on - direct).reshape(wide), more.reshape(wide) - shared)
                better = np.isfinite(least) & (least < table[i])
                if better.any() and self.free(node, int(through), int(at[i]), axes[i], last=True):
                    table[i] = np.where(better, least, table[i])
                    for h in np.flatnonzero(better) if not uses else ():
                        detours[int(homes[h]), int(at[i])] = int(through)
        return table


def _spread(pairs: NDArray[Any], slot: int, dims: int) -> NDArray[Any]:
    """An array over the first of so many variables and another one, to be broadcast over all."""
    shape = [1] * dims
    shape[0], shape[slot] = pairs.shape
    return pairs.reshape(shape)


def _table(variables: Iterable[int], costs: NDArray[np.float64]) -> TableFactor:
    """A table of all choices of some variables."""
    rows = np.indices(costs.shape).reshape(costs.ndim, -1).T.astype(np.int64)
    return TableFactor(tuple(variables), rows, costs.reshape(-1))
