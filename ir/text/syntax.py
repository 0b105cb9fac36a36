"""The syntax tree of a `.shard` file: what was written, with the place of every piece.

The parser makes it, the formatter prints it, `ir.elaboration.elaborate` gives it meaning, and `ir.text.unparse` makes
one of a compiled program, so that printing has a single path.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from shardwright.ir.diagnostics import NOWHERE, Span


@dataclass(frozen=True, kw_only=True)
class Node:
    """Anything written in a program. `span` does not take part in equality."""

    span: Span = field(default=NOWHERE, compare=False, repr=False)


# ---------------------------------------------------------------- types


@dataclass(frozen=True)
class RowDim(Node):
    """One dimension of a layout: `E`, `E_xy` or `E_?`. `axes` is None for `_?`."""

    name: str
    axes: tuple[str, ...] | None = ()


@dataclass(frozen=True)
class LayoutRow(Node):
    """`BLE_xyz`, `[batch embed_{data,model}]`, or nothing at all (a scalar). `open` is the trailing `?`."""

    dims: tuple[RowDim, ...]
    open: bool = False


@dataclass(frozen=True)
class PartialExpr(Node):
    """`(partialsum-xy)`, `(partialmax-x)`; `axes` is None for `(partialsum-?)`. `kind`: "sum", "max", "softmax"."""

    kind: str
    axes: tuple[str, ...] | None


@dataclass(frozen=True)
class PlacementExpr(Node):
    """`on host`, `on device 20% host 80% along F`, `on ?` (`shares` is None). Shares are percentages."""

    shares: tuple[tuple[str, float], ...] | None
    along: str | None = None


@dataclass(frozen=True)
class TypeExpr(Node):
    """A type as written. `dtype` is None where none was written; `row` is None for a bare dtype (a scalar)."""

    dtype: str | None
    row: LayoutRow | None
    partial: PartialExpr | None = None
    placement: PlacementExpr | None = None
    in_flight: bool = False


# ---------------------------------------------------------------- expressions


@dataclass(frozen=True)
class Expr(Node):
    """An expression."""


@dataclass(frozen=True)
class NameExpr(Expr):
    name: str


@dataclass(frozen=True)
class NumberExpr(Expr):
    """A literal; `text` as written, so that printing keeps `1e-5`. `inf` is a number."""

    text: str

    @property
    def value(self) -> int | float:
        return int(self.text) if self.text.isdigit() else float(self.text)


@dataclass(frozen=True)
class NegExpr(Expr):
    operand: Expr


@dataclass(frozen=True)
class BinaryExpr(Expr):
    """`operator` is one of `+ - * /`."""

    operator: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class ContractExpr(Expr):
    """`a @ b` (`dims` None) or `a @[EF] b`."""

    left: Expr
    right: Expr
    dims: tuple[RowDim, ...] | None = None


@dataclass(frozen=True)
class CallExpr(Expr):
    """`name[statics](args)`; `size[D]` is a call without brackets of its own (`args` None)."""

    name: str
    statics: tuple[Static, ...]
    args: tuple[Expr, ...] | None


@dataclass(frozen=True)
class KeywordExpr(Expr):
    """`pos=p`, an operand that a call may do without."""

    name: str
    value: Expr


@dataclass(frozen=True)
class Static(Node):
    """Something between the square brackets of an operation."""


@dataclass(frozen=True)
class DimsStatic(Static):
    """Dimensions: the `T` of `softmax[T]`, the `BL` of `gumbel[BL]`, `[len]` in brackets.

    Where only dimensions can stand (right of an arrow), a bare lower-case word is one too.
    """

    dims: tuple[RowDim, ...]


@dataclass(frozen=True)
class WordStatic(Static):
    """A bare lower-case word or `{a,b}`: the axes `yz` of `all_gather[yz]`, a tier, a dtype.

    Which of these it is depends on the operation; `words` has one entry unless braces were written, and none for `{}`.
    """

    words: tuple[str, ...]
    braces: bool = False


@dataclass(frozen=True)
class TextStatic(Static):
    """`'{"axis": 1}'`, what stands between the quotes."""

    text: str


@dataclass(frozen=True)
class IntStatic(Static):
    value: int


@dataclass(frozen=True)
class ArrowStatic(Static):
    """`H -> KG` between dimensions, `x -> F` from axes to a dimension."""

    left: DimsStatic | WordStatic
    right: DimsStatic


@dataclass(frozen=True)
class MoveStatic(Static):
    """`x: H -> B` of an all-to-all."""

    axes: WordStatic
    source: DimsStatic
    target: DimsStatic


@dataclass(frozen=True)
class RelayoutStatic(Static):
    """`E: y -> x` of a permute; `{}` where there are no axes."""

    dim: DimsStatic
    before: WordStatic
    after: WordStatic


@dataclass(frozen=True)
class RangeStatic(Static):
    """`E 0:32`."""

    dim: str
    start: int
    stop: int


@dataclass(frozen=True)
class OptionStatic(Static):
    """`eps=1e-5`, `style=neox`, `causal=L`."""

    name: str
    value: NumberExpr | NegExpr | WordStatic | DimsStatic | TextStatic


# ---------------------------------------------------------------- statements


@dataclass(frozen=True)
class AssignedName(Node):
    """The left of `=`: a name with an optional type. `found` is `:~`."""

    name: str
    type: TypeExpr | None = None
    found: bool = False


@dataclass(frozen=True)
class Stmt(Node):
    """A statement."""


@dataclass(frozen=True)
class LetStmt(Stmt):
    targets: tuple[AssignedName, ...]
    value: Expr


@dataclass(frozen=True)
class SetStmt(Stmt):
    """`set k = ...`: a new version of a state value."""

    name: str
    value: Expr


@dataclass(frozen=True)
class FreeStmt(Stmt):
    """`free w_here, k_here`: these values are used no more."""

    names: tuple[NameExpr, ...]


@dataclass(frozen=True)
class CarrySyntax(Node):
    """`h: BLE_x = x` in the head of a loop."""

    target: AssignedName
    value: Expr


@dataclass(frozen=True)
class LoopStmt(Stmt):
    """`a, b = loop[N as i](h = x) { ... }`. `targets` may be empty; `brace` is the place of the `{`."""

    targets: tuple[AssignedName, ...]
    dim: str
    index: str | None
    carries: tuple[CarrySyntax, ...]
    body: tuple[Stmt, ...]
    brace: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class NextStmt(Stmt):
    values: tuple[Expr, ...]


@dataclass(frozen=True)
class ReturnStmt(Stmt):
    values: tuple[Expr, ...]


# ---------------------------------------------------------------- top level


@dataclass(frozen=True)
class Item(Node):
    """Anything at the top level of a file."""


@dataclass(frozen=True)
class MeshItem(Item):
    """`mesh x=4 y=4`: axes with sizes and the spans of their names."""

    axes: tuple[MeshAxis, ...]


@dataclass(frozen=True)
class MeshAxis(Node):
    name: str
    size: int


@dataclass(frozen=True)
class ChipItem(Item):
    """`chip h100`: the chip that layouts are chosen for, where no command names another."""

    name: str


@dataclass(frozen=True)
class SizeExpr(Node):
    """The size of a dimension: a sum of products, `G*K + 2*H` is `((G, K), (2, H))`."""

    terms: tuple[tuple[str | int, ...], ...]


@dataclass(frozen=True)
class DimDecl(Node):
    """`E=18432 order x y z`. An order may hold integers: digits that no axis splits. None: not given."""

    name: str
    size: SizeExpr
    order: tuple[str | int, ...] | None = None


@dataclass(frozen=True)
class DimItem(Item):
    dims: tuple[DimDecl, ...]


@dataclass(frozen=True)
class Decl(Node):
    """`name: type` of a parameter, a weight or a state value."""

    name: str
    type: TypeExpr


@dataclass(frozen=True)
class WeightsItem(Item):
    decls: tuple[Decl, ...]
    brace: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class StateItem(Item):
    decls: tuple[Decl, ...]
    brace: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class FuncItem(Item):
    """`func f[L=1](x: BE) -> BE { ... }`. Brackets are written unless there is one result."""

    name: str
    overrides: tuple[DimDecl, ...]
    params: tuple[Decl, ...]
    results: tuple[TypeExpr, ...]
    body: tuple[Stmt, ...]
    brace: Span = field(default=NOWHERE, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True)
class Comment(Node):
    """`# ...` with its place; `own_line` where nothing stands before it on its line."""

    text: str
    own_line: bool


@dataclass(frozen=True)
class Module(Node):
    """A file. `comments` in the order of the text; they do not take part in equality of meaning."""

    items: tuple[Item, ...]
    comments: tuple[Comment, ...] = field(default=(), compare=False)


def nodes(node: object) -> Iterator[Node]:
    """A node of the tree, or each of a tuple, and all in it."""
    if isinstance(node, tuple):
        for part in node:  # pyright: ignore[reportUnknownVariableType]
            yield from nodes(part)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(node, Node):
        yield node
        for one in fields(node):
            yield from nodes(getattr(node, one.name))
