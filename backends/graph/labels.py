"""Labels of a picture in Graphviz's HTML-like markup: types with real subscripts, operations, sizes in bytes."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

from shardwright.backends.graph.palette import FAINT, INK, PARTIAL
from shardwright.ir.operation import Number, Operation
from shardwright.ir.ops import Add, Alias, Contract, Div, Fetch, Full, Movement, Mul, Neg, Start, Sub
from shardwright.ir.program import Free, Let, Loop, Marking, SetState, Statement, Value
from shardwright.ir.text.one_line import call_head, format_expr
from shardwright.ir.text.syntax import CallExpr
from shardwright.ir.text.unparse import expression_syntax
from shardwright.ir.types import (
    ON_DEVICE,
    AnyPartial,
    Axes,
    OpenType,
    Partial,
    TensorType,
    ValueType,
    is_compact_dim,
    is_short_axis,
)

WIDEST = 44
"""Characters of an operation's label beyond which it is cut; the tooltip has all of it."""


def printable(text: str) -> str:
    """The text with signs that XML or a font cannot show replaced.

    So is the backslash, by its likeness: Graphviz reads escapes as `\\N` even where it stands as an entity.
    """
    text = text.replace("\\", "\N{SET MINUS}")
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in {"Cc", "Cs", "Cn"} else c for c in text)


def escaped(text: str) -> str:
    """Text for the inside of a label."""
    return printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def shortened(text: str) -> str:
    """The text, cut to `WIDEST` characters."""
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


def font(content: str, *, size: float | None = None, colour: str | None = None) -> str:
    """Markup in another size (in points) or colour."""
    attributes = (f' POINT-SIZE="{size:g}"' if size else "") + (f' COLOR="{colour}"' if colour else "")
    return f"<FONT{attributes}>{content}</FONT>" if attributes else content


def bytes_text(count: float) -> str:
    """A number of bytes in B, KiB, MiB, GiB or TiB: `1.5 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{int(size)} B" if unit == "B" else f"{_three(size)} {unit}"
        size /= 1024
    return f"{_three(size)} TiB"


def _three(size: float) -> str:
    return f"{size:.0f}" if size >= 100 else f"{size:.3g}"


# ---------------------------------------------------------------- types


def _axes(axes: Axes, *, compact: bool) -> str:
    if compact and all(is_short_axis(axis) for axis in axes):
        return escaped("".join(axes))
    return escaped(",".join(axes))


def layout_label(kind: ValueType) -> str:
    """A layout: `BLF<SUB>yz</SUB>`, partial values in their colour, the placement where it is not the device."""
    compact = all(is_compact_dim(name) for name in kind.names)
    is_open = isinstance(kind, OpenType) and kind.open
    pieces: list[str] = []
    for name, axes in zip(kind.names, kind.splits, strict=True):
        below = "" if is_open else "?" if axes is None else _axes(axes, compact=compact)
        pieces.append(escaped(name) + (f"<SUB>{below}</SUB>" if below else ""))
    text = ("" if compact else " ").join(pieces) + ("?" if is_open and pieces else "")
    partial = _partial_label(kind.partial)
    if partial:
        text = f"{text} {font(partial, colour=PARTIAL)}".lstrip()
    if kind.placement != ON_DEVICE:
        place = "?" if kind.placement is None else str(kind.placement)
        text = f"{text} {font(escaped(f'on {place}'), size=9)}".lstrip()
    return text


def _partial_label(partial: Partial | AnyPartial | None) -> str:
    if isinstance(partial, Partial):
        return f"<B>partial{partial.kind}</B><SUB>{_axes(partial.axes, compact=True)}</SUB>"
    if partial is not None and partial.kind is not None:
        return f"<B>partial{partial.kind}</B><SUB>?</SUB>"
    return ""


def type_label(kind: ValueType) -> str:
    """A layout and, small, its number format."""
    layout = layout_label(kind)
    dtype = font(escaped(str(kind.dtype)), size=8, colour=FAINT)
    return f"{layout} {dtype}" if layout else dtype


def value_label(name: str, typed: str, marking: Marking) -> str:
    """The label of an edge, with the label of its type: what was demanded upright and dark, what was found in grey
    italics."""
    if marking is Marking.DEMANDED:
        return font(f"<B>{escaped(name)}</B>&nbsp; {typed}", colour=INK)
    return font(f"<I>{escaped(name)}&nbsp; {typed}</I>", colour=FAINT)


def shape_text(kind: TensorType, mesh: Mapping[str, int]) -> str:
    """The shape of what one chip holds."""
    return " × ".join(str(size) for size in kind.local_shape(mesh)) or "scalar"


def tooltip_of(kind: ValueType, mesh: Mapping[str, int]) -> list[str]:
    """Lines on what one chip holds of a value."""
    if not isinstance(kind, TensorType):
        return ["layout left to the compiler"]
    return [f"per chip: {shape_text(kind, mesh)}, {bytes_text(kind.local_bytes(mesh))}"]


# ---------------------------------------------------------------- operations

_SIGNS = {Add: "+", Sub: "−", Mul: "×", Div: "÷"}


def operation_text(statement: Let) -> str:
    """The short label of an operation: `@ E`, `gelu`, `softmax[T]`, `× 0.25`."""
    operation, operands = statement.operation, statement.operands
    match operation:
        case Contract():
            compact = all(is_compact_dim(name) for name in operation.dims)
            return f"@ {('' if compact else ' ').join(operation.dims)}".rstrip()
        case Alias():
            return "="
        case Neg():
            return "−"
        case Add() | Sub() | Mul() | Div():
            return _arithmetic(_SIGNS[type(operation)], operation, operands)
        case Full():
            return str(operands[0])
        case _:
            head = head_text(operation).replace("->", "→")
            numbers = [str(operand) for operand in operands if isinstance(operand, Number)]
            return f"{head} {', '.join(numbers)}" if numbers else head


def _arithmetic(sign: str, operation: Operation, operands: Sequence[str | Number]) -> str:
    left, right = operands
    if isinstance(right, Number):
        return f"{sign} {right}"
    if isinstance(left, Number):
        return f"{left} {sign}"
    return sign if isinstance(operation, Add | Mul) else f"{left} {sign} {right}"


def head_text(operation: Operation) -> str:
    """An operation with its statics: `all_gather[yz]`."""
    return call_head(CallExpr(operation.keyword, operation.statics, ()))


def statics_text(operation: Operation) -> str:
    """The text between the square brackets."""
    return head_text(operation)[len(operation.keyword) :].removeprefix("[").removesuffix("]").replace("->", "→")


def movement_text(operation: Movement) -> str:
    """The text of a movement: `fetch`, `prefetch`, `start store`."""
    if isinstance(operation, Start):
        return "prefetch" if isinstance(operation.movement, Fetch) else f"start {operation.movement.keyword}"
    return operation.keyword


def statement_text(statement: Statement) -> str:
    """A statement as the language writes it, for tooltips; a loop without its body."""
    match statement:
        case Let():
            targets = ", ".join(_target_text(value) for value in statement.results)
            return f"{targets} = {format_expr(expression_syntax(statement))}"
        case SetState():
            return f"set {statement.state} = {statement.operand}"
        case Free():
            return f"free {', '.join(statement.names)}"
        case Loop():
            index = f" as {statement.index}" if statement.index else ""
            carries = ", ".join(f"{_target_text(c.value)} = {c.initial}" for c in statement.carries)
            return f"loop[{statement.dim}{index}]({carries})"


def _target_text(value: Value) -> str:
    if value.marking is Marking.UNWRITTEN and isinstance(value.type, OpenType):
        return value.name
    return f"{value.name} {':' if value.marking is Marking.DEMANDED else ':~'} {value.type}".replace(" : ", ": ")
