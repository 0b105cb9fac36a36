"""Syntax tree to canonical text: one way to write each program, with its comments and blank lines kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from shardwright.ir import syntax as ast

WIDTH = 100
"""Columns beyond which calls, parameters and carried values are broken onto lines of their own."""

_INDENT = "  "
_N = TypeVar("_N", bound=ast.Node)
_SUM, _PRODUCT, _CONTRACTION, _UNARY = 1, 2, 3, 4
_PRECEDENCE = {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT}


def format_module(module: ast.Module) -> str:
    """The canonical text of a program. It parses to an equal module, and formatting it again changes nothing."""
    printer = _Printer(list(module.comments))
    end = max([c.span.line for c in module.comments] + [module.span.end_line, 1 << 30])
    printer.sequence(module.items, (end, 0), "", printer.item, between_items=True)
    return "\n".join(printer.lines) + "\n"


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


def format_row(row: ast.Row) -> str:
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
    return text


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
    return _expr(expr, _SUM)


def _level(expr: ast.Expr) -> int:
    """How tightly the outermost operator of an expression binds."""
    match expr:
        case ast.BinaryExpr():
            return _PRECEDENCE[expr.operator]
        case ast.ContractExpr():
            return _CONTRACTION
        case ast.NegExpr():
            return _UNARY
        case _:
            return _UNARY + 1


def _expr(expr: ast.Expr, at_least: int) -> str:
    text = _bare(expr)
    return f"({text})" if _level(expr) < at_least else text


def _bare(expr: ast.Expr) -> str:
    match expr:
        case ast.NameExpr():
            return expr.name
        case ast.NumberExpr():
            return expr.text
        case ast.NegExpr():
            return f"-{_expr(expr.operand, _UNARY)}"
        case ast.BinaryExpr():
            level = _PRECEDENCE[expr.operator]
            return f"{_expr(expr.left, level)} {expr.operator} {_expr(expr.right, level + 1)}"
        case ast.ContractExpr():
            return f"{_expr(expr.left, _UNARY)} {_at(expr)} {_expr(expr.right, _UNARY)}"
        case ast.CallExpr():
            args = "" if expr.args is None else f"({', '.join(_expr(arg, _SUM) for arg in expr.args)})"
            return call_head(expr) + args
        case _:
            raise TypeError(f"{type(expr).__name__} is not an expression")


def _at(expr: ast.ContractExpr) -> str:
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
        case ast.IntStatic():
            return str(static.value)
        case ast.ArrowStatic(left, right):
            source = _words(left) if isinstance(left, ast.WordStatic) else _dims(left, bare=False)
            return f"{source} -> {_dims(right, bare=True)}"
        case ast.MoveStatic(axes, source, target):
            return f"{_words(axes)}: {_dims(source, bare=True)} -> {_dims(target, bare=True)}"
        case ast.RangeStatic(dim, start, stop):
            return f"{dim} {start}:{stop}"
        case ast.OptionStatic(name, value):
            return f"{name}={_bare(value) if isinstance(value, ast.Expr) else _static(value)}"
        case _:
            raise TypeError(f"{type(static).__name__} cannot stand between square brackets")


def _size(size: ast.SizeExpr) -> str:
    return "+".join("*".join(str(factor) for factor in term) for term in size.terms)


def _dim_decl(decl: ast.DimDecl) -> str:
    order = "" if decl.order is None else "".join([" order", *(f" {digit}" for digit in decl.order)])
    return f"{decl.name}={_size(decl.size)}{order}"


def _target(target: ast.Target) -> str:
    if target.type is None:
        return target.name
    return f"{target.name}{' :~' if target.found else ':'} {format_type(target.type)}"


def _decl(decl: ast.Decl) -> str:
    return f"{decl.name}: {format_type(decl.type)}"


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
    flat = _expr(expr, at_least)
    if not comments and used + len(flat) + after <= WIDTH:
        return _Laid([flat], [])
    if _level(expr) < at_least:
        laid = _lay(expr, _SUM, pad, used + 1, after + 1, comments)
        return _Laid(_wrapped("(", laid.lines, ")"), laid.homeless)
    match expr:
        case ast.CallExpr() if expr.args:

            def lay(node: ast.Node, within: Sequence[ast.Comment]) -> _Laid:
                assert isinstance(node, ast.Expr), "the arguments of a call are expressions"
                return _lay(node, _SUM, pad + _INDENT, len(pad) + len(_INDENT), 1, within)

            entries, rest = _weave(expr.args, comments, lay)
            return _Laid(_broken(f"{call_head(expr)}(", entries, rest, ")", pad), [])
        case ast.NegExpr():
            laid = _lay(expr.operand, _UNARY, pad, used + 1, after, comments)
            return _Laid(_wrapped("-", laid.lines, ""), laid.homeless)
        case ast.BinaryExpr():
            level = _PRECEDENCE[expr.operator]
            return _lay_pair(expr.left, level, expr.operator, expr.right, level + 1, pad, used, after, comments)
        case ast.ContractExpr():
            return _lay_pair(expr.left, _UNARY, _at(expr), expr.right, _UNARY, pad, used, after, comments)
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
    flat = _expr(left, left_least)
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
    """Whether there is a call with operands to break in an expression."""
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
            case ast.DimItem():
                self._line(item, " ".join(["dim", *(_dim_decl(d) for d in item.dims)]), pad)
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
        self._line(decl, _decl(decl), pad)

    def _func(self, func: ast.FuncItem) -> None:
        overrides = f"[{' '.join(_dim_decl(d) for d in func.overrides)}]" if func.overrides else ""
        results = ", ".join(format_type(result) for result in func.results)
        tail = f") -> {results if len(func.results) == 1 else f'({results})'} {{"
        lines = self._list_head(func, f"func {func.name}{overrides}(", func.params, _decl, tail, "")
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
            if isinstance(node, ast.Carry):
                start = f"{_target(node.target)} = "
                inner = pad + _INDENT
                laid = _lay(node.value, _SUM, inner, len(inner) + len(start), 1, within)
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
                self._assign(stmt, f"{', '.join(_target(t) for t in stmt.targets)} = ", (stmt.value,), pad)
            case ast.SetStmt():
                self._assign(stmt, f"set {stmt.name} = ", (stmt.value,), pad)
            case ast.NextStmt():
                self._assign(stmt, "next ", stmt.values, pad)
            case ast.ReturnStmt():
                self._assign(stmt, "return " if stmt.values else "return", stmt.values, pad)
            case ast.LoopStmt():
                targets = f"{', '.join(_target(t) for t in stmt.targets)} = " if stmt.targets else ""
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
            laid = _lay(value, _SUM, pad, len(lines[-1]), len(comma), within)
            lines[-1] += laid.lines[0]
            lines.extend(laid.lines[1:])
            lines[-1] += comma
            homeless.extend(laid.homeless)
        self._hoist(sorted(homeless, key=_start), pad)
        self.lines.extend(lines)
        self.lines[-1] += self._behind(stmt.span.end_line)


def _carry(carry: ast.Carry) -> str:
    return f"{_target(carry.target)} = {format_expr(carry.value)}"
