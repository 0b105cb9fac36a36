"""The verifier: whether a program is well typed, at the surface level or at the explicit one."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from shardwright.ir.diagnostics import Diagnostic, DiagnosticError, Note, fault
from shardwright.ir.digit_orders import orders_in, splitting_axes
from shardwright.ir.digits import Order
from shardwright.ir.elaborate import placed
from shardwright.ir.operation import Arg, Context, Number, Operand, misuse
from shardwright.ir.ops import Concat, Contract, Elementwise, Take
from shardwright.ir.program import Func, Let, Loop, Program, Scope, SetState, Statement, Value
from shardwright.ir.strategies import check_strategy, digits_fit
from shardwright.ir.types import OpenType, TensorType, ValueType


class Level(Enum):
    """Surface programs may leave movement and layouts implicit; in explicit ones every operation matches its table."""

    SURFACE = "surface"
    EXPLICIT = "explicit"


def verify(program: Program, level: Level) -> None:
    """Raises a `DiagnosticError` with every fault of a program at this level."""
    check_divisibility(program)
    diagnostics: list[Diagnostic] = []
    for func in program.funcs:
        orders = orders_in(program, func)
        checker = _Checker(program, func, level, orders)
        checker.block(func.body, Scope.of(program, func))
        diagnostics.extend(checker.diagnostics)
    if diagnostics:
        raise DiagnosticError(diagnostics)


def check_divisibility(program: Program) -> None:
    """Raises where the axes that split a dimension anywhere do not divide its size together, naming two uses."""
    for (name, func), uses in splitting_axes(program).items():
        dim = program.dim(name)
        size = dim.size if func is None else dict(program.func(func).overrides)[name]
        if dim.order is not None:
            for axis, use in uses.items():
                if axis not in dim.order:
                    raise fault(
                        "order",
                        f"{use.value}: {use.type} splits {name} over {axis}, and the order of {name} is"
                        f" {' '.join(map(str, dim.order)) or 'empty'}",
                        use.span,
                        Note("the order is given here", dim.span),
                        f"add {axis} to it",
                    )
        product = 1
        before: list[str] = []
        for axis, use in uses.items():
            product *= program.mesh[axis]
            if size % product:
                first = uses[before[0]] if before else use
                axes = "*".join([*before, axis])
                raise fault(
                    "not-divisible",
                    f"{name}={size} is not divisible by {axes}={product}: each axis that splits"
                    f" {name} anywhere is a digit of its index",
                    use.span,
                    Note(f"{first.value}: {first.type} splits {name} over {'*'.join(before) or axis}", first.span),
                    Note(f"{use.value}: {use.type} splits it over {axis}", use.span),
                    f"split {name} over the same axes in both, or make its size a multiple of {product}",
                )
            before.append(axis)


class _Checker:
    def __init__(self, program: Program, func: Func, level: Level, orders: dict[str, Order]) -> None:
        self.program = program
        self.func = func
        self.level = level
        self.orders = orders
        self.sizes = program.sizes(func)
        self.diagnostics: list[Diagnostic] = []

    def block(self, body: tuple[Statement, ...], scope: Scope) -> None:
        for statement in body:
            try:
                with placed(statement.span):
                    self.statement(statement, scope)
            except DiagnosticError as error:
                self.diagnostics.extend(error.diagnostics)
            if isinstance(statement, Let | Loop):  # also after a fault, which hides none of those that follow
                for value in statement.results:
                    scope.define(value)
        if not scope.loops and self.level is Level.EXPLICIT:
            for name, kind in zip(self.func.returns, self.func.results, strict=True):
                try:
                    self.same(scope.type_of(name), kind, f"{self.func.name} returns {name}", self.func)
                except DiagnosticError as error:
                    self.diagnostics.extend(error.diagnostics)

    def statement(self, statement: Statement, scope: Scope) -> None:
        match statement:
            case Let():
                self.let(statement, scope)
            case SetState():
                if self.level is Level.EXPLICIT:
                    self.same(
                        scope.type_of(statement.operand),
                        scope.type_of(statement.state),
                        f"set {statement.state}",
                        statement,
                    )
            case Loop():
                inside = scope.inside(statement)
                self.block(statement.body, inside)
                if self.level is Level.EXPLICIT:
                    for carry, following in zip(statement.carries, statement.following, strict=True):
                        kind = carry.value.type
                        self.same(
                            scope.type_of(carry.initial),
                            kind,
                            f"{carry.value.name} is carried, and {carry.initial}",
                            statement,
                        )
                        self.same(
                            inside.type_of(following),
                            kind,
                            f"{carry.value.name} is carried, and next gives {following}",
                            statement,
                        )

    def same(self, found: ValueType, wanted: ValueType, what: str, where: Statement | Func) -> None:
        if found != wanted:
            raise fault(
                "movement-missing",
                f"{what}: {found}, where {wanted} is needed; in an explicit program the"
                " movement between them is a statement",
                where.span,
            )

    def let(self, statement: Let, scope: Scope) -> None:
        self.shapes(statement, scope)
        if self.level is Level.SURFACE:
            return
        kinds = [self.concrete(operand, scope) for operand in statement.operands]
        results = [self.known(value) for value in statement.results]
        check_strategy(statement.operation, statement.operands, kinds, results, self.program.mesh)
        if kinds and kinds[0] is not None:
            self.digits(statement, kinds[0], results[0])

    def shapes(self, statement: Let, scope: Scope) -> None:
        """What inference gives is what stands there; passes that build statements by hand are caught here."""
        declared = statement.result.shape
        keeps = isinstance(statement.operation, Contract | Elementwise)
        args = [
            Arg(str(o), None, o) if isinstance(o, Number) else Arg(o, scope.type_of(o).shape)
            for o in statement.operands
        ]
        (found,) = statement.operation.infer(args, Context(self.sizes, declared if keeps else None))
        if found != declared:
            raise fault(
                "wrong-dimensions", f"{statement.result.name}: {declared}, but the value is {found}", statement.span
            )
        if isinstance(statement.operation, Take | Concat):
            self.blocks(statement.operation, args)

    def blocks(self, operation: Take | Concat, args: Sequence[Arg]) -> None:
        """Taking and concatenating block by block wants equal blocks."""
        n = self.program.mesh.product(operation.by)
        bounds = [arg.tensor.size(operation.dim) for arg in args]
        if isinstance(operation, Take):
            bounds += [operation.start, operation.stop or 0]
        for bound in bounds:
            if bound % n:
                raise misuse(
                    "not-divisible",
                    f"{operation.keyword}: {bound} elements of {operation.dim} are not divisible"
                    f" by the {n} blocks of {' '.join(operation.by)}",
                )

    def concrete(self, operand: Operand, scope: Scope) -> TensorType | None:
        if isinstance(operand, Number):
            return None
        kind = scope.type_of(operand)
        if isinstance(kind, OpenType):
            raise fault("open-type", f"{operand}: {kind} has holes, and an explicit program has none")
        return kind

    def known(self, value: Value) -> TensorType:
        if isinstance(value.type, OpenType):
            raise fault(
                "open-type", f"{value.name}: {value.type} has holes, and an explicit program has none", value.span
            )
        return value.type

    def digits(self, statement: Let, operand: TensorType, result: TensorType) -> None:
        mesh = self.program.mesh
        if not digits_fit(statement.operation, operand, result, self.orders, mesh):
            raise fault(
                "digits",
                f"{statement.operation.keyword}: the digits of {operand} and of {result} differ, so"
                " indices would change chips",
                statement.span,
                "gather first, or pin orders that agree: dim ... order ...",
            )
        if isinstance(statement.operation, Take | Concat) and operand.split(statement.operation.dim):
            by, dim = statement.operation.by, statement.operation.dim
            if self.orders.get(dim, ())[: len(by)] != by:
                raise fault(
                    "digits",
                    f"{statement.operation.keyword} by {' '.join(by)}: these are not the outermost digits of {dim}",
                    statement.span,
                    f"pin its order: dim {dim}=... order {' '.join(by)}",
                )
