"""Types, expressions and declarations as canonical text on one line."""

from __future__ import annotations

import re
from collections.abc import Iterable

from shardwright.ir.text import syntax as ast

SUM, PRODUCT, CONTRACTION, UNARY = 1, 2, 3, 4
PRECEDENCE = {"+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT}
"""How tightly an operator binds; `@` is a `CONTRACTION`, which binds tighter than `*` and takes no chain."""


# ---------------------------------------------------------------- types


def _is_compact(dims: Iterable[ast.RowDim]) -> bool:
    return all(
        re.fullmatch("[A-Z][0-9]*", dim.name) and all(re.fullmatch("[a-z][0-9]*", axis) for axis in dim.axes or ())
        for dim in dims
    )


def _compact(dims: Iterable[ast.RowDim]) -> str:
    return "".join(
        dim.name + ("_?" if dim.axes is None else f"_{''.join(sorted(dim.axes))}" if dim.axes else "") for dim in dims
    )


def _long(dims: Iterable[ast.RowDim]) -> str:
    return " ".join(
        dim.name + ("_?" if dim.axes is None else f"_{{{','.join(sorted(dim.axes))}}}" if dim.axes else "")
        for dim in dims
    )


def format_row(row: ast.LayoutRow) -> str:
    """`BLE_xyz` where every name has the compact form, `[batch embed_{data,model}]` otherwise."""
    hole = "?" if row.open else ""
    compact = row.dims and _is_compact(row.dims)
    return (_compact(row.dims) if compact else f"[{_long(row.dims)}]") + hole


def format_type(written: ast.TypeExpr) -> str:
    """The canonical text of a type: `bf16 BLF_yz(partialsum-x) on host`."""
    text = " ".join(part for part in (written.dtype, format_row(written.row) if written.row else None) if part)
    if written.partial is not None:
        text += ("" if written.row is not None else " ") + _partial(written.partial)
    if written.placement is not None:
        text += f" on {_placement(written.placement)}"
    return f"{text} in flight" if written.in_flight else text


def _partial(partial: ast.PartialExpr) -> str:
    if partial.axes is None:
        axes = "?"
    elif all(re.fullmatch("[a-z][0-9]*", axis) for axis in partial.axes):
        axes = "".join(sorted(partial.axes))
    else:
        axes = f"{{{','.join(sorted(partial.axes))}}}"
    return f"(partial{partial.kind}-{axes})"


def _placement(placement: ast.PlacementExpr) -> str:
    if placement.shares is None:
        return "?"
    if len(placement.shares) == 1 and placement.shares[0][1] == 100:
        text = placement.shares[0][0]
    else:
        text = " ".join(f"{tier} {_percent(share)}%" for tier, share in placement.shares)
    return text if placement.along is None else f"{text} along {placement.along}"


def _percent(share: float) -> str:
    return (
        str(int(share)) if share == int(share) else format(share, "f").rstrip("0") if share > 1e-6 else f"{share:.12f}"
    )


# ---------------------------------------------------------------- expressions


def format_expr(expr: ast.Expr) -> str:
    """An expression on one line, with the brackets that it needs and no others."""
    return operand(expr, SUM)


def binding(expr: ast.Expr) -> int:
    """How tightly the outermost operator of an expression binds."""
    match expr:
        case ast.BinaryExpr():
            return PRECEDENCE[expr.operator]
        case ast.ContractExpr():
            return CONTRACTION
        case ast.NegExpr():
            return UNARY
        case _:
            return UNARY + 1


def operand(expr: ast.Expr, at_least: int) -> str:
    """An expression, in brackets where it binds less tightly than `at_least`."""
    text = _bare(expr)
    return f"({text})" if binding(expr) < at_least else text


def _bare(expr: ast.Expr) -> str:
    match expr:
        case ast.NameExpr():
            return expr.name
        case ast.NumberExpr():
            return expr.text
        case ast.NegExpr():
            return f"-{operand(expr.operand, UNARY)}"
        case ast.BinaryExpr():
            level = PRECEDENCE[expr.operator]
            return f"{operand(expr.left, level)} {expr.operator} {operand(expr.right, level + 1)}"
        case ast.ContractExpr():
            return f"{operand(expr.left, UNARY)} {at_sign(expr)} {operand(expr.right, UNARY)}"
        case ast.CallExpr():
            args = "" if expr.args is None else f"({', '.join(operand(arg, SUM) for arg in expr.args)})"
            return call_head(expr) + args
        case ast.KeywordExpr():
            return f"{expr.name}={operand(expr.value, SUM)}"
        case _:
            raise TypeError(f"{type(expr).__name__} is not an expression")


def at_sign(expr: ast.ContractExpr) -> str:
    """The operator of a contraction: `@` or `@[EF]`."""
    if expr.dims is None:
        return "@"
    return f"@[{_compact(expr.dims) if _is_compact(expr.dims) else _long(expr.dims)}]"


def call_head(call: ast.CallExpr) -> str:
    """A call up to its round brackets: `softmax[T, causal=L]`."""
    return f"{call.name}[{', '.join(_static(s) for s in call.statics)}]" if call.statics else call.name


def _dims(static: ast.DimsStatic, *, bare: bool) -> str:
    """Dimensions between square brackets; `bare` where a lower-case word can only be a dimension."""
    if static.dims and _is_compact(static.dims):
        return _compact(static.dims)
    if bare and len(static.dims) == 1 and static.dims[0].axes == ():
        return static.dims[0].name
    return f"[{_long(static.dims)}]"


def _words(static: ast.WordStatic) -> str:
    return f"{{{','.join(static.words)}}}" if static.braces else static.words[0]


def _static(static: ast.Static) -> str:
    match static:
        case ast.DimsStatic():
            return _dims(static, bare=False)
        case ast.WordStatic():
            return _words(static)
        case ast.TextStatic(text):
            return f"'{text}'"
        case ast.IntStatic():
            return str(static.value)
        case ast.ArrowStatic(left, right):
            source = _words(left) if isinstance(left, ast.WordStatic) else _dims(left, bare=False)
            return f"{source} -> {_dims(right, bare=True)}"
        case ast.MoveStatic(axes, source, target):
            return f"{_words(axes)}: {_dims(source, bare=True)} -> {_dims(target, bare=True)}"
        case ast.RelayoutStatic(dim, before, after):
            return f"{_dims(dim, bare=False)}: {_words(before)} -> {_words(after)}"
        case ast.RangeStatic(dim, start, stop):
            return f"{dim} {start}:{stop}"
        case ast.OptionStatic(name, value):
            return f"{name}={_bare(value) if isinstance(value, ast.Expr) else _static(value)}"
        case _:
            raise TypeError(f"{type(static).__name__} cannot stand between square brackets")


def _size(size: ast.SizeExpr) -> str:
    return "+".join("*".join(str(factor) for factor in term) for term in size.terms)


def dim_text(decl: ast.DimDecl) -> str:
    """`E=2*F order x y`."""
    order = "" if decl.order is None else "".join([" order", *(f" {digit}" for digit in decl.order)])
    return f"{decl.name}={_size(decl.size)}{order}"


def target_text(target: ast.AssignedName) -> str:
    """`h`, `h: T` or `h :~ T`."""
    if target.type is None:
        return target.name
    return f"{target.name}{' :~' if target.found else ':'} {format_type(target.type)}"


def decl_text(decl: ast.Decl) -> str:
    """`x: T`."""
    return f"{decl.name}: {format_type(decl.type)}"
