"""The costs of strided layouts at the edges of functions: what `edge-blocks` would move, by layouts.

How much that is depends on the order of each dimension's digits, which is chosen after the layouts. Where the first
digits of an order are given (`PlacementOptions.orders`), a layout costs what it does under the best order that begins
so; nothing where a dimension has none given. So a problem with fewer digits given is a bound of those with more.

What renames want of the orders is left to the pass that chooses them. Dimensions that are split or merged, whose orders
have digits of their parts, and those to which a function gives another size, cost nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.factors import TableFactor
from shardwright.cost.choosing.layout_problem import LayoutProblem, LoopSlice, StrategyTable, UseKey, ValueNode
from shardwright.cost.movements.movement import Collective, collective_of
from shardwright.cost.resharding.planner import plan
from shardwright.ir.digit_orders import strided_dims
from shardwright.ir.digits import Order
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import AllGather, AllToAll, Convert, Merge, Permute, ReduceScatter, Slice, Split, Take
from shardwright.ir.program import DimInfo, Func, Let
from shardwright.ir.types import ON_DEVICE, TensorType

_MOST_ROWS = 1 << 16
"""Of the table of an edge: with more, each use of the value has a table, with its share of the cost."""

Price = Callable[[Collective], float]
"""What one execution costs."""

Tables = NDArray[np.bool_]


def edge_tables(
    problem: LayoutProblem, domains: Sequence[NDArray[np.int64]], price: Price
) -> Iterator[tuple[float, TableFactor]]:
    """The tables of what parameters and results cost at the edges, by the layouts that they have inside, with how often
    that is paid; none where no order is given."""
    if problem.options.orders:
        for func in problem.program.funcs:
            yield from _FuncEdges(problem, domains, price, func).tables()


def orders_from(dim: DimInfo, first: Order, mesh: Mesh) -> tuple[Order, ...]:
    """The orders of a dimension's digits that begin so: all axes of more than one chip, or what the author wrote."""
    if dim.order is not None:
        return (tuple(digit for digit in dim.order if isinstance(digit, int) or digit in mesh),)
    known = tuple(digit for digit in first if digit in mesh)
    return tuple((*known, *rest) for rest in permutations(a for a, n in mesh.items() if n > 1 and a not in known))


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

    def __init__(self, problem: LayoutProblem, domains: Sequence[NDArray[np.int64]], price: Price, func: Func) -> None:
        self.problem, self.domains, self.price, self.func = problem, domains, price, func
        self.mesh = problem.program.mesh
        left = set(dict(func.overrides))
        for each in problem.program.funcs:
            for statement in (s for s, _ in each.walk() if isinstance(s, Let)):
                match statement.operation:
                    case Split(source=name) | Merge(target=name):
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
        """What each axis does in each choice of a variable: [choices, axes]."""
        codes = self.problem.variables[variable].group.root().codes[self.domains[variable]]
        return self.problem.coding.digits(codes)

    def costs(self, node: ValueNode, variable: int, side: str) -> tuple[NDArray[np.float64], Tables]:
        """What each choice costs at the edge, and the axes that split its strided dimensions: [choices, axes]."""
        digits, coding = self.digits(variable), self.problem.coding
        costs, axes = np.zeros(len(digits)), np.zeros(digits.shape, np.bool_)
        placement = node.type.placement or ON_DEVICE
        if placement != ON_DEVICE or node.type.in_flight:
            return costs, axes
        begun = tuple((name, self.begun[name]) for name in node.shape.names if name in self.begun)
        wide = np.array([size > 1 for size in self.mesh.values()])
        for at, code in enumerate(node.group.root().codes[self.domains[variable]] if begun else ()):
            kind = coding.decode(int(code), node.shape, placement)
            strided, exchanges = _exchanges(kind, begun, self.mesh, side)
            if strided:
                costs[at] = min(map(self.price, exchanges), default=0.0)
                axes[at] = np.isin(digits[at], [coding.number_of_dim(name) for name in strided]) & wide
        return costs, axes

    def kept(self, node: ValueNode, axes: Tables, one: int, other: int, *, alone: bool, last: bool = False) -> Tables:
        """Tells whether a movement between two layouts takes or leaves strided dimensions of the first in digits:
        [choices, choices]. `axes` are those that split them.

        An axis that stays is not moved; other dimensions are whole after the first step, or before the `last`. Which
        steps there are is known where the movement stands `alone`, else it may share some with others.
        """
        a, b = self.digits(one), self.digits(other)
        kept = ((a[:, None, :] == b[None, :, :]) & axes[:, None, :]).any(axis=2)
        chips = self.mesh.n_chips
        if alone and all(dim.size % chips == 0 for dim in node.shape.dims):
            coding, placement = self.problem.coding, node.type.placement or ON_DEVICE
            codes = [node.group.root().codes[self.domains[variable]].tolist() for variable in (one, other)]
            ones, others = ([coding.decode(code, node.shape, placement) for code in each] for each in codes)
            for i, j in np.argwhere(axes.any(axis=1)[:, None] & ~kept).tolist():
                pair = (others[j], ones[i]) if last else (ones[i], others[j])
                names = {coding.state(int(a[i, axis])) for axis in np.flatnonzero(axes[i])}
                if pair[1].partial is None:
                    kept[i, j] = not _whole_between(*pair, frozenset(map(str, names)), self.mesh, last)
        return kept

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
            reads = self.kept(node, axes, node.home, variable, alone=len(uses) == 1 and not rigid)
            if returned:
                reads &= ~self.same(node.home, variable)
            reading.append((variable, reads))
        yield from self.any_of(node.home, costs, reading)

    def uses(self, node: ValueNode) -> Iterator[tuple[UseKey, int, bool]]:
        """The uses of a value, and of the slices that loops take of it."""
        yield from node.uses
        for view in self.views.get(node.home, ()) if node.home >= 0 else ():
            yield from self.uses(view)

    def any_of(
        self, home: int, costs: NDArray[np.float64], reading: Sequence[tuple[int, Tables]]
    ) -> Iterator[TableFactor]:
        """The costs of each choice at home where any of these uses reads it in digits."""
        sizes = [len(costs), *(reads.shape[1] for _, reads in reading)]
        if math.prod(sizes) > _MOST_ROWS:
            for variable, reads in reading:
                yield _table((home, variable), np.where(reads, np.floor(costs / len(reading))[:, None], 0.0))
            return
        reads_any = np.zeros(sizes, np.bool_)
        for slot, (_, reads) in enumerate(reading, 1):
            shape = [1] * len(sizes)
            shape[0], shape[slot] = reads.shape
            reads_any |= reads.reshape(shape)
        shape = (len(costs), *[1] * len(reading))
        yield _table((home, *(variable for variable, _ in reading)), np.where(reads_any, costs.reshape(shape), 0.0))

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
        alone = len(node.uses) == 1
        home = self.kept(node, axes, variable, node.home, alone=alone, last=True)
        same = self.same(variable, node.home)
        if node.made < 0 and self.problem.defined.get(((self.func.name, ()), node.name)) is node:
            if all(self.returns(key) for key, _, _ in self.uses(node)):
                home &= ~same
        elif node.made == node.home:
            location = next((at for (at, name), each in self.problem.defined.items() if each is node), None)
            statement = self.statements.get(location)
            if statement is not None and isinstance(statement.operation, AllGather | AllToAll | ReduceScatter | Slice):
                home &= ~same
        elif node.made >= 0 and all(self.returns(key) for key, _, _ in node.uses):
            moved = self.kept(node, axes, variable, node.made, alone=True, last=True)
            sizes = (len(costs), len(same[0]), len(moved[0]))
            if math.prod(sizes) <= _MOST_ROWS:
                charged = np.where(same[:, :, None], moved[:, None, :], home[:, :, None])
                yield _table((variable, node.home, node.made), np.where(charged, costs[:, None, None], 0.0))
                return
            home &= ~same
        yield _table((variable, node.home), np.where(home, costs[:, None], 0.0))


def _table(variables: Iterable[int], costs: NDArray[np.float64]) -> TableFactor:
    """A table of all choices of some variables."""
    rows = np.indices(costs.shape).reshape(costs.ndim, -1).T.astype(np.int64)
    return TableFactor(tuple(variables), rows, costs.reshape(-1))
