"""Expressions flattened: each operation becomes a statement of its own, with operands that are names or numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.ir import ops
from shardwright.ir.diagnostics import Span, fault, placed
from shardwright.ir.elaboration.builders import build_operation, operands_of
from shardwright.ir.elaboration.names import Names
from shardwright.ir.memory_shares import is_written
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Arg, Context, Number, Operand, Operation
from shardwright.ir.ops.contraction import summed_dims
from shardwright.ir.program import Let, Marking, Scope, Statement, Value
from shardwright.ir.strategies import explain_movement
from shardwright.ir.text import syntax
from shardwright.ir.types import ON_DEVICE, DType, OpenType, Shape, TensorType, ValueType
from shardwright.ir.verification.demands import check_fits

_WORDS = {"+": "add", "-": "sub", "*": "mul", "/": "div"}
_BINARY: dict[str, Operation] = {"+": ops.Add(), "-": ops.Sub(), "*": ops.Mul(), "/": ops.Div()}


class Expressions:
    """Elaborates the expressions of one function, whose dimensions have these `sizes`."""

    def __init__(self, mesh: Mesh, sizes: Mapping[str, int], names: Names) -> None:
        self.mesh = mesh
        self.sizes = sizes
        self.names = names

    def outermost(
        self, expr: syntax.Expr, declared: ValueType | None, name: str, scope: Scope, out: list[Statement]
    ) -> tuple[Operation, tuple[Operand, ...], tuple[Shape, ...]]:
        """The operation of an expression, its operands (flattened into statements before it) and its shapes."""
        shape = declared.shape if declared else None
        match expr:
            case syntax.NameExpr():
                kind = self.names.view(expr.name, scope, expr.span)
                return ops.Alias(), (expr.name,), (kind.shape,)
            case syntax.NumberExpr() | syntax.NegExpr(operand=syntax.NumberExpr()):
                return self.number_value(expr, shape)
            case syntax.NegExpr():
                operation, parts = ops.Neg(), (expr.operand,)
            case syntax.BinaryExpr():
                operation, parts = _BINARY[expr.operator], (expr.left, expr.right)
            case syntax.ContractExpr():
                return self.contraction(expr, shape, name, scope, out)
            case syntax.CallExpr(name="size"):
                return self.number_value(expr, shape)
            case syntax.CallExpr():
                operation, parts = build_operation(expr, self.mesh), operands_of(expr)
            case _:
                raise AssertionError(expr)
        operands = tuple(self.expression(part, None, f"{name}_{_word(part)}", scope, out) for part in parts)
        if operands and all(isinstance(o, Number) for o in operands) and not isinstance(operation, ops.Full):
            raise fault("literal-operand", "an operation on numbers alone", expr.span, "write its result as a number")
        return operation, operands, self.infer(operation, operands, shape, scope, expr)

    def number_value(
        self, expr: syntax.Expr, declared: Shape | None
    ) -> tuple[Operation, tuple[Operand, ...], tuple[Shape]]:
        if declared is None:
            raise fault(
                "literal-operand",
                "the type of a number that stands alone must be written",
                expr.span,
                "as in: a: f32 = 0.5",
            )
        number = self.number(expr)
        assert number is not None
        _check_representable(number, declared.dtype, expr.span)
        return ops.Full(declared.names, declared.dtype), (number,), (declared,)

    def number(self, expr: syntax.Expr) -> Number | None:
        """The literal that an expression is, folding arithmetic on literals; None if it holds a value."""
        match expr:
            case syntax.NumberExpr():
                return Number(expr.text)
            case syntax.NegExpr():
                inner = self.number(expr.operand)
                return None if inner is None else Number.folded("-", inner)
            case syntax.CallExpr(name="size"):
                return self.size_of(expr)
            case syntax.BinaryExpr():
                left, right = self.number(expr.left), self.number(expr.right)
                if left is None or right is None:
                    return None
                if expr.operator == "/" and right.value == 0:
                    raise fault("literal-operand", "division by zero", expr.span)
                return Number.folded(expr.operator, left, right)
            case _:
                return None

    def size_of(self, expr: syntax.CallExpr) -> Number:
        static = expr.statics[0] if len(expr.statics) == 1 else None
        name = ""
        if isinstance(static, syntax.DimsStatic) and len(static.dims) == 1:
            name = static.dims[0].name
        elif isinstance(static, syntax.WordStatic):
            name = static.words[0]
        if expr.args or not name:
            raise fault("bad-static", "size names one dimension, as in size[D]", expr.span)
        with placed(expr.span):
            return Number(str(Context(self.sizes).dim(name).size), name)

    def contraction(
        self, expr: syntax.ContractExpr, shape: Shape | None, name: str, scope: Scope, out: list[Statement]
    ) -> tuple[Operation, tuple[Operand, ...], tuple[Shape, ...]]:
        operands = tuple(
            self.expression(part, None, f"{name}_{_word(part)}", scope, out) for part in (expr.left, expr.right)
        )
        left, right = (_arg(operand, scope) for operand in operands)
        with placed(expr.span):
            if expr.dims is not None:
                dims = tuple(dim.name for dim in expr.dims)
                if len(set(dims)) != len(dims):
                    raise fault("contraction-dimension", f"@[{''.join(dims)}] names a dimension twice", expr.span)
            else:
                dims = summed_dims(left.tensor, right.tensor, shape)
        operation = ops.Contract(dims)
        return operation, operands, self.infer(operation, operands, shape, scope, expr)

    def infer(
        self,
        operation: Operation,
        operands: tuple[Operand, ...],
        declared: Shape | None,
        scope: Scope,
        expr: syntax.Expr,
    ) -> tuple[Shape, ...]:
        with placed(expr.span):
            shapes = operation.shapes([_arg(o, scope) for o in operands], Context(self.sizes, declared))
            if isinstance(operation, ops.Movement):
                _check_movement(operation, operands, scope)
        if isinstance(operation, ops.Elementwise):
            dtype = next(scope.type_of(o).dtype for o in reversed(operands) if isinstance(o, str))
            for number in (o for o in operands if isinstance(o, Number)):
                _check_representable(number, dtype, expr.span)
        return shapes

    def expression(
        self,
        expr: syntax.Expr,
        shape: Shape | None,
        name: str,
        scope: Scope,
        out: list[Statement],
        demanded: ValueType | None = None,
    ) -> Operand:
        """The operand that an expression is; what it computes is appended as a statement under a fresh name."""
        if isinstance(expr, syntax.NameExpr):
            self.names.view(expr.name, scope, expr.span)
            return expr.name
        literal = self.number(expr)
        if literal is not None:
            return literal
        declared = demanded or (OpenType.anything(shape) if shape else None)
        fresh = self.names.namer.fresh(name)
        operation, operands, shapes = self.outermost(expr, declared, fresh, scope, out)
        if len(shapes) != 1:
            named = f"{', '.join(operation.result_words)} = {operation.keyword}[...](...)"
            raise fault(
                "wrong-results",
                f"{operation.keyword} gives {len(shapes)} values, and one is needed here",
                expr.span,
                f"name them in a statement of its own: {named}",
            )
        (found,) = shapes
        kind: ValueType = unwritten(operation, operands, found, scope)
        if demanded is not None:
            check_fits(found, demanded, f"{fresh} is", expr.span)
            if isinstance(demanded, TensorType):  # a hole is filled where it stands, and is not written here
                kind = replace(demanded, dims=found.dims)
        marking = Marking.FOUND if isinstance(kind, TensorType) else Marking.UNWRITTEN
        value = Value(fresh, kind, marking, expr.span)
        out.append(Let((value,), operation, operands, expr.span))
        scope.define(value)
        return fresh

    def value_name(
        self, operand: Operand, shape: Shape | None, expr: syntax.Expr, wish: str, scope: Scope, out: list[Statement]
    ) -> str:
        """The operand as a name; a bare number becomes a value of the wanted shape."""
        if isinstance(operand, str):
            return operand
        operation, operands, (found,) = self.number_value(expr, shape)
        value = Value(self.names.namer.fresh(wish), OpenType.anything(found), Marking.UNWRITTEN, expr.span)
        out.append(Let((value,), operation, operands, expr.span))
        scope.define(value)
        return value.name


def unwritten(operation: Operation, operands: tuple[Operand, ...], shape: Shape, scope: Scope) -> OpenType:
    """The type of a result of which nothing was written: what is moved lies where the movement puts it, what computes
    nothing where the value lies, new rows with it, and attention where its queries do; but on the device where a type
    cannot say that."""
    kind = OpenType.anything(shape)
    if not operands or not isinstance(operands[0], str):
        return kind
    operand = scope.type_of(operands[0])
    lying = isinstance(operation, ops.Attend | ops.Alias | ops.Rename | ops.Split | ops.Merge | ops.Take)
    if isinstance(operation, ops.Update) and isinstance(operands[1], str):
        lying = scope.type_of(operands[1]).placement == operand.placement
    if lying:
        home = operand.placement
        return replace(kind, placement=home and (operation.lies(home, operand.shape, shape) or ON_DEVICE))
    if isinstance(operation, ops.Movement):
        home = operation.placed(operand.placement or ON_DEVICE)
        home = home if is_written(home, shape) else ON_DEVICE
        return replace(kind, placement=home, in_flight=isinstance(operation, ops.Start))
    return kind


def _check_movement(operation: ops.Movement, operands: tuple[Operand, ...], scope: Scope) -> None:
    """Raises where a movement written by hand does not apply to an operand whose type is known."""
    name = operands[0]
    if isinstance(name, str):
        kind = scope.type_of(name)
        if isinstance(kind, TensorType):
            explain_movement(operation, name, kind)


def _word(expr: syntax.Expr) -> str:
    """The word that a temporary is called after."""
    match expr:
        case syntax.CallExpr():
            return expr.name
        case syntax.BinaryExpr():
            return _WORDS[expr.operator]
        case syntax.ContractExpr():
            return "dot"
        case _:
            return "neg"


def _check_representable(number: Number, dtype: DType, span: Span) -> None:
    """Raises where a literal meets a number format that cannot hold it."""
    if dtype.is_integer and not isinstance(number.value, int):
        raise fault(
            "dtype-mismatch", f"{number} is no whole number, and the values are {dtype}", span, "convert them first"
        )


def _arg(operand: Operand, scope: Scope) -> Arg:
    if isinstance(operand, Number):
        return Arg(str(operand), None, operand)
    return Arg(operand, scope.type_of(operand).shape)
