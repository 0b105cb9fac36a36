"""The actions of the grammar: each turns what a rule matched into a node of the syntax tree."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from shardwright.ir.diagnostics import Span, fault, nearest
from shardwright.ir.names import TIERS, check_name, clip
from shardwright.ir.text import syntax as ast

Children = list[Any]
"""What a rule matched: tokens (strings with a `type` and a place) and nodes made by other rules."""

_N = TypeVar("_N")

_DIM = re.compile(r"([A-Z][0-9]*)(?:_(\?|\{[^}]*\}|(?:[a-z][0-9]*)+))?")
_LETTERS = re.compile(r"(?:[a-z][0-9]*)+")
_LETTER = re.compile(r"[a-z][0-9]*")
_WORD = re.compile(r"[a-z][a-z0-9_]*")
_PARTIAL = re.compile(r"\( *partial(sum|max|softmax) *- *(.*?) *\)", re.DOTALL)
_MOST_DIGITS = 15


def span_of(piece: Any) -> Span:
    """Where a token or a node stands."""
    if isinstance(piece, str):
        token: Any = piece
        return Span(token.line, token.column, token.end_line, token.end_column)
    return piece.span


def _across(children: Children) -> Span:
    if len(children) == 1:
        return span_of(children[0])
    first, last = next(filter(_is_seen, children)), next(filter(_is_seen, reversed(children)))
    return span_of(first).to(span_of(last))


def _is_seen(child: Any) -> bool:
    return not isinstance(child, str) or _kind(child) != "_NL"


def _kind(token: Any) -> str:
    return token.type


def _of(children: Children, cls: type[_N]) -> tuple[_N, ...]:
    return tuple(child for child in children if isinstance(child, cls))


def _one(children: Children, cls: type[_N]) -> _N | None:
    return next(iter(_of(children, cls)), None)


def _tokens(children: Children, *kinds: str) -> list[Any]:
    return [child for child in children if isinstance(child, str) and _kind(child) in kinds]


@dataclass(frozen=True)
class _Block:
    """Statements between braces."""

    brace: Span
    stmts: tuple[ast.Stmt, ...]
    span: Span


@dataclass(frozen=True)
class _List:
    """A bracketed list on its way into the node that owns it."""

    entries: tuple[Any, ...]
    span: Span


def _whole(token: Any) -> int:
    digits = str(token)
    if len(digits.lstrip("0")) > _MOST_DIGITS:
        message = f"an integer of {len(digits)} digits is too large"
        raise fault("too-large", message, span_of(token), f"integers have at most {_MOST_DIGITS} digits")
    return int(digits)


def _plain_dim(token: Any) -> str:
    """A token that names exactly one dimension, without axes."""
    text = str(token)
    if _kind(token) == "DIMS" and re.fullmatch(r"[A-Z][0-9]*", text) is None:
        raise fault(
            "one-dimension",
            f"`{clip(text)}` is not one dimension",
            span_of(token),
            "name a single dimension here, without axes: a capital letter and digits, or a lower-case word",
        )
    return text


def _axis_words(text: str, span: Span) -> tuple[str, ...]:
    """The axes between braces, `data, model`."""
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if _WORD.fullmatch(word) is None:
            wrong = f"`{clip(word)}` is not a mesh axis" if word else "a mesh axis is missing between the braces"
            raise fault("bad-axes", wrong, span, "write axes as in `E_xyz`, or as in `[embed_{data,model}]`")
    return tuple(sorted(words))


def _axes(text: str, span: Span) -> tuple[str, ...] | None:
    """Axes as written after a capital letter or a partial sum: `?`, `xyz`, `{xyz}` or `{data,model}`."""
    if text == "?":
        return None
    inner = text.strip("{}")
    if _LETTERS.fullmatch(inner):
        return tuple(sorted(_LETTER.findall(inner)))
    return _axis_words(inner, span)


def compact_dims(token: Any) -> tuple[ast.RowDim, ...]:
    """The dimensions of `BLE_xyz`."""
    start = span_of(token)
    found: list[ast.RowDim] = []
    for match in _DIM.finditer(str(token).removesuffix("?") if _is_open(str(token)) else str(token)):
        span = Span(start.line, start.column + match.start(), start.line, start.column + match.end())
        axes = _axes(match[2], span) if match[2] is not None else ()
        found.append(ast.RowDim(match[1], axes, span=span))
    return tuple(found)


def _is_open(text: str) -> bool:
    """Tells whether the last `?` stands for the whole layout, not for the axes of the last dimension."""
    return text.endswith("?") and not text.endswith("_?")


def _static_dims(piece: Any) -> ast.DimsStatic:
    """Dimensions from a token or a bracketed list."""
    if not isinstance(piece, str):
        return piece if isinstance(piece, ast.DimsStatic) else ast.DimsStatic(piece.entries, span=piece.span)
    token: Any = piece
    span = span_of(token)
    if _kind(token) == "NAME":
        return ast.DimsStatic((ast.RowDim(str(token), span=span),), span=span)
    if _is_open(str(token)):
        raise fault("bad-layout", "`?` cannot stand here", span, "name the dimensions in full")
    return ast.DimsStatic(compact_dims(token), span=span)


def _word(token: Any) -> ast.WordStatic:
    return ast.WordStatic((str(token),), span=span_of(token))


def _checked(token: Any) -> str:
    return check_name(str(token), span_of(token))


class TreeBuilder:
    """One method for each rule of `grammar.lark`, called with what the rule matched, innermost first."""

    # ---- top level

    def module(self, children: Children) -> ast.Module:
        items = _of(children, ast.Item)
        return ast.Module(items, span=items[0].span.to(items[-1].span)) if items else ast.Module(())

    def lone_type(self, children: Children) -> ast.TypeExpr:
        return children[0]

    def mesh(self, children: Children) -> ast.MeshItem:
        return ast.MeshItem(_of(children, ast.MeshAxis), span=_across(children))

    def chip(self, children: Children) -> ast.ChipItem:
        return ast.ChipItem(str(children[0]).split()[1], span=_across(children))

    def axis(self, children: Children) -> ast.MeshAxis:
        return ast.MeshAxis(str(children[0]), _whole(children[2]), span=_across(children))

    def dims(self, children: Children) -> ast.DimItem:
        return ast.DimItem(tuple(_with_orders(children)), span=_across(children))

    def digit(self, children: Children) -> _List:
        (token,) = children
        entry = str(token) if _kind(token) == "NAME" else _whole(token)
        return _List((entry,), span_of(token))

    def sized(self, children: Children) -> ast.DimDecl:
        return ast.DimDecl(_plain_dim(children[0]), children[2], span=_across(children))

    def size(self, children: Children) -> ast.SizeExpr:
        return ast.SizeExpr(tuple(p.entries for p in _of(children, _List)), span=_across(children))

    def product(self, children: Children) -> _List:
        factors = _tokens(children, "INT", "DIMS", "NAME")
        return _List(tuple(_whole(f) if _kind(f) == "INT" else _plain_dim(f) for f in factors), _across(children))

    def decl(self, children: Children) -> ast.Decl:
        return ast.Decl(_checked(children[0]), children[2], span=_across(children))

    def weights(self, children: Children) -> ast.WeightsItem:
        return ast.WeightsItem(_of(children, ast.Decl), brace=span_of(children[1]), span=_across(children))

    def state(self, children: Children) -> ast.StateItem:
        return ast.StateItem(_of(children, ast.Decl), brace=span_of(children[1]), span=_across(children))

    def func(self, children: Children) -> ast.FuncItem:
        block: _Block = children[-1]
        *heads, results = _of(children, _List)
        return ast.FuncItem(
            _checked(children[1]),
            heads[0].entries if len(heads) == 2 else (),
            heads[-1].entries,
            results.entries,
            block.stmts,
            brace=block.brace,
            span=_across(children),
        )

    def overrides(self, children: Children) -> _List:
        return _List(_of(children, ast.DimDecl), _across(children))

    def params(self, children: Children) -> _List:
        return _List(_of(children, ast.Decl), _across(children))

    def results(self, children: Children) -> _List:
        return _List(_of(children, ast.TypeExpr), _across(children))

    # ---- types

    def type(self, children: Children) -> ast.TypeExpr:
        dtype = _tokens(children, "DTYPE")
        row = _one(children, ast.LayoutRow)
        if dtype and row is not None and not row.dims and not row.open:
            row = None  # `f32 []` is the scalar `f32`
        return ast.TypeExpr(
            str(dtype[0]) if dtype else None,
            row,
            _one(children, ast.PartialExpr),
            _one(children, ast.PlacementExpr),
            bool(_tokens(children, "FLIGHT")),
            span=_across(children),
        )

    def compact_row(self, children: Children) -> ast.LayoutRow:
        (token,) = children
        return ast.LayoutRow(compact_dims(token), _is_open(str(token)), span=span_of(token))

    def long_row(self, children: Children) -> ast.LayoutRow:
        dims = tuple(dim for piece in _of(children, _List) for dim in piece.entries)
        return ast.LayoutRow(dims, bool(_tokens(children, "HOLE")), span=_across(children))

    def longdim(self, children: Children) -> _List:
        first, span = children[0], _across(children)
        if _kind(first) == "DIMS":
            if _is_open(str(first)):
                raise fault("bad-layout", "`?` cannot stand here", span, "write `[batch len]?` or `[batch_? len]`")
            return _List(_long_capitals(first), span)
        axes: tuple[str, ...] | None = ()
        if len(children) == 2:
            text = str(children[1])[1:]
            axes = None if text == "?" else _axis_words(text.strip("{}"), span_of(children[1]))
        return _List((ast.RowDim(str(first), axes, span=span),), span)

    def partial(self, children: Children) -> ast.PartialExpr:
        (token,) = children
        match = _PARTIAL.fullmatch(str(token))
        assert match is not None, "the token is made by the same pattern"
        span, text = span_of(token), match[2]
        axes = _axis_words(text.strip("{}"), span) if text.startswith("{") else _axes(text, span)
        return ast.PartialExpr(match[1], axes, span=span)

    def placement(self, children: Children) -> ast.PlacementExpr:
        span = _across(children)
        if _tokens(children, "HOLE"):
            return ast.PlacementExpr(None, span=span)
        along = next((i for i, c in enumerate(children) if isinstance(c, str) and _kind(c) == "ALONG"), len(children))
        tiers = _tokens(children[:along], "NAME")
        for tier in tiers:
            if str(tier) not in TIERS:
                what, known = f"`{clip(tier)}` is not a memory", "memories are `device`, `host` and `disk`"
                raise fault("bad-placement", what, span_of(tier), nearest(str(tier), TIERS), known)
        percents = _tokens(children, "PERCENT")
        shares = [float(p[:-1]) for p in percents] if percents else [100.0]
        dim = _plain_dim(children[along + 1]) if along < len(children) else None
        pairs = tuple((str(tier), share) for tier, share in zip(tiers, shares, strict=True))
        return ast.PlacementExpr(pairs, dim, span=span)

    # ---- statements

    def block(self, children: Children) -> _Block:
        return _Block(span_of(children[0]), _of(children, ast.Stmt), _across(children))

    def target(self, children: Children) -> ast.AssignedName:
        found = bool(_tokens(children, "FOUND"))
        written = children[2] if len(children) == 3 else None
        return ast.AssignedName(_checked(children[0]), written, found, span=_across(children))

    def let(self, children: Children) -> ast.LetStmt:
        return ast.LetStmt(_of(children, ast.AssignedName), children[-1], span=_across(children))

    def set(self, children: Children) -> ast.SetStmt:
        return ast.SetStmt(_checked(children[1]), children[3], span=_across(children))

    def free(self, children: Children) -> ast.FreeStmt:
        names = [ast.NameExpr(str(token), span=span_of(token)) for token in _tokens(children, "NAME")]
        return ast.FreeStmt(tuple(names), span=_across(children))

    def next(self, children: Children) -> ast.NextStmt:
        return ast.NextStmt(_of(children, ast.Expr), span=_across(children))

    def return_(self, children: Children) -> ast.ReturnStmt:
        return ast.ReturnStmt(_of(children, ast.Expr), span=_across(children))

    def carry(self, children: Children) -> ast.CarrySyntax:
        return ast.CarrySyntax(children[0], children[2], span=_across(children))

    def loop(self, children: Children) -> ast.LoopStmt:
        bracket = next(i for i, c in enumerate(children) if isinstance(c, str) and _kind(c) == "LSQB")
        index = next(
            (_checked(children[i + 1]) for i, c in enumerate(children) if isinstance(c, str) and _kind(c) == "AS"), None
        )
        block: _Block = children[-1]
        return ast.LoopStmt(
            _of(children, ast.AssignedName),
            _plain_dim(children[bracket + 1]),
            index,
            _of(children, ast.CarrySyntax),
            block.stmts,
            brace=block.brace,
            span=_across(children),
        )

    # ---- expressions

    def binary(self, children: Children) -> ast.BinaryExpr:
        left, operator, right = children
        return ast.BinaryExpr(str(operator), left, right, span=_across(children))

    def contract(self, children: Children) -> ast.ContractExpr:
        dims = _of(children, _List)
        return ast.ContractExpr(children[0], children[-1], dims[0].entries if dims else None, span=_across(children))

    def contracted(self, children: Children) -> _List:
        dims = [dim for token in _tokens(children, "DIMS", "NAME") for dim in _static_dims(token).dims]
        return _List(tuple(dims), _across(children))

    def negative(self, children: Children) -> ast.NegExpr:
        return ast.NegExpr(children[1], span=_across(children))

    negative_number = negative

    def bracketed(self, children: Children) -> ast.Expr:
        return children[1]

    def name(self, children: Children) -> ast.NameExpr:
        (token,) = children
        return ast.NameExpr(str(token), span=span_of(token))

    def number(self, children: Children) -> ast.NumberExpr:
        (token,) = children
        if _kind(token) == "INT":
            _whole(token)
        elif _kind(token) == "NUMBER" and (len(token) > 40 or float(token) == float("inf")):
            raise fault("too-large", "this number is too large", span_of(token), "write `inf` for infinity")
        return ast.NumberExpr(str(token), span=span_of(token))

    def call(self, children: Children) -> ast.CallExpr:
        name = children[0]
        called = bool(_tokens(children, "LPAR"))
        if not called and str(name) != "size":
            end = span_of(children[-1])
            raise fault(
                "no-operands",
                f"the operands of `{name}` are missing",
                Span(end.end_line, end.end_column - 1, end.end_line, end.end_column),
                f"write `{name}[...](x)`; only `size[D]` goes without round brackets",
            )
        args = _of(children, ast.Expr) if called else None
        named = [isinstance(arg, ast.KeywordExpr) for arg in args or ()]
        if args and named != sorted(named):
            late = args[len(named) - 1 - named[::-1].index(False)]
            raise fault(
                "syntax", "an operand without a name stands after one with a name", late.span, "move it forward"
            )
        return ast.CallExpr(str(name), _of(children, ast.Static), args, span=_across(children))

    def keyword(self, children: Children) -> ast.KeywordExpr:
        return ast.KeywordExpr(str(children[0]), children[-1], span=_across(children))

    # ---- statics

    def dims_static(self, children: Children) -> ast.DimsStatic:
        return _static_dims(children[0])

    def long_dims(self, children: Children) -> ast.DimsStatic:
        dims = tuple(dim for piece in _of(children, _List) for dim in piece.entries)
        return ast.DimsStatic(dims, span=_across(children))

    def right_dims(self, children: Children) -> ast.DimsStatic:
        return _static_dims(children[0])

    def word(self, children: Children) -> ast.WordStatic:
        return _word(children[0])

    def braced(self, children: Children) -> ast.WordStatic:
        words = tuple(str(token) for token in _tokens(children, "NAME"))
        return ast.WordStatic(words, braces=True, span=_across(children))

    def signed(self, children: Children) -> _List:
        value = _whole(children[-1])
        return _List((-value if len(children) == 2 else value,), _across(children))

    def int_static(self, children: Children) -> ast.IntStatic:
        (piece,) = children
        return ast.IntStatic(piece.entries[0], span=piece.span)

    def range(self, children: Children) -> ast.RangeStatic:
        dim, start, _, stop = children
        return ast.RangeStatic(_plain_dim(dim), _whole(start), _whole(stop), span=_across(children))

    def arrow(self, children: Children) -> ast.ArrowStatic:
        left, _, right = children
        return ast.ArrowStatic(_left(left), right, span=_across(children))

    def move(self, children: Children) -> ast.MoveStatic:
        axes, _, source, _, target = children
        words = _word(axes) if isinstance(axes, str) else axes
        return ast.MoveStatic(words, source, target, span=_across(children))

    def relayout(self, children: Children) -> ast.RelayoutStatic:
        dim, _, before, _, after = children
        left = _static_dims(dim) if isinstance(dim, str) else dim
        return ast.RelayoutStatic(left, before, after, span=_across(children))

    def no_axes(self, children: Children) -> ast.WordStatic:
        return ast.WordStatic((), braces=True, span=_across(children))

    def option(self, children: Children) -> ast.OptionStatic:
        name, _, value = children
        if isinstance(value, str):
            token: Any = value
            value = ast.TextStatic(token[1:-1], span=span_of(token)) if _kind(token) == "TEXT" else _static_dims(token)
        return ast.OptionStatic(str(name), value, span=_across(children))


def _left(piece: Any) -> ast.DimsStatic | ast.WordStatic:
    """The word left of an arrow: a bare word may be a dimension or axes."""
    if isinstance(piece, str):
        token: Any = piece
        return _word(token) if _kind(token) == "NAME" else _static_dims(token)
    return piece


def _long_capitals(token: Any) -> tuple[ast.RowDim, ...]:
    """Capital dimensions within the long form, where braces hold whole words: `E_{data}` is one axis."""
    start = span_of(token)
    dims: list[ast.RowDim] = []
    for match, dim in zip(_DIM.finditer(str(token)), compact_dims(token), strict=True):
        if match[2] is not None and match[2].startswith("{"):
            span = Span(start.line, start.column + match.start(), start.line, start.column + match.end())
            dims.append(ast.RowDim(dim.name, _axis_words(match[2].strip("{}"), span), span=span))
        else:
            dims.append(dim)
    return tuple(dims)


def _with_orders(children: Sequence[Any]) -> Iterator[ast.DimDecl]:
    """Sizes joined with the digits that follow each `order`."""
    decl: ast.DimDecl | None = None
    for child in children:
        if isinstance(child, ast.DimDecl):
            if decl is not None:
                yield decl
            decl = child
        elif isinstance(child, str) and decl is not None and _kind(child) == "ORDER":
            decl = ast.DimDecl(decl.name, decl.size, (), span=decl.span.to(span_of(child)))
        elif isinstance(child, _List) and decl is not None:
            order = (decl.order or ()) + child.entries
            decl = ast.DimDecl(decl.name, decl.size, order, span=decl.span.to(child.span))
    if decl is not None:
        yield decl
