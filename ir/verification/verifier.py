"""The verifier: whether a program is well typed, at the surface level or at the explicit one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from shardwright.ir.diagnostics import Diagnostic, DiagnosticError, Fix, Note, Span, fault, placed
from shardwright.ir.digit_orders import SplittingAxes, Use, orders_in, splitting_axes, typed_values
from shardwright.ir.digits import Order, common_order, fitting_order
from shardwright.ir.operation import Arg, Context, Number, misuse
from shardwright.ir.ops import (
    Alias,
    Attend,
    Concat,
    Contract,
    Elementwise,
    Grouped,
    Movement,
    Permute,
    Roll,
    Take,
    Topk,
)
from shardwright.ir.program import Func, Let, Loop, Program, Scope, SetState, Statement
from shardwright.ir.strategies import (
    check_strategy,
    differing_digits,
    movements_between,
    relayout_text,
    written_movement,
)
from shardwright.ir.types import ON_DEVICE, ON_HOST, OpenType, TensorType, ValueType
from shardwright.ir.verification.demands import check_divides
from shardwright.ir.verification.extents import check_extents
from shardwright.ir.verification.lifetimes import check_lifetimes
from shardwright.ir.walk import reads


class Level(Enum):
    """Surface programs may leave movement and layouts implicit; in explicit ones every operation matches its table."""

    SURFACE = "surface"
    EXPLICIT = "explicit"


def verify(program: Program, level: Level) -> None:
    """Raises a `DiagnosticError` with every fault of a program at this level."""
    used = splitting_axes(program)
    check_divisibility(program, used)
    diagnostics: list[Diagnostic] = []
    if level is Level.EXPLICIT:
        for value in (*program.weights, *program.state):
            diagnostics.extend(_holes(value.name, value.type, value.span))
    for func in program.funcs:
        orders = orders_in(program, func, used)
        checker = _Checker(program, func, level, orders)
        checker.block(func.body, Scope.of(program, func))
        checker.blocks_at_edges()
        diagnostics.extend(checker.diagnostics)
        if not checker.diagnostics:
            diagnostics.extend(check_extents(program, func))
            diagnostics.extend(check_lifetimes(program, func))
    if diagnostics:
        raise DiagnosticError(diagnostics)


def check_divisibility(program: Program, used: SplittingAxes | None = None) -> None:
    """Raises where chips do not divide an extent that a type splits over them, or its order lacks one of the axes."""
    diagnostics: list[Diagnostic] = []
    for (name, func), uses in (used or splitting_axes(program)).items():
        order = program.dim(name).order if func is None else None  # a function's own size has digits of its own
        for axis, use in uses.items():
            if order is not None and axis not in order:
                written = " ".join(map(str, order))
                diagnostics += fault(
                    "order",
                    f"{use.value}: {use.type} splits {name} over {axis}, and the order of {name} is"
                    f" {written or 'empty'}",
                    use.span,
                    Note("the order is given here", program.dim(name).span),
                    f"add {axis} to it: dim {name}={program.dim(name).size} order {written} {axis}".replace("  ", " "),
                ).diagnostics
    declared = {dim.name: dim.size for dim in program.dims}
    indivisible: dict[Use, tuple[Diagnostic, ...]] = {}  # weights and state are values of every function
    for use in (use for func in program.funcs for use in typed_values(program, func)):
        try:
            check_divides(use.type, use.value, program.mesh, declared, use.span)
        except DiagnosticError as error:
            indivisible[use] = tuple(error.diagnostics)
    diagnostics += [diagnostic for found in indivisible.values() for diagnostic in found]
    if diagnostics:
        raise DiagnosticError(diagnostics)


def has_holes(program: Program) -> bool:
    """Tells whether any type of the program is open."""
    return any(isinstance(use.type, OpenType) for func in program.funcs for use in typed_values(program, func))


def _holes(name: str, kind: ValueType, span: Span) -> tuple[Diagnostic, ...]:
    """The fault of a type with holes in an explicit program, if it has any."""
    if not isinstance(kind, OpenType):
        return ()
    return fault(
        "open-type",
        f"{name}: {kind} has holes, and an explicit program has none",
        span,
        "write the type, or let place choose it",
    ).diagnostics


class _Checker:
    def __init__(self, program: Program, func: Func, level: Level, orders: dict[str, Order]) -> None:
        self.program = program
        self.func = func
        self.level = level
        self.orders = orders
        self.sizes = program.sizes(func)
        self.diagnostics: list[Diagnostic] = []

    def block(self, body: tuple[Statement, ...], scope: Scope) -> None:
        if not scope.loops and self.level is Level.EXPLICIT:
            for value in self.func.params:
                self.diagnostics.extend(_holes(value.name, value.type, value.span))
            for kind in self.func.results:
                self.diagnostics.extend(_holes(f"the result of {self.func.name}", kind, self.func.span))
        for statement in body:
            try:
                with placed(statement.span):
                    self.statement(statement, scope)
            except DiagnosticError as error:
                self.diagnostics.extend(error.diagnostics)
            # Also after a fault, which hides none of those that follow.
            scope.define(*statement.results)
        if not scope.loops and self.level is Level.EXPLICIT:
            for name, kind in zip(self.func.returns, self.func.results, strict=True):
                try:
                    self.same(scope.type_of(name), kind, f"{self.func.name} returns {name}", self.func.span)
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
                        f"{statement.state} is set to {statement.operand}",
                        statement.span,
                    )
            case Loop():
                inside = scope.inside(statement)
                self.block(statement.body, inside)
                if self.level is Level.EXPLICIT:
                    for carry, following in zip(statement.carries, statement.following, strict=True):
                        name, kind, span = carry.value.name, carry.value.type, carry.value.span
                        self.same(scope.type_of(carry.initial), kind, f"{name} is carried from {carry.initial}", span)
                        self.same(
                            inside.type_of(following), kind, f"{name} is carried, and next gives {following}", span
                        )
            case _:
                pass  # `ir.verification.lifetimes` sees to what is freed

    def same(self, found: ValueType, wanted: ValueType, what: str, span: Span) -> None:
        if found == wanted or isinstance(found, OpenType) or isinstance(wanted, OpenType):
            return  # of types with holes it is said that they have them
        steps = movements_between(found, wanted, what.rsplit(maxsplit=1)[-1])
        if found.placement != wanted.placement:
            steps = ", then ".join(filter(None, [steps, "fetch(...) or store[...](...)"]))
        raise fault(
            "movement-missing",
            f"{what}: {found}, where {wanted} is needed",
            span,
            written_movement(steps),
        )

    def let(self, statement: Let, scope: Scope) -> None:
        self.shapes(statement, scope)
        if self.level is Level.SURFACE:
            return
        for value in statement.results:
            self.diagnostics.extend(_holes(value.name, value.type, value.span))
        kinds = [None if isinstance(o, Number) else scope.type_of(o) for o in statement.operands]
        results = [value.type for value in statement.results]
        known = [kind for kind in kinds if not isinstance(kind, OpenType)]
        made = [kind for kind in results if isinstance(kind, TensorType)]
        if len(known) < len(kinds) or len(made) < len(results):
            return  # a type with holes, of which something is said where it is written
        check_strategy(statement.operation, statement.operands, known, made, self.program.mesh)
        self.memories(statement, known, made)
        if known and known[0] is not None:
            self.digits(statement, known[0], made[0])

    def memories(self, statement: Let, kinds: Sequence[TensorType | None], results: Sequence[TensorType]) -> None:
        """Operands of computation are on the device, and so are results, but for attention on the host. Movements go
        from memory to memory; what computes nothing leaves a value where it is; and a demanded type shares what is on
        the device among memories."""
        operation = statement.operation
        if isinstance(operation, Movement):
            return
        first = kinds[0] if kinds else None
        lies = operation.lies(first.placement, first.shape, results[0].shape) if first is not None else ON_DEVICE
        taken = first.placement if first is not None and lies is not None else ON_DEVICE
        home = lies or ON_DEVICE
        lying = len(kinds) if operation.n_lying is None else operation.n_lying
        what = operation.keyword or "a second name"
        for i, (operand, kind) in enumerate(zip(statement.operands, kinds, strict=True)):
            if kind is None:
                continue
            wanted = taken if i < lying else ON_DEVICE
            if kind.placement != wanted:
                there = "on the device" if wanted == ON_DEVICE else f"on {wanted}, as {statement.operands[0]} is"
                fetched = Fix(str(operand), f"fetch({operand})")
                way = Note("move it there, or fetch the other")
                if wanted == ON_DEVICE:
                    way = Note(f"fetch it first: {fetched.new}", fixes=(fetched,))
                    if isinstance(operation, Attend) and i < lying and kind.placement == ON_HOST:
                        way = replace(way, message=f"{way.message}, or store[host](...) the others and attend there")
                raise misuse("movement-missing", f"{what} takes {operand} {there}, and it is {kind}", way)
        for value, kind in zip(statement.results, results, strict=True):
            shared = (
                isinstance(operation, Alias) and home == ON_DEVICE and kind.placement and kind.placement.tier is None
            )
            if kind.placement not in (home, None) and not shared:
                tier = kind.placement.tier
                way = "fetch(...)" if kind.placement == ON_DEVICE else f"store[{tier or 'host'}](...)"
                there = "on the device" if home == ON_DEVICE else f"on {home}"
                raise misuse(
                    "movement-missing",
                    f"{what} leaves its result {there}, and {value.name} is {kind}",
                    written_movement(way),
                )

    def shapes(self, statement: Let, scope: Scope) -> None:
        """Checks that what inference gives stands there; passes that build statements by hand are caught here."""
        declared = [value.shape for value in statement.results]
        keeps = isinstance(statement.operation, Contract | Elementwise | Grouped)
        args = [
            Arg(str(o), None, o) if isinstance(o, Number) else Arg(o, scope.type_of(o).shape)
            for o in statement.operands
        ]
        found = statement.operation.shapes(args, Context(self.sizes, declared[0] if keeps else None))
        if len(found) != len(declared):
            given = f"{statement.operation.keyword} gives {len(found)} values"
            raise fault("wrong-results", f"{given}, and {len(declared)} are named", statement.span)
        for value, shape in zip(statement.results, found, strict=True):
            if value.shape != shape:
                raise fault(
                    "wrong-dimensions", f"{value.name}: {value.shape}, but the value is {shape}", statement.span
                )
        if isinstance(statement.operation, Take | Concat | Topk):
            self.blocks(statement.operation, args)

    def order(self, kind: TensorType, dim: str) -> Order:
        """The digits of a dimension of a value of this type."""
        return fitting_order(self.orders.get(dim, ()), kind.split(dim), kind.shape.size(dim), self.program.mesh)

    def digits_in_place(self, statement: Let, operand: TensorType, result: TensorType) -> None:
        """A movement of digits leaves every index where it is, so the dimension is read alike before and after it."""
        for dim, was, becomes in zip(operand.dims, operand.splits, result.splits, strict=True):
            order = self.orders.get(dim.name, ())
            if was != becomes and common_order(order, was, becomes, dim.size, self.program.mesh) is None:
                raise fault(
                    "digits",
                    f"{statement.operation.keyword}: {operand} and {result} have no digits of {dim.name}={dim.size} in"
                    " common, so indices would change chips",
                    statement.span,
                    f"write {relayout_text(operand, result, str(statement.operands[0]))}, or gather"
                    f" {dim.name} whole and slice it",
                )

    def blocks(self, operation: Take | Concat | Topk, args: Sequence[Arg]) -> None:
        """Taking, concatenating and choosing block by block want equal blocks."""
        n = self.program.mesh.product(operation.by)
        bounds = [arg.tensor.size(operation.dim) for arg in args]
        if isinstance(operation, Take):
            bounds += [operation.start, operation.stop or 0]
        if isinstance(operation, Topk):
            bounds.append(operation.k)
        for bound in bounds:
            if bound % n:
                raise misuse(
                    "not-divisible",
                    f"{operation.keyword}: {bound} elements of {operation.dim} are not divisible"
                    f" by the {n} blocks of {' '.join(operation.by)}",
                )

    def blocks_at_edges(self) -> None:
        """A value in blocks has the type of one in digits, so that nothing but the permute may read or return it."""
        for statement, loops in self.func.walk():
            if not isinstance(statement, Let) or not isinstance(statement.operation, Permute):
                continue
            name, result = str(statement.operands[0]), statement.result.name
            match statement.operation.blocks:
                case "to":
                    fits = not self.read_elsewhere(result, statement) and result in self.func.returns
                    what = f"{result} is in blocks, and only a result of the function can be"
                    way_out = f"return {result}, and use {name} everywhere else"
                case "from":
                    fits = not self.read_elsewhere(name, statement) and name not in self.func.returns
                    fits &= any(value.name == name for value in self.func.params)
                    what = f"{name} is taken from blocks, and only a parameter that nothing else reads can be"
                    way_out = f"use {result} everywhere else"
                case _:
                    continue
            if loops or not fits:
                self.diagnostics.extend(fault("blocks", what, statement.span, way_out).diagnostics)

    def read_elsewhere(self, name: str, by: Statement) -> bool:
        return any(statement is not by and name in reads(statement) for statement, _ in self.func.walk())

    def digits(self, statement: Let, operand: TensorType, result: TensorType) -> None:
        mesh = self.program.mesh
        if isinstance(statement.operation, Movement) and not isinstance(statement.operation.moves, Permute):
            self.digits_in_place(statement, operand, result)
        differing = differing_digits(statement.operation, operand, result, self.orders, mesh)
        if differing is not None:
            before, after = differing
            raise fault(
                "digits",
                f"{statement.operation.keyword}: the digits of {operand} are {before}, and those of {result} are"
                f" {after}, so indices would change chips",
                statement.span,
                "gather first, or pin orders of the dimensions that agree, as in: dim E=16 order 4 x",
            )
        if isinstance(statement.operation, Take | Concat | Topk) and operand.split(statement.operation.dim):
            by, sides = statement.operation.by, [(operand, statement.operation.dim)]
            if isinstance(statement.operation, Topk):
                sides.append((result, statement.operation.target))
            for kind, dim in sides:
                if self.order(kind, dim)[: len(by)] != by:
                    raise fault(
                        "digits",
                        f"{statement.operation.keyword} by {' '.join(by)}: these are not the outermost digits of {dim}",
                        statement.span,
                        f"pin its order: dim {dim}=... order {' '.join(by)}",
                    )
        if isinstance(statement.operation, Roll):
            axes, dim = statement.operation.axes, statement.operation.dim
            if set(self.order(operand, dim)[: len(axes)]) != set(axes):
                raise fault(
                    "digits",
                    f"roll over {' '.join(axes)}: these are not the outermost digits of {dim}",
                    statement.span,
                    f"pin its order: dim {dim}=... order {' '.join(axes)}",
                )
