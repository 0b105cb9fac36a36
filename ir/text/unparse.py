"""From programs back to syntax, so that what a pass made prints as the language it came from."""

from __future__ import annotations

from shardwright.ir.operation import Operand
from shardwright.ir.ops import Add, Alias, Contract, Div, Fetch, Full, Mul, Neg, Start, Sub
from shardwright.ir.program import Free, Func, Let, Loop, Marking, Program, SetState, Statement, Value
from shardwright.ir.text import syntax
from shardwright.ir.types import ON_DEVICE, AnyPartial, OpenType, Partial, Placement, ValueType

_OPERATORS = {Add: "+", Sub: "-", Mul: "*", Div: "/"}


def unparse(program: Program) -> syntax.Module:
    """The module that elaborates to this program."""
    items: list[syntax.Item] = []
    if len(program.mesh):
        items.append(syntax.MeshItem(tuple(syntax.MeshAxis(name, size) for name, size in program.mesh.sizes)))
    if program.chip:
        items.append(syntax.ChipItem(program.chip))
    if program.dims:
        items.append(
            syntax.DimItem(
                tuple(
                    syntax.DimDecl(dim.name, syntax.SizeExpr(dim.expression or ((dim.size,),)), dim.order)
                    for dim in program.dims
                )
            )
        )
    if program.weights:
        items.append(syntax.WeightsItem(tuple(_decl(value) for value in program.weights)))
    if program.state:
        items.append(syntax.StateItem(tuple(_decl(value) for value in program.state)))
    items.extend(_func(func) for func in program.funcs)
    return syntax.Module(tuple(items))


def _decl(value: Value) -> syntax.Decl:
    return syntax.Decl(value.name, type_syntax(value.type))


def type_syntax(kind: ValueType) -> syntax.TypeExpr:
    """A type as it would be written, with its number format even where that is the default."""
    is_open = isinstance(kind, OpenType) and kind.open
    row: syntax.LayoutRow | None = None
    if kind.dims:
        splits = [(axes or ()) if is_open else axes for axes in kind.splits]
        dims = tuple(syntax.RowDim(dim.name, axes) for dim, axes in zip(kind.dims, splits, strict=True))
        row = syntax.LayoutRow(dims, is_open)
    partial: syntax.PartialExpr | None = None
    if isinstance(kind.partial, Partial):
        partial = syntax.PartialExpr(str(kind.partial.kind), kind.partial.axes)
    elif isinstance(kind.partial, AnyPartial) and kind.partial.kind is not None:
        partial = syntax.PartialExpr(str(kind.partial.kind), None)
    placement = None
    if kind.placement is None:
        placement = syntax.PlacementExpr(None)
    elif kind.placement != ON_DEVICE:
        placement = _placement(kind.placement)
    return syntax.TypeExpr(str(kind.dtype), row, partial, placement, kind.in_flight)


def _placement(placement: Placement) -> syntax.PlacementExpr:
    return syntax.PlacementExpr(tuple((str(tier), share) for tier, share in placement.shares), placement.along)


def _func(func: Func) -> syntax.FuncItem:
    overrides = tuple(syntax.DimDecl(name, syntax.SizeExpr(((size,),))) for name, size in func.overrides)
    ending = syntax.ReturnStmt(tuple(syntax.NameExpr(name) for name in func.returns))
    return syntax.FuncItem(
        func.name,
        overrides,
        tuple(_decl(value) for value in func.params),
        tuple(type_syntax(kind) for kind in func.results),
        (*_block(func.body), ending),
    )


def _block(body: tuple[Statement, ...]) -> tuple[syntax.Stmt, ...]:
    return tuple(statement_syntax(statement) for statement in body)


def statement_syntax(statement: Statement) -> syntax.Stmt:
    """One statement as written."""
    match statement:
        case Let():
            return syntax.LetStmt(tuple(_target(value) for value in statement.results), expression_syntax(statement))
        case SetState():
            return syntax.SetStmt(statement.state, syntax.NameExpr(statement.operand))
        case Free():
            return syntax.FreeStmt(tuple(syntax.NameExpr(name) for name in statement.names))
        case Loop():
            ending = ()
            if statement.carries:
                ending = (syntax.NextStmt(tuple(syntax.NameExpr(name) for name in statement.following)),)
            return syntax.LoopStmt(
                tuple(syntax.AssignedName(value.name) for value in statement.results),
                statement.dim,
                statement.index,
                tuple(syntax.CarrySyntax(_target(c.value), syntax.NameExpr(c.initial)) for c in statement.carries),
                (*_block(statement.body), *ending),
            )


def _target(value: Value) -> syntax.AssignedName:
    if value.marking is Marking.UNWRITTEN and isinstance(value.type, OpenType):
        return syntax.AssignedName(value.name)
    return syntax.AssignedName(value.name, type_syntax(value.type), value.marking is not Marking.DEMANDED)


def _operand(operand: Operand) -> syntax.Expr:
    """A name or a literal, negative ones with their sign as an operator, and what was computed from sizes as it was."""
    if isinstance(operand, str):
        return syntax.NameExpr(operand)
    if operand.made_of is not None:
        operator, parts = operand.made_of[0], tuple(map(_operand, operand.made_of[1]))
        return syntax.NegExpr(parts[0]) if len(parts) == 1 else syntax.BinaryExpr(operator, *parts)
    if operand.size_of is not None:
        return syntax.CallExpr("size", (syntax.DimsStatic((syntax.RowDim(operand.size_of),)),), None)
    if operand.text.startswith("-"):
        return syntax.NegExpr(syntax.NumberExpr(operand.text[1:]))
    return syntax.NumberExpr(operand.text)


def expression_syntax(statement: Let) -> syntax.Expr:
    """The right side of a statement."""
    operation, operands = statement.operation, tuple(_operand(o) for o in statement.operands)
    match operation:
        case Alias():
            return operands[0]
        case Neg():
            return syntax.NegExpr(operands[0])
        case Contract():
            dims = tuple(syntax.RowDim(name) for name in operation.dims)
            return syntax.ContractExpr(operands[0], operands[1], dims or None)
        case Add() | Sub() | Mul() | Div():
            return syntax.BinaryExpr(_OPERATORS[type(operation)], operands[0], operands[1])
        case Full() if statement.result.marking is not Marking.UNWRITTEN or not isinstance(
            statement.result.type, OpenType
        ):
            return operands[0]
        case Start(movement=Fetch() as fetch):
            return syntax.CallExpr("prefetch", fetch.statics, operands)
        case Start():
            moved = syntax.CallExpr(operation.movement.keyword, operation.movement.statics, operands)
            return syntax.CallExpr("start", (), (moved,))
        case _:
            positional = len(operands) - len(operation.keywords)
            named = map(syntax.KeywordExpr, operation.keywords, operands[positional:])
            return syntax.CallExpr(operation.keyword, operation.statics, (*operands[:positional], *named))
