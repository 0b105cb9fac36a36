"""Builds single expressions without dice: the shape that an operation gives, worked out from the documentation."""

from __future__ import annotations

from dataclasses import replace

from oracles.random_programs.tree import Expr, Shaped, is_f8, is_integer


def dot(a: Expr, b: Expr, summed: str) -> Expr:
    """`a @[summed] b`; integers give int32, 8-bit floats f32."""
    sizes = a.shape.sizes | b.shape.sizes
    dims = tuple(dim for dim in sizes if dim not in summed)
    dtype = "int32" if is_integer(a.shape.dtype) else "f32" if is_f8(a.shape.dtype) else a.shape.dtype
    return Expr("@", Shaped(dtype, dims, tuple(sizes[dim] for dim in dims)), (a, b), summed, tuple(summed))


def call(op: str, a: Expr, statics: str = "", info: object = None) -> Expr:
    """A function of one operand that keeps its shape."""
    return Expr(op, a.shape, (a,), statics, info)


def number(value: float, like: Expr) -> Expr:
    return Expr("number", Shaped(like.shape.dtype, (), ()), (), f"{value:g}", value)


def infix(op: str, a: Expr, b: Expr) -> Expr:
    """Of operands of which the first has all dimensions."""
    return Expr(op, a.shape, (a, b))


def squashed(a: Expr) -> Expr:
    """tanh(a * 0.1), so that layers upon layers keep their size."""
    return call("tanh", infix("*", a, number(0.1, a)))


def convert(a: Expr, dtype: str) -> Expr:
    return Expr("convert", a.shape.of(dtype), (a,), dtype)


def rename(a: Expr, names: dict[str, str]) -> Expr:
    dims = tuple(names.get(dim, dim) for dim in a.shape.dims)
    text = ", ".join(f"{old} -> {new}" for old, new in names.items())
    return Expr("rename", replace(a.shape, dims=dims), (a,), text, names)


def split(a: Expr, dim: str, parts: tuple[tuple[str, int], tuple[str, int]]) -> Expr:
    """`split[H -> KG]`."""
    at = a.shape.dims.index(dim)
    (one, n), (two, m) = parts
    shape = Shaped(
        a.shape.dtype,
        (*a.shape.dims[:at], one, two, *a.shape.dims[at + 1 :]),
        (*a.shape.extents[:at], n, m, *a.shape.extents[at + 1 :]),
    )
    return Expr("split", shape, (a,), f"{dim} -> {one}{two}", (dim, one, two))


def merge(a: Expr, one: str, name: str) -> Expr:
    """`merge` of a dimension and the one after it."""
    at = a.shape.dims.index(one)
    two = a.shape.dims[at + 1]
    shape = Shaped(
        a.shape.dtype,
        (*a.shape.dims[:at], name, *a.shape.dims[at + 2 :]),
        (*a.shape.extents[:at], a.shape.extents[at] * a.shape.extents[at + 1], *a.shape.extents[at + 2 :]),
    )
    return Expr("merge", shape, (a,), f"{one}{two} -> {name}", (one, two, name))


def take(a: Expr, dim: str, begin: int, end: int) -> Expr:
    return Expr("take", a.shape.resized(dim, dim, end - begin), (a,), f"{dim} {begin}:{end}", (dim, begin, end, 1))


def norm(op: str, a: Expr, dim: str, *scales: Expr) -> Expr:
    return Expr(op, a.shape, (a, *scales), f"{dim}, eps=1e-5", ((dim,), 1e-5))


def softmax(a: Expr, dim: str, causal: str | None = None, pos: Expr | None = None, window: int | None = None) -> Expr:
    text = dim + (f", causal={causal}" if causal else "") + (f", window={window}" if window else "")
    return Expr("softmax", a.shape, (a, pos) if pos else (a,), text, ((dim,), causal, window))


def update(cache: Expr, new: Expr, pos: Expr, dim: str, written: str, *, wrap: bool = False) -> Expr:
    return Expr(
        "update", cache.shape, (cache, new, pos), dim + (", wrap=true" if wrap else ""), (dim, written, wrap, ())
    )


def lookup(table: Expr, ids: Expr, dim: str) -> Expr:
    rest = table.shape.without(dim)
    shape = Shaped(table.shape.dtype, (*ids.shape.dims, *rest.dims), (*ids.shape.extents, *rest.extents))
    return Expr("lookup", shape, (table, ids), dim, (dim, False))


def rotary(a: Expr, pos: Expr, dim: str, style: str) -> Expr:
    info = (dim, 100.0, style, a.shape.extent(dim), "L")
    return Expr("rotary", a.shape, (a, pos), f"{dim}, base=100, style={style}", info)


def concat(a: Expr, dim: str, *others: Expr) -> Expr:
    extent = a.shape.extent(dim) + sum(other.shape.extent(dim) for other in others)
    return Expr("concat", a.shape.resized(dim, dim, extent), (a, *others), dim, (dim, 1))
