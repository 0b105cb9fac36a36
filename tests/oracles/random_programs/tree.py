"""Random programs as trees of their own, printed as text in the language: nothing here is the compiler's.

Every expression knows its number format, its dimensions in order and their extents, so that a program can be drawn,
printed, computed and shrunk without asking the compiler what it means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

INTEGER_RANGES = {"int8": (-128, 127), "int4": (-8, 7), "int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1)}
EIGHT_BITS = ("f8e4m3", "f8e5m2")
WIDE_FLOATS = ("f32", "bf16", "f16")


def is_float(dtype: str) -> bool:
    return dtype in WIDE_FLOATS or dtype in EIGHT_BITS


def is_wide(dtype: str) -> bool:
    """Tells whether functions take the format."""
    return dtype in WIDE_FLOATS


def is_f8(dtype: str) -> bool:
    """Tells whether it is a float of 8 bits, which is kept, moved, chosen among, converted and multiplied."""
    return dtype in EIGHT_BITS


def computes(dtype: str) -> bool:
    """Tells whether arithmetic takes the format."""
    return dtype in WIDE_FLOATS or dtype in INTEGER_RANGES


def is_integer(dtype: str) -> bool:
    return dtype in INTEGER_RANGES


@dataclass(frozen=True)
class Shaped:
    """The number format, dimensions and extents of a value."""

    dtype: str
    dims: tuple[str, ...]
    extents: tuple[int, ...]

    def extent(self, dim: str) -> int:
        return self.extents[self.dims.index(dim)]

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(self.dims, self.extents, strict=True))

    @property
    def elements(self) -> int:
        n = 1
        for extent in self.extents:
            n *= extent
        return n

    def without(self, *dims: str) -> Shaped:
        kept = [(dim, n) for dim, n in zip(self.dims, self.extents, strict=True) if dim not in dims]
        return Shaped(self.dtype, tuple(dim for dim, _ in kept), tuple(n for _, n in kept))

    def of(self, dtype: str) -> Shaped:
        return replace(self, dtype=dtype)

    def resized(self, dim: str, name: str, extent: int) -> Shaped:
        """`dim` under another name and with another extent."""
        at = self.dims.index(dim)
        return Shaped(
            self.dtype,
            (*self.dims[:at], name, *self.dims[at + 1 :]),
            (*self.extents[:at], extent, *self.extents[at + 1 :]),
        )


@dataclass(frozen=True)
class Layout:
    """What is written of a type: for each dimension its axes or None for `_?`, a partial part, a hole for the rest."""

    splits: tuple[tuple[str, ...] | None, ...]
    partial: str = ""
    """`partialsum-xy`, `partialmax-x`, `partialsum-?`, or nothing."""
    open: bool = False
    found: bool = False
    """Written with `:~`."""
    placement: str = ""
    """`host`, `disk`, or shares; nothing for the device."""

    def without_axis(self, axis: str) -> Layout:
        splits = tuple(None if axes is None else tuple(a for a in axes if a != axis) for axes in self.splits)
        kind, _, axes = self.partial.partition("-")
        named = [a for a in _axis_names(axes) if a != axis]
        return replace(self, splits=splits, partial=f"{kind}-{_axes_text(named)}" if named else "")


def _axis_names(text: str) -> list[str]:
    return text[1:-1].split(",") if text.startswith("{") else list(text)


def _axes_text(axes: list[str] | tuple[str, ...]) -> str:
    return "".join(axes) if all(len(axis) == 1 for axis in axes) else "{" + ",".join(axes) + "}"


def type_text(shape: Shaped, layout: Layout) -> str:
    long = any(not dim[0].isupper() for dim in shape.dims)
    long = long or any(len(axis) > 1 for axes in layout.splits for axis in axes or ())
    parts: list[str] = []
    for dim, axes in zip(shape.dims, layout.splits, strict=True):
        mark = "_?" if axes is None else "_" + _axes_text(axes) if axes else ""
        parts.append(dim + mark)
    row = "[" + " ".join(parts) + "]" if long else "".join(parts)
    row += "?" if layout.open else ""
    text = f"{shape.dtype} {row}".rstrip()
    text = f"{text}({layout.partial})" if layout.partial else text
    return f"{text} on {layout.placement}" if layout.placement else text


# ------------------------------------------------------------ expressions


@dataclass(frozen=True)
class Expr:
    """A node: an operation `op` of `args`, with what stands between its brackets and what that means."""

    op: str
    shape: Shaped
    args: tuple[Expr, ...] = ()
    statics: str = ""
    info: Any = None
    """What the statics say, for the oracle; for `ref` the name, for `number` the value."""
    more: tuple[Shaped, ...] = ()
    """Shapes of further results."""

    def walk(self) -> Iterator[Expr]:
        yield self
        for arg in self.args:
            yield from arg.walk()


INFIX = {"+", "-", "*", "/", "@"}


def ref(name: str, shape: Shaped) -> Expr:
    return Expr("ref", shape, info=name)


def expr_text(expr: Expr, *, top: bool = True) -> str:
    match expr.op:
        case "ref":
            return str(expr.info)
        case "number":
            return expr.statics
        case "neg":
            return f"-{expr_text(expr.args[0], top=False)}" if top else f"(-{expr_text(expr.args[0], top=False)})"
        case op if op in INFIX:
            left, right = (expr_text(arg, top=False) for arg in expr.args)
            sign = f"@[{expr.statics}]" if op == "@" and expr.statics else op
            text = f"{left} {sign} {right}"
            return text if top else f"({text})"
        case op:
            statics = f"[{expr.statics}]" if expr.statics else ""
            return f"{op}{statics}({', '.join(expr_text(arg) for arg in expr.args)})"


# ------------------------------------------------------------ statements


@dataclass(frozen=True)
class Target:
    """A name that a statement defines, and the type written beside it."""

    name: str
    shape: Shaped
    layout: Layout | None = None

    def text(self) -> str:
        if self.layout is None:
            return self.name
        return f"{self.name}{' :~' if self.layout.found else ':'} {type_text(self.shape, self.layout)}"


@dataclass(frozen=True)
class Assign:
    targets: tuple[Target, ...]
    value: Expr


@dataclass(frozen=True)
class SetState:
    state: str
    value: Expr


@dataclass(frozen=True)
class Free:
    names: tuple[str, ...]


@dataclass(frozen=True)
class Loop:
    dim: str
    index: str | None
    targets: tuple[Target, ...]
    carries: tuple[tuple[Target, Expr], ...]
    body: tuple[Stmt, ...]
    following: tuple[Expr, ...]


Stmt = Assign | SetState | Free | Loop


@dataclass(frozen=True)
class Decl:
    """A parameter, a weight or a state value; `index_below` bounds what is drawn for positions and indices."""

    name: str
    shape: Shaped
    layout: Layout
    index_below: int | None = None

    def text(self) -> str:
        return f"{self.name}: {type_text(self.shape, self.layout)}"


@dataclass(frozen=True)
class Func:
    name: str
    sizes: tuple[tuple[str, int], ...]
    params: tuple[Decl, ...]
    body: tuple[Stmt, ...]
    returns: tuple[tuple[Expr, Layout], ...]


@dataclass(frozen=True)
class Dim:
    name: str
    size: int
    text: str = ""
    """The size as written, where that is an expression."""
    order: tuple[str, ...] = ()


@dataclass(frozen=True)
class Program:
    mesh: tuple[tuple[str, int], ...]
    dims: tuple[Dim, ...]
    weights: tuple[Decl, ...]
    state: tuple[Decl, ...]
    funcs: tuple[Func, ...]
    features: frozenset[str] = field(default=frozenset())

    def text(self) -> str:
        lines = ["mesh " + " ".join(f"{axis}={size}" for axis, size in self.mesh)] if self.mesh else []
        if self.dims:
            lines.append("dim " + " ".join(_dim_text(dim) for dim in self.dims))
        for word, decls in (("weights", self.weights), ("state", self.state)):
            if decls:
                lines += [f"{word} {{", *(f"  {decl.text()}" for decl in decls), "}"]
        for func in self.funcs:
            lines += _func_lines(func)
        return "\n".join(lines) + "\n"


def _dim_text(dim: Dim) -> str:
    order = " order " + " ".join(dim.order) if dim.order else ""
    return f"{dim.name}={dim.text or dim.size}{order}"


def _func_lines(func: Func) -> list[str]:
    sizes = "[" + ", ".join(f"{dim}={size}" for dim, size in func.sizes) + "]" if func.sizes else ""
    params = ", ".join(param.text() for param in func.params)
    types = [type_text(expr.shape, layout) for expr, layout in func.returns]
    result = types[0] if len(types) == 1 else "(" + ", ".join(types) + ")"
    lines = [f"func {func.name}{sizes}({params}) -> {result} {{"]
    lines += _block_lines(func.body, "  ")
    lines.append("  return " + ", ".join(expr_text(expr) for expr, _ in func.returns))
    return [*lines, "}"]


def _block_lines(body: tuple[Stmt, ...], pad: str) -> list[str]:
    lines: list[str] = []
    for stmt in body:
        match stmt:
            case Assign(targets, value):
                lines.append(pad + ", ".join(t.text() for t in targets) + " = " + expr_text(value))
            case SetState(state, value):
                lines.append(f"{pad}set {state} = {expr_text(value)}")
            case Free(names):
                lines.append(f"{pad}free {', '.join(names)}")
            case Loop():
                head = f"loop[{stmt.dim}{f' as {stmt.index}' if stmt.index else ''}]"
                if stmt.carries:
                    carried = ", ".join(f"{t.text()} = {expr_text(e)}" for t, e in stmt.carries)
                    head = ", ".join(t.text() for t in stmt.targets) + f" = {head}({carried})"
                lines.append(pad + head + " {")
                lines += _block_lines(stmt.body, pad + "  ")
                if stmt.carries:
                    lines.append(pad + "  next " + ", ".join(expr_text(e) for e in stmt.following))
                lines.append(pad + "}")
    return lines
