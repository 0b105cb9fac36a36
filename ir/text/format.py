"""Syntax tree to canonical text: one way to write each program, with its comments and blank lines kept."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from shardwright.ir.text import syntax as ast
from shardwright.ir.text.one_line import (
    PRECEDENCE,
    SUM,
    UNARY,
    at_sign,
    binding,
    call_head,
    decl_text,
    dim_text,
    format_expr,
    format_type,
    operand,
    target_text,
)

__all__ = ["WIDTH", "format_expr", "format_module", "format_type"]

WIDTH = 100
"""Columns beyond which calls, parameters and carried values are broken onto lines of their own."""

_INDENT = "  "
_N = TypeVar("_N", bound=ast.Node)


def format_module(module: ast.Module) -> str:
    """The canonical text of a program. It parses to an equal module, and formatting it again changes nothing."""
    printer = _Printer(list(module.comments))
    printer.sequence(module.items, (sys.maxsize, 0), "", printer.item, between_items=True)
    return "\n".join(printer.lines) + "\n"


# ---------------------------------------------------------------- lines

_At = tuple[int, int]


def _start(node: ast.Node) -> _At:
    return node.span.line, node.span.column


def _end(node: ast.Node) -> _At:
    return node.span.end_line, node.span.end_column


@dataclass
class _Entry:
    """One element of a broken list: its own lines, the comments before it and the one behind it."""

    lines: list[str]
    before: list[ast.Comment] = field(default_factory=list[ast.Comment])
    behind: ast.Comment | None = None


@dataclass
class _Laid:
    """An expression on lines (the first without indentation), and the comments that found no place in it."""

    lines: list[str]
    homeless: list[ast.Comment]


def _weave(
    nodes: Sequence[ast.Node],
    comments: Sequence[ast.Comment],
    lay: Callable[[ast.Node, Sequence[ast.Comment]], _Laid],
) -> tuple[list[_Entry], list[ast.Comment]]:
    """The elements of a list with their comments, and the comments after the last element."""
    left = list(comments)
    entries: list[_Entry] = []
    for node in nodes:
        before: list[ast.Comment] = []
        while left and _start(left[0]) < _start(node):
            comment = left.pop(0)
            last = entries[-1] if entries else None
            if last is not None and not comment.own_line and not before and last.behind is None:
                last.behind = comment
            else:
                before.append(comment)
        within: list[ast.Comment] = []
        while left and _start(left[0]) < _end(node):
            within.append(left.pop(0))
        laid = lay(node, within)
        entries.append(_Entry(laid.lines, before + laid.homeless))
    if left and entries and not left[0].own_line:
        entries[-1].behind = left.pop(0)
    return entries, left


def _broken(head: str, entries: Sequence[_Entry], rest: Sequence[ast.Comment], tail: str, pad: str) -> list[str]:
    """`head`, the entries one to a line, `tail`; every line but the first indented from `pad`."""
    inner = pad + _INDENT
    lines = [head]
    for number, entry in enumerate(entries):
        lines.extend(inner + comment.text for comment in entry.before)
        comma = "," if number < len(entries) - 1 else ""
        behind = f"  {entry.behind.text}" if entry.behind else ""
        *most, last = entry.lines
        text = [*most, f"{last}{comma}{behind}"]
        lines.extend([inner + text[0], *text[1:]])
    lines.extend(inner + comment.text for comment in rest)
    lines.append(pad + tail)
    return lines


def _lay(expr: ast.Expr, at_least: int, pad: str, used: int, after: int, comments: Sequence[ast.Comment]) -> _Laid:
    """An expression that begins at column `used` and is followed by `after` columns, broken where it must be."""
    flat = operand(expr, at_least)
    if not comments and used + len(flat) + after <= WIDTH:
        return _Laid([flat], [])
    if binding(expr) < at_least:
        laid = _lay(expr, SUM, pad, used + 1, after + 1, comments)
        return _Laid(_wrapped("(", laid.lines, ")"), laid.homeless)
    match expr:
        case ast.CallExpr() if expr.args:

            def lay(node: ast.Node, within: Sequence[ast.Comment]) -> _Laid:
                assert isinstance(node, ast.Expr), "the arguments of a call are expressions"
                return _lay(node, SUM, pad + _INDENT, len(pad) + len(_INDENT), 1, within)

            entries, rest = _weave(expr.args, comments, lay)
            return _Laid(_broken(f"{call_head(expr)}(", entries, rest, ")", pad), [])
        case ast.NegExpr():
            laid = _lay(expr.operand, UNARY, pad, used + 1, after, comments)
            return _Laid(_wrapped("-", laid.lines, ""), laid.homeless)
        case ast.BinaryExpr():
            level = PRECEDENCE[expr.operator]
            return _lay_pair(expr.left, level, expr.operator, expr.right, level + 1, pad, used, after, comments)
        case ast.ContractExpr():
            return _lay_pair(expr.left, UNARY, at_sign(expr), expr.right, UNARY, pad, used, after, comments)
        case _:
            return _Laid([flat], list(comments))


def _lay_pair(
    left: ast.Expr,
    left_least: int,
    operator: str,
    right: ast.Expr,
    right_least: int,
    pad: str,
    used: int,
    after: int,
    comments: Sequence[ast.Comment],
) -> _Laid:
    """Both sides of an operator: the right one broken first, the left one only where that is not enough."""
    in_left = [c for c in comments if _start(left) < _start(c) < _end(left)]
    in_right = [c for c in comments if _start(right) < _start(c) < _end(right)]
    between = [c for c in comments if c not in in_left and c not in in_right]
    joint = f" {operator} "
    flat = operand(left, left_least)
    first = _Laid([flat], [])
    if in_left or used + len(flat) + len(joint) > WIDTH or not _breaks(right):
        first = _lay(left, left_least, pad, used, len(joint) + 1, in_left)
        if len(first.lines) == 1 and not in_left and not _breaks(right):
            first = _lay(left, left_least, pad, used, WIDTH, in_left)
    start = len(first.lines[-1]) + len(joint) + (used if len(first.lines) == 1 else 0)
    second = _lay(right, right_least, pad, start, after, in_right)
    lines = [*first.lines[:-1], f"{first.lines[-1]}{joint}{second.lines[0]}", *second.lines[1:]]
    return _Laid(lines, sorted([*between, *first.homeless, *second.homeless], key=_start))


def _breaks(expr: ast.Expr) -> bool:
    """Tells whether there is a call with operands to break in an expression."""
    match expr:
        case ast.CallExpr():
            return bool(expr.args)
        case ast.NegExpr():
            return _breaks(expr.operand)
        case ast.BinaryExpr() | ast.ContractExpr():
            return _breaks(expr.left) or _breaks(expr.right)
        case _:
            return False


def _wrapped(opening: str, lines: Sequence[str], closing: str) -> list[str]:
    text = [opening + lines[0], *lines[1:]]
    return [*text[:-1], text[-1] + closing]


class _Printer:
    """Writes statements in the order of the text, handing out the comments that stand before, in and behind each."""

    def __init__(self, comments: list[ast.Comment]) -> None:
        self.lines: list[str] = []
        self._comments = comments
        self._next = 0

    def _take(self, before: _At) -> list[ast.Comment]:
        """The comments not yet written that begin before a place."""
        first = self._next
        while self._next < len(self._comments) and _start(self._comments[self._next]) < before:
            self._next += 1
        return self._comments[first : self._next]

    def _behind(self, line: int, before: _At | None = None) -> str:
        """The comment at the end of a line that is about to be written, with the spaces before it."""
        if line and self._next < len(self._comments):
            comment = self._comments[self._next]
            if comment.span.line == line and not comment.own_line and (before is None or _start(comment) < before):
                self._next += 1
                return f"  {comment.text}"
        return ""

    def sequence(
        self, nodes: Sequence[_N], end: _At, pad: str, write: Callable[[_N, str], None], *, between_items: bool = False
    ) -> None:
        """Nodes and comments one after another, with at most one of the blank lines that stood between them."""
        last = 0  # the line of the text on which what was written last ended
        for node in nodes:
            for comment in self._take(_start(node)):
                self._blank(last, comment.span.line)
                self.lines.append(pad + comment.text)
                last = comment.span.line
            made = not node.span.line and between_items and not isinstance(node, ast.DimItem)
            if made and self.lines:
                self.lines.append("")
            self._blank(last, node.span.line)
            write(node, pad)
            last = node.span.end_line
        for comment in self._take(end):
            self._blank(last, comment.span.line)
            self.lines.append(pad + comment.text)
            last = comment.span.line

    def _blank(self, last: int, line: int) -> None:
        if last and line > last + 1:
            self.lines.append("")

    def _hoist(self, comments: Sequence[ast.Comment], pad: str) -> None:
        """Comments within a statement that have no place there stand above it."""
        self.lines.extend(pad + comment.text for comment in comments)

    # ---- top level

    def item(self, item: ast.Item, pad: str) -> None:
        match item:
            case ast.MeshItem():
                self._line(item, " ".join(["mesh", *(f"{a.name}={a.size}" for a in item.axes)]), pad)
            case ast.ChipItem():
                self._line(item, f"chip {item.name}", pad)
            case ast.DimItem():
                self._line(item, " ".join(["dim", *(dim_text(d) for d in item.dims)]), pad)
            case ast.WeightsItem():
                self._body(item, ["weights {"], item.brace, item.decls, pad, self._decl_line)
            case ast.StateItem():
                self._body(item, ["state {"], item.brace, item.decls, pad, self._decl_line)
            case ast.FuncItem():
                self._func(item)
            case _:
                raise TypeError(f"{type(item).__name__} cannot stand at the top of a program")

    def _line(self, node: ast.Node, text: str, pad: str) -> None:
        self._hoist(self._take(_end(node)), pad)
        self.lines.append(pad + text + self._behind(node.span.end_line))

    def _decl_line(self, decl: ast.Decl, pad: str) -> None:
        self._line(decl, decl_text(decl), pad)

    def _func(self, func: ast.FuncItem) -> None:
        overrides = f"[{' '.join(dim_text(d) for d in func.overrides)}]" if func.overrides else ""
        results = ", ".join(format_type(result) for result in func.results)
        tail = f") -> {results if len(func.results) == 1 else f'({results})'} {{"
        lines = self._list_head(func, f"func {func.name}{overrides}(", func.params, decl_text, tail, "")
        self._body(func, lines, func.brace, func.body, "", self.stmt)

    def _list_head(
        self, owner: ast.Node, head: str, nodes: Sequence[_N], text: Callable[[_N], str], tail: str, pad: str
    ) -> list[str]:
        """The head of a func or a loop, up to its `{`."""
        brace = owner.brace if isinstance(owner, ast.FuncItem | ast.LoopStmt) else owner.span
        comments = self._take((brace.line, brace.column))
        flat = f"{pad}{head}{', '.join(text(node) for node in nodes)}{tail}"
        inside = [c for c in comments if nodes and _start(nodes[0])[0]]
        if not inside and (len(flat) <= WIDTH or not nodes):
            self._hoist(comments, pad)
            return [flat]

        def lay(node: ast.Node, within: Sequence[ast.Comment]) -> _Laid:
            if isinstance(node, ast.CarrySyntax):
                start = f"{target_text(node.target)} = "
                inner = pad + _INDENT
                laid = _lay(node.value, SUM, inner, len(inner) + len(start), 1, within)
                return _Laid(_wrapped(start, laid.lines, ""), laid.homeless)
            return _Laid([next(text(n) for n in nodes if n is node)], list(within))

        entries, rest = _weave(nodes, comments, lay)
        return _broken(pad + head, entries, rest, tail, pad)

    def _body(
        self,
        owner: ast.Node,
        head: Sequence[str],
        brace: ast.Span,
        nodes: Sequence[_N],
        pad: str,
        write: Callable[[_N, str], None],
    ) -> None:
        """A block: its head, what it holds one level in, and the closing brace."""
        self._hoist(self._take((brace.line, brace.column)), pad)
        self.lines.extend(head)
        inner_end = (owner.span.end_line, owner.span.end_column - 1)
        self.lines[-1] += self._behind(brace.line, _start(nodes[0]) if nodes else inner_end)
        if not nodes and not self._pending(inner_end) and self.lines[-1].endswith("{"):
            self.lines[-1] += "}"
        else:
            self.sequence(nodes, inner_end, pad + _INDENT, write)
            self.lines.append(pad + "}")
        self.lines[-1] += self._behind(owner.span.end_line)

    def _pending(self, before: _At) -> bool:
        return self._next < len(self._comments) and _start(self._comments[self._next]) < before

    # ---- statements

    def stmt(self, stmt: ast.Stmt, pad: str) -> None:
        match stmt:
            case ast.LetStmt():
                self._assign(stmt, f"{', '.join(target_text(t) for t in stmt.targets)} = ", (stmt.value,), pad)
            case ast.SetStmt():
                self._assign(stmt, f"set {stmt.name} = ", (stmt.value,), pad)
            case ast.FreeStmt():
                self._line(stmt, f"free {', '.join(name.name for name in stmt.names)}", pad)
            case ast.NextStmt():
                self._assign(stmt, "next ", stmt.values, pad)
            case ast.ReturnStmt():
                self._assign(stmt, "return " if stmt.values else "return", stmt.values, pad)
            case ast.LoopStmt():
                targets = f"{', '.join(target_text(t) for t in stmt.targets)} = " if stmt.targets else ""
                index = f" as {stmt.index}" if stmt.index else ""
                head = f"{targets}loop[{stmt.dim}{index}]"
                if stmt.carries:
                    lines = self._list_head(stmt, f"{head}(", stmt.carries, _carry, ") {", pad)
                else:
                    lines = [f"{pad}{head} {{"]
                self._body(stmt, lines, stmt.brace, stmt.body, pad, self.stmt)
            case _:
                raise TypeError(f"{type(stmt).__name__} cannot stand in a func")

    def _assign(self, stmt: ast.Stmt, head: str, values: Sequence[ast.Expr], pad: str) -> None:
        comments = self._take(_end(stmt))
        lines = [pad + head]
        homeless = [c for c in comments if not any(_start(v) < _start(c) < _end(v) for v in values)]
        for number, value in enumerate(values):
            comma = ", " if number < len(values) - 1 else ""
            within = [c for c in comments if _start(value) < _start(c) < _end(value)]
            laid = _lay(value, SUM, pad, len(lines[-1]), len(comma), within)
            lines[-1] += laid.lines[0]
            lines.extend(laid.lines[1:])
            lines[-1] += comma
            homeless.extend(laid.homeless)
        self._hoist(sorted(homeless, key=_start), pad)
        self.lines.extend(lines)
        self.lines[-1] += self._behind(stmt.span.end_line)


def _carry(carry: ast.CarrySyntax) -> str:
    return f"{target_text(carry.target)} = {format_expr(carry.value)}"
