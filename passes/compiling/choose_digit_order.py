"""`choose-digit-order`: in which order the axes' digits stand in the index of each dimension."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import permutations, product
from typing import ClassVar, cast

from shardwright.cost.resharding.planner import plan
from shardwright.ir.diagnostics import DiagnosticError, fault
from shardwright.ir.digit_orders import (
    gathered_or_cut,
    order_within,
    orders_in,
    split_extents,
    splitting_axes,
    strided_dims,
    typed_values,
)
from shardwright.ir.digits import Order, blocks_order, fitting_order, global_indices, order_size, radix
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Alias, Merge, Rename, Split, Topk
from shardwright.ir.program import DimInfo, Func, Let, Program
from shardwright.ir.strategies import digits_fit
from shardwright.ir.types import ON_DEVICE, DimSplits, OpenType, TensorType, ValueType
from shardwright.ir.walk import sites
from shardwright.passes.base import Pass

Score = tuple[Fraction | int, ...]

_MOST_DIGITS = 4
"""The most digits of a dimension under whose orders movements are planned; the orders of more are too many."""


TyingOperation = Rename | Split | Merge | Topk


class DigitConflictError(DiagnosticError):
    """No orders of digits let all renames, splits and merges keep every index on its chip."""

    statements: tuple[tuple[str, str, DimSplits], ...] = ()
    """The function, the result and the axes that split the tied dimensions of each statement that takes part."""


@dataclass(frozen=True)
class ChooseDigitOrder(Pass):
    """Chooses orders in which as many layouts at the program's edges as possible are contiguous blocks.

        dim E=64
        func f(a: BE_y, b: BE_xy) -> BE_y { ... }

    becomes

        dim E=64 order y x

    Edges are parameters, results, weights and state; a layout is contiguous where its axes are a prefix of the
    order. What `edge-blocks` would move for strided results and parameters, at every call, decides first, with what
    movements receive along a dimension that has no room for the digits of all its values; then how many results are
    contiguous, how many parameters, and how many of weights and state, which are laid out once, while they are loaded.
    Renames, splits and merges that pass a split need equal digits on both sides, which comes first. An order that the
    author pinned stays; of equally good ones the first in the order of the mesh is taken. Before `place` the order goes
    on with the axes that might still come to split the dimension, as far as its size divides. With `tied=true` only
    dimensions that such statements tie together get an order, and those without room for the digits of all their
    values: what the movements must keep to, while all others may get further digits.
    """

    name: ClassVar[str] = "choose-digit-order"
    tied: bool = False

    def run(self, program: Program) -> Program:
        return _Search(program).result(tied_only=self.tied)


@dataclass(frozen=True)
class _Constraint:
    """A rename, split or merge that passes a split, and the dimensions whose orders it ties together; of a rename of
    several dimensions one of them, `operation`."""

    func: Func
    statement: Let
    operation: TyingOperation
    operand: TensorType
    dims: tuple[str, ...]

    @property
    def splits(self) -> DimSplits:
        """The axes that split each of these dimensions."""
        result = self.statement.result.type
        assert isinstance(result, TensorType)
        return tuple((name, self.operand.split(name) or result.split(name)) for name in self.dims)


@dataclass(frozen=True)
class _Edge:
    """The type of a function's parameter or result, or of what is stored (no function).

    Along the `free` dimensions it crosses the function's edge in blocks whatever the order.
    """

    type: ValueType
    func: Func | None
    free: tuple[str, ...] = ()

    def axes(self, name: str) -> tuple[str, ...]:
        """The axes that split a dimension, () if the value has none of that name."""
        named = zip(self.type.dims, self.type.splits, strict=True)
        return next((axes or () for dim, axes in named if dim.name == name), ())

    def lacking_bytes(self, name: str, order: Order, mesh: Mesh) -> Fraction:
        """The bytes that a chip lacks of its blocks; nothing of a value in the host's memory, which stays as it is."""
        if not isinstance(self.type, TensorType) or self.type.placement != ON_DEVICE:
            return Fraction(0)
        axes = self.axes(name)
        fitting = fitting_order(order, axes, self.type.shape.size(name), mesh)
        return lacking_share(fitting, axes, mesh) * self.type.local_bytes(mesh)


def _edges(func: Func, named: Iterable[tuple[str, ValueType]]) -> Iterator[_Edge]:
    free = gathered_or_cut(func)
    yield from (_Edge(kind, func, free.get(name, ())) for name, kind in named)


def require_room(program: Program) -> None:
    """Raises a `DigitConflictError` where renames, splits and merges keep every index on its chip only in blocks, since
    the digits that they tie together do not fit into the extents at hand: movements between such blocks cost more than
    layouts are chosen by."""
    _Search(program, roomy=True).result(tied_only=True)


class _Search:
    """Depth-first over the dimensions' orders, best first, until all constraints hold."""

    def __init__(self, program: Program, *, roomy: bool = False) -> None:
        self.program = program
        self.roomy = roomy
        self.splits = splitting_axes(program)
        self.results = [e for func in program.funcs for e in _edges(func, zip(func.returns, func.results, strict=True))]
        self.params = [e for func in program.funcs for e in _edges(func, ((v.name, v.type) for v in func.params))]
        self.stored = [_Edge(value.type, None) for value in (*program.weights, *program.state)]
        self.constraints = list(_constraints(program))
        self.used = self.digits_used()
        self.open = any(isinstance(use.type, OpenType) for func in program.funcs for use in typed_values(program, func))

    def result(self, *, tied_only: bool) -> Program:
        chosen: dict[str, Order] = {}
        for group in _tied_groups(self.constraints):
            chosen.update(self.joint(group))
        dims: list[DimInfo] = []
        for dim in self.program.dims:
            wanted = dim.name in chosen or (self.used.get(dim.name) and (not tied_only or self.cramped(dim)))
            if dim.order is None and wanted:
                order = self.extended(dim, chosen.get(dim.name) or self.candidates(dim.name)[0])
                dims.append(replace(dim, order=order) if self.writable(dim.name, order) else dim)
            else:
                dims.append(dim)
        return replace(self.program, dims=tuple(dims))

    def cramped(self, dim: DimInfo) -> bool:
        """Tells whether the digits do not fit into all extents that are split: movements then depend on their order."""
        return dim.name in self.without_room

    @cached_property
    def without_room(self) -> set[str]:
        """The dimensions whose digits do not fit into all extents that are split."""
        return {
            key[0]
            for key, extents in split_extents(self.program).items()
            if any(extent % self.program.mesh.product(self.splits[key]) for extent in extents)
        }

    def digits_used(self) -> dict[str, set[str]]:
        """The axes in the order of each dimension."""
        used = {dim.name: self.digits(dim) for dim in self.program.dims}
        for constraint in self.constraints:
            if isinstance(constraint.operation, Topk):  # its blocks are stretches, also of what is not split
                for name in constraint.dims:
                    used[name] |= set(constraint.operation.by)
        return used

    def digits(self, dim: DimInfo) -> set[str]:
        """The axes in the order of a dimension: those that split it, also where a function gives it another size.

        Of the latter as many as fit into the dimension's own size; a function has the others for itself.
        """
        used = dict.fromkeys(self.splits.get((dim.name, None), ()))
        for (name, func), uses in self.splits.items():
            for axis in uses if name == dim.name and func is not None else ():
                if axis not in used and dim.size % order_size((*used, axis), self.program.mesh) == 0:
                    used[axis] = None
        return set(used)

    def writable(self, name: str, order: Order) -> bool:
        """Tells whether every digit divides the declared size, as in a program that is read. Where one does not, values
        of another extent alone are split by it; then no order can be written, and functions see that of the mesh."""
        size = self.program.dim(name).size
        return all(size % radix(digit, self.program.mesh) == 0 for digit in order)

    def extended(self, dim: DimInfo, order: Order) -> Order:
        """The order with the axes that layouts yet to be chosen may need."""
        if not self.open:
            return order
        for axis in self.program.mesh:
            if axis not in order and dim.size % order_size((*order, axis), self.program.mesh) == 0:
                order = (*order, axis)
        return order

    def score(self, name: str, order: Order) -> Score:
        """Less where a chip lacks more bytes of the blocks of parameters and results, then more for more results,
        parameters and stored values that are contiguous."""
        mesh = self.program.mesh
        contiguous = [0, 0, 0]
        lacking = Fraction(0)
        for i, edges in enumerate((self.results, self.params, self.stored)):
            for edge in edges:
                axes = edge.axes(name)
                if not axes:
                    continue
                seen = order if edge.func is None else self.order_in(edge.func, name, order)
                if name not in strided_dims(edge.type, {name: seen}, mesh):
                    contiguous[i] += 1
                elif edge.func is not None and name not in edge.free:
                    lacking += edge.lacking_bytes(name, seen, mesh)
        return (-lacking - self.moved_bytes(name, order), *contiguous)

    def moved_bytes(self, name: str, order: Order) -> int:
        """The bytes of the movements yet to be planned along a dimension without room for all digits; nothing of many
        digits."""
        if len(order) > _MOST_DIGITS or not self.cramped(self.program.dim(name)):
            return 0
        total = 0
        for func, source, target, often in self.movements:
            if source.split(name) or target.split(name):
                seen = {name: self.order_in(func, name, order)}
                with suppress(DiagnosticError):  # `insert-moves` says where there is no movement
                    total += often * plan(source, target, self.program.mesh, seen, pinned=(name,)).bytes_received
        return total

    def order_in(self, func: Func, name: str, order: Order) -> Order:
        """The order as the function sees it, which may give the dimension another size."""
        if name not in dict(func.overrides):
            return order
        return order_within(order, self.splits.get((name, func.name), ()), self.program.mesh)

    @cached_property
    def movements(self) -> list[tuple[Func, TensorType, TensorType, int]]:
        """The changes of layout on the device, and how often each is made in a call."""
        found: list[tuple[Func, TensorType, TensorType, int]] = []
        for site in (site for func in self.program.funcs for site in sites(self.program, func)):
            match site.statement:
                case Let(operation=Alias(), operands=(str() as name,)) as let:
                    kinds = site.scope.type_of(name), let.result.type
                    if all(isinstance(kind, TensorType) and kind.placement == ON_DEVICE for kind in kinds):
                        sizes = self.program.sizes(site.func)
                        often = math.prod(sizes[loop.dim] for loop in site.scope.loops)
                        found.append((site.func, *cast(tuple[TensorType, TensorType], kinds), often))
                case _:
                    pass
        return found

    def candidates(self, name: str) -> list[Order]:
        """Orders of the axes that split the dimension, the most contiguous first."""
        pinned = self.program.dim(name).order
        if pinned is not None:
            return [pinned]
        axes = self.program.mesh.sorted(self.used.get(name, ()))
        return sorted(permutations(axes), key=lambda order: self.score(name, order), reverse=True)

    def joint(self, names: list[str]) -> dict[str, Order]:
        """Orders for dimensions that constraints tie together; the best in all that satisfies every constraint."""
        best: tuple[Score, dict[str, Order]] | None = None
        for orders in self.meeting(names):
            score = _added(self.score(name, orders[name]) for name in names)
            if best is None or score > best[0]:
                best = (score, dict(orders))
        if best is None:
            raise _conflict(self.irreducible([c for c in self.constraints if set(c.dims) & set(names)]))
        return best[1]

    def meeting(self, names: list[str]) -> Iterator[dict[str, Order]]:
        """The orders for these dimensions that satisfy every constraint on them."""
        relevant = [c for c in self.constraints if set(c.dims) & set(names)]
        composite = {c.dims[0]: c for c in relevant if isinstance(c.operation, Split | Merge)}
        simple = [name for name in names if name not in composite]
        for orders in self.assignments(simple, list(composite.values())):
            if all(self.holds(c, orders) for c in relevant):
                yield orders

    def irreducible(self, constraints: list[_Constraint]) -> list[_Constraint]:
        """The constraints, of those that no orders meet, that already conflict where their statements' values alone are
        split, each of them needed for it; all of them where what other values split takes part."""
        least = constraints
        if self.with_only(least).satisfiable():
            return constraints
        for each in reversed(constraints):
            without = [other for other in least if other is not each]
            if not self.with_only(without).satisfiable():
                least = without
        return least

    def with_only(self, constraints: list[_Constraint]) -> _Search:
        """The search as if there were these constraints alone, and no other values than their statements'."""
        split: dict[tuple[str, str | None], set[str]] = {}
        for each in constraints:
            overridden = dict(each.func.overrides)
            for kind in (each.operand, each.statement.result.type):
                for dim, axes in zip(kind.dims, kind.splits, strict=True):
                    func = each.func.name if dim.name in overridden else None
                    split.setdefault((dim.name, func), set()).update(axes or ())
        made = copy(self)
        made.constraints = constraints
        made.splits = {
            key: {axis: uses[axis] for axis in uses if axis in split.get(key, ())} for key, uses in self.splits.items()
        }
        made.used = made.digits_used()
        return made

    def satisfiable(self) -> bool:
        """Tells whether there are orders that satisfy every constraint."""
        return all(any(True for _ in self.meeting(group)) for group in _tied_groups(self.constraints))

    def holds(self, constraint: _Constraint, orders: Mapping[str, Order]) -> bool:
        func = constraint.func
        seen = {name: self.order_in(func, name, order) for name, order in orders.items() if self.writable(name, order)}
        result = constraint.statement.result.type
        assert isinstance(result, TensorType)
        known = {**orders_in(self.program, func, self.splits), **seen}
        operation = constraint.operation
        if isinstance(operation, Topk):
            return all(known[dim][: len(operation.by)] == operation.by for dim in constraint.dims)
        if self.roomy:
            split = (
                (kind, name) for kind in (constraint.operand, result) for name in constraint.dims if kind.split(name)
            )
            if any(kind.shape.size(name) % order_size(known[name], self.program.mesh) for kind, name in split):
                return False
        return digits_fit(operation, constraint.operand, result, known, self.program.mesh)

    def assignments(self, simple: list[str], composite: list[_Constraint]) -> Iterator[dict[str, Order]]:
        """Orders for the simple dimensions, with what follows from them for those that split into several."""

        def descend(rest: list[str], orders: dict[str, Order]) -> Iterator[dict[str, Order]]:
            if rest:
                for order in self.candidates(rest[0]):
                    yield from descend(rest[1:], {**orders, rest[0]: order})
                return
            yield from self.completed(orders, composite)

        yield from descend(simple, {})

    def completed(self, orders: dict[str, Order], composite: list[_Constraint]) -> Iterator[dict[str, Order]]:
        if not composite:
            yield orders
            return
        constraint, *others = composite
        name, *parts = constraint.dims
        for order in self.composed(constraint, name, parts, orders):
            yield from self.completed({**orders, name: order}, others)

    def composed(
        self, constraint: _Constraint, name: str, parts: list[str], orders: Mapping[str, Order]
    ) -> Iterator[Order]:
        """The parts' digits one after the other.

        An axis that splits the whole is a digit of one part: of one whose order has it, or of any that has room.
        Digits of the parts that do not split the whole are numbers in its order.
        """
        pinned = self.program.dim(name).order
        if pinned is not None:
            yield pinned
            return
        mesh = self.program.mesh
        sizes = self.program.sizes(constraint.func)
        own = mesh.sorted(self.used.get(name, ()))
        having = [[i for i, part in enumerate(parts) if axis in orders.get(part, ())] for axis in own]
        for homes in product(*(choice or range(len(parts)) for choice in having)):
            digits: list[str | int] = []
            fits = True
            for i, part in enumerate(parts):
                mine = [axis for axis, home in zip(own, homes, strict=True) if home == i]
                order = (*orders.get(part, ()), *(axis for axis in mine if axis not in orders.get(part, ())))
                rest, remainder = divmod(sizes[part], order_size(order, mesh))
                fits &= remainder == 0
                digits.extend(digit if digit in mine else radix(digit, mesh) for digit in order)
                digits.append(rest)
            order = _normal(digits)
            # The whole may have another extent than declared, and a function may give it another size.
            if fits and math.gcd(sizes[name], self.program.dim(name).size) % order_size(order, mesh) == 0:
                yield order


def _tied_groups(constraints: Iterable[_Constraint]) -> list[list[str]]:
    """The dimensions whose orders constraints tie together."""
    tied: list[set[str]] = []
    for constraint in constraints:
        group = set(constraint.dims)
        for other in [g for g in tied if g & group]:
            group |= other
            tied.remove(other)
        tied.append(group)
    return [sorted(group) for group in tied]


def _added(scores: Iterable[Score]) -> Score:
    return tuple(sum(column) for column in zip(*scores, strict=True))


@lru_cache(maxsize=1 << 12)
def lacking_share(order: Order, axes: tuple[str, ...], mesh: Mesh) -> Fraction:
    """The part of its contiguous block that a chip does not hold, when these axes split a dimension by its digits; of
    the chip that lacks most."""
    units = order_size(order, mesh)
    blocks = blocks_order(order, axes, mesh)
    held = (
        [set(global_indices(units, digits, axes, chip, mesh).tolist()) for digits in (order, blocks)]
        for chip in Mesh(tuple((axis, mesh[axis]) for axis in axes)).chips()
    )
    return max(Fraction(len(block - mine), len(block)) for mine, block in held)


def _normal(digits: list[str | int]) -> Order:
    """Neighbouring numbers multiplied, ones and the remainder left out."""
    made: list[str | int] = []
    for digit in digits:
        if isinstance(digit, int) and made and isinstance(made[-1], int):
            made[-1] *= digit
        elif digit != 1:
            made.append(digit)
    return tuple(made[:-1] if made and isinstance(made[-1], int) else made)


def _conflict(constraints: list[_Constraint]) -> DigitConflictError:
    first = constraints[0]
    told = fault(
        "digits",
        f"no order of digits lets {first.statement.operation.keyword} keep every index on its chip:"
        f" {first.operand} and {first.statement.result.type}",
        first.statement.span,
        f"leave one of {', '.join(first.dims)} whole, or gather before it",
    )
    conflict = DigitConflictError(told.diagnostics)
    conflict.statements = tuple((c.func.name, c.statement.result.name, c.splits) for c in constraints)
    return conflict


def _constraints(program: Program) -> Iterator[_Constraint]:
    for site in (site for func in program.funcs for site in sites(program, func)):
        match site.statement:
            case Let(operation=Rename() | Split() | Merge() | Topk() as operation, operands=(str(name), *_)) as let:
                operand = site.scope.type_of(name)
                if isinstance(operand, TensorType) and isinstance(let.result.type, TensorType):
                    ties = _ties(operation, operand)
                    yield from (_Constraint(site.func, let, each, operand, dims) for each, dims in ties)
            case _:
                pass


def _ties(operation: TyingOperation, operand: TensorType) -> Iterator[tuple[TyingOperation, tuple[str, ...]]]:
    """The operation, of a rename each pair by itself, where a split passes it, and the dimensions whose orders must
    agree, the composite one first."""
    match operation:
        case Rename():
            yield from ((Rename((pair,)), pair) for pair in operation.pairs if operand.split(pair[0]))
        case Split() if operand.split(operation.source):
            yield operation, (operation.source, *operation.parts)
        case Merge() if any(map(operand.split, operation.parts)):
            yield operation, (operation.target, *operation.parts)
        case Topk() if operand.split(operation.dim):
            yield operation, tuple(dict.fromkeys((operation.dim, operation.target)))
        case _:
            pass
