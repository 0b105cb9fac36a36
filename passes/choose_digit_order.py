"""`choose-digit-order`: in which order the axes' digits stand in the index of each dimension."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import ClassVar

from shardwright.ir.diagnostics import DiagnosticError, fault
from shardwright.ir.digit_orders import order_within, orders_in, splitting_axes, typed_values
from shardwright.ir.digits import Order, is_contiguous, order_size, radix
from shardwright.ir.ops import Concat, Merge, Rename, Split, Take, Topk
from shardwright.ir.program import DimInfo, Func, Let, Program
from shardwright.ir.strategies import digits_fit
from shardwright.ir.types import OpenType, TensorType, ValueType
from shardwright.ir.walk import sites
from shardwright.passes.base import Pass


class DigitConflictError(DiagnosticError):
    """No orders of digits let all renames, splits and merges keep every index on its chip."""

    statements: tuple[tuple[str, str], ...] = ()
    """The function and the result of each statement that takes part."""


@dataclass(frozen=True)
class ChooseDigitOrder(Pass):
    """Chooses orders in which as many layouts at the program's edges as possible are contiguous blocks.

        dim E=64
        func f(a: BE_y, b: BE_xy) -> BE_y { ... }

    becomes

        dim E=64 order y x

    Edges are parameters, results, weights and state; a layout is contiguous where its axes are a prefix of the
    order. Parameters and results come before weights and state: these are laid out once, while they are loaded,
    whereas a strided result is gathered by whoever wants one array of it, at every call. Renames, splits and merges
    that pass a split need equal digits on both sides, which comes first. An order that the author pinned stays; of
    equally good ones the first in the order of the mesh is taken. Before `place` the order goes on with the axes that
    might still come to split the dimension, as far as its size divides. With `tied=true` only dimensions that such
    statements tie together get an order: what the movements must keep to, while all others still have room for digits
    of their own.
    """

    name: ClassVar[str] = "choose-digit-order"
    tied: bool = False

    def run(self, program: Program) -> Program:
        return _Search(program).result(tied_only=self.tied)


@dataclass(frozen=True)
class _Constraint:
    """A rename, split or merge that passes a split, and the dimensions whose orders it ties together."""

    func: Func
    statement: Let
    operand: TensorType
    dims: tuple[str, ...]


class _Search:
    """Depth-first over the dimensions' orders, best first, until all constraints hold."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.splits = splitting_axes(program)
        self.used = {dim.name: self.digits(dim) for dim in program.dims}
        self.stored = list(_edges([value.type for value in (*program.weights, *program.state)]))
        self.calls = list(_edges([kind for func in program.funcs for kind in _called_with(func)]))
        self.constraints = list(_constraints(program))
        for constraint in self.constraints:
            if isinstance(constraint.statement.operation, Topk):  # its blocks are stretches, also of what is not split
                for name in constraint.dims:
                    self.used[name] |= set(constraint.statement.operation.by)
        self.open = any(isinstance(use.type, OpenType) for func in program.funcs for use in typed_values(program, func))

    def result(self, *, tied_only: bool) -> Program:
        tied: list[set[str]] = []
        for constraint in self.constraints:
            group = set(constraint.dims)
            for other in [g for g in tied if g & group]:
                group |= other
                tied.remove(other)
            tied.append(group)
        chosen: dict[str, Order] = {}
        for group in tied:
            chosen.update(self.joint(sorted(group)))
        dims = tuple(
            dim
            if dim.order is not None
            else replace(dim, order=self.extended(dim, chosen.get(dim.name) or self.candidates(dim.name)[0]))
            if dim.name in chosen or (self.used.get(dim.name) and not tied_only)
            else dim
            for dim in self.program.dims
        )
        return replace(self.program, dims=dims)

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

    def extended(self, dim: DimInfo, order: Order) -> Order:
        """The order with the axes that layouts yet to be chosen may need."""
        if not self.open:
            return order
        for axis in self.program.mesh:
            if axis not in order and dim.size % order_size((*order, axis), self.program.mesh) == 0:
                order = (*order, axis)
        return order

    def score(self, name: str, order: Order) -> tuple[int, int]:
        """How many parameters and results are contiguous, and how much of what is stored."""
        mesh = self.program.mesh
        calls, stored = (
            sum(is_contiguous(order, axes, mesh) for dim, axes in edges if dim == name)
            for edges in (self.calls, self.stored)
        )
        return calls, stored

    def candidates(self, name: str) -> list[Order]:
        """Orders of the axes that split the dimension, the most contiguous first."""
        pinned = self.program.dim(name).order
        if pinned is not None:
            return [pinned]
        axes = self.program.mesh.sorted(self.used.get(name, ()))
        return sorted(permutations(axes), key=lambda order: self.score(name, order), reverse=True)

    def joint(self, names: list[str]) -> dict[str, Order]:
        """Orders for dimensions that constraints tie together; the best in all that satisfies every constraint."""
        relevant = [c for c in self.constraints if set(c.dims) & set(names)]
        composite = {c.dims[0]: c for c in relevant if isinstance(c.statement.operation, Split | Merge)}
        simple = [name for name in names if name not in composite]
        best: tuple[tuple[int, int], dict[str, Order]] | None = None
        for orders in self.assignments(simple, list(composite.values())):
            if all(self.holds(c, orders) for c in relevant):
                calls, stored = zip(*(self.score(name, orders[name]) for name in names), strict=True)
                score = (sum(calls), sum(stored))
                if best is None or score > best[0]:
                    best = (score, dict(orders))
        if best is None:
            raise _conflict(relevant)
        return best[1]

    def holds(self, constraint: _Constraint, orders: Mapping[str, Order]) -> bool:
        func = constraint.func
        overridden = {name for name, _ in func.overrides}
        seen = {
            name: order_within(order, self.splits.get((name, func.name), ()), self.program.mesh)
            if name in overridden
            else order
            for name, order in orders.items()
        }
        result = constraint.statement.result.type
        assert isinstance(result, TensorType)
        known = {**orders_in(self.program, func), **seen}
        operation = constraint.statement.operation
        if isinstance(operation, Topk):
            return all(known[dim][: len(operation.by)] == operation.by for dim in constraint.dims)
        return digits_fit(constraint.statement.operation, constraint.operand, result, known, self.program.mesh)

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
            if fits:
                yield _normal(digits)


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
    conflict.statements = tuple((c.func.name, c.statement.result.name) for c in constraints)
    return conflict


def _called_with(func: Func) -> Iterator[ValueType]:
    yield from (value.type for value in func.params)
    yield from func.results


def _edges(kinds: Sequence[ValueType]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Dimensions with the axes that split them, once for each value."""
    for kind in kinds:
        for dim, axes in zip(kind.dims, kind.splits, strict=True):
            if axes:
                yield dim.name, axes


def _constraints(program: Program) -> Iterator[_Constraint]:
    for site in (site for func in program.funcs for site in sites(program, func)):
        match site.statement:
            case Let(operation=Rename() | Split() | Merge() | Take() | Concat() | Topk() as operation) as statement:
                name = statement.operands[0]
                operand = site.scope.type_of(name) if isinstance(name, str) else None
                if isinstance(operand, TensorType):
                    tied = _tied_dims(operation, operand)
                    if tied:
                        yield _Constraint(site.func, statement, operand, tied)
            case _:
                pass


def _tied_dims(operation: Rename | Split | Merge | Take | Concat | Topk, operand: TensorType) -> tuple[str, ...]:
    """The dimensions whose orders must agree, the composite one first; none if no split passes."""
    match operation:
        case Rename():
            return next(((old, new) for old, new in operation.pairs if operand.split(old)), ())
        case Split():
            return (operation.source, *operation.parts) if operand.split(operation.source) else ()
        case Merge():
            return (operation.target, *operation.parts) if any(map(operand.split, operation.parts)) else ()
        case Topk():
            return tuple(dict.fromkeys((operation.dim, operation.target))) if operand.split(operation.dim) else ()
        case Take() | Concat():
            return ()
