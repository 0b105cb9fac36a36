"""Draws single expressions of what is in scope: those that compute, and the table of all kinds of operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from oracles.random_programs import eight_bits, indexing
from oracles.random_programs.scope import Drawn, Scope, number, parts_of_blocks, pick, pick_index, union
from oracles.random_programs.tree import Expr, Shaped, computes, is_f8, is_integer, is_wide

if TYPE_CHECKING:
    from oracles.random_programs.draw import Drawing


# ------------------------------------------------------------ elementwise


def unary(d: Drawing, scope: Scope) -> Drawn:
    a = pick(d, scope, lambda s: is_wide(s.dtype))
    if a is None:
        return None
    op = d.rng.choice(SMOOTH_FUNCTIONS if d.wishes.smooth else FUNCTIONS)
    if op == "gelu" and d.chance(0.4):
        return Expr(op, a.shape, (a,), "form=tanh", "tanh")
    return Expr(op, a.shape, (a,))


def negative(d: Drawing, scope: Scope) -> Drawn:
    a = pick(d, scope, lambda s: is_integer(s.dtype))
    return Expr("neg", a.shape, (a,)) if a else None


def _pair(d: Drawing, scope: Scope, fits: Callable[[Shaped], bool]) -> tuple[Expr, Expr] | None:
    """Two operands that broadcast, or one and a number, or the size of a dimension."""
    a = pick(d, scope, fits)
    if a is None:
        return None
    dtype = a.shape.dtype
    roll = d.rng.random()
    if roll < 0.25 and a.op != "number":
        pair = (a, number(d, dtype))
    elif roll < 0.3 and dtype != "bool" and a.op != "number":
        dim = d.rng.choice(sorted(scope.sizes))
        size = scope.sizes[dim]
        if dtype == "int4" and size > 7:
            return None
        pair = (a, Expr("number", Shaped(dtype, (), ()), (), f"size[{dim}]", size))
    else:
        b = pick(d, scope, lambda s: s.dtype == dtype and union(a.shape, s) is not None)
        if b is None:
            return None
        pair = (a, b)
    return pair if d.chance(0.6) else (pair[1], pair[0])


def binary(d: Drawing, scope: Scope) -> Drawn:
    pair = _pair(d, scope, lambda s: computes(s.dtype))
    rough = () if d.wishes.smooth else ("/", "maximum", "minimum")
    return _binary(d.rng.choice(("+", "+", "-", "-", "*", "*", *rough)), pair)


def binary_bool(d: Drawing, scope: Scope) -> Drawn:
    pair = _pair(d, scope, lambda s: s.dtype == "bool")
    if pair and any(arg.op == "number" for arg in pair):
        return None
    return _binary(d.rng.choice(("logical_and", "logical_or", "maximum", "minimum")), pair)


def comparison(d: Drawing, scope: Scope) -> Drawn:
    pair = _pair(d, scope, lambda s: computes(s.dtype))
    made = _binary(d.rng.choice(("less", "less_equal", "equal")), pair)
    return replace(made, shape=made.shape.of("bool")) if made else None


def _binary(op: str, pair: tuple[Expr, Expr] | None) -> Drawn:
    if pair is None:
        return None
    shape = union(pair[0].shape, pair[1].shape)
    return Expr(op, Shaped(pair[0].shape.dtype, *shape), pair) if shape else None


def logical_not(d: Drawing, scope: Scope) -> Drawn:
    a = pick(d, scope, lambda s: s.dtype == "bool")
    return Expr("logical_not", a.shape, (a,)) if a else None


def where(d: Drawing, scope: Scope) -> Drawn:
    mask = pick(d, scope, lambda s: s.dtype == "bool")
    if mask is None:
        inner = comparison(d, scope)
        mask = inner
    a = pick(d, scope, lambda s: True)
    if mask is None or a is None or union(mask.shape, a.shape) is None:
        return None
    b = number(d, a.shape.dtype) if d.chance(0.35) else pick(d, scope, lambda s: s.dtype == a.shape.dtype)
    if b is None:
        return None
    pair = (a, b) if d.chance(0.6) else (b, a)
    shape = union(mask.shape, pair[0].shape, pair[1].shape)
    return Expr("where", Shaped(a.shape.dtype, *shape), (mask, *pair)) if shape else None


def convert(d: Drawing, scope: Scope) -> Drawn:
    a = pick(d, scope, lambda s: True)
    if a is None:
        return None
    dtype = d.rng.choice((*d.formats, "f32", "int32", "int8", "bf16", "bool", "uint32", "f16", "int4"))
    return Expr("convert", a.shape.of(dtype), (a,), dtype)


def bitcast(d: Drawing, scope: Scope) -> Drawn:
    formats = ("f32", "int32", "uint32")
    a = pick(d, scope, lambda s: s.dtype in formats)
    if a is None:
        return None
    dtype = d.rng.choice(formats)
    return Expr("bitcast", a.shape.of(dtype), (a,), dtype)


# ------------------------------------------------------------ contractions and reductions


def contraction(d: Drawing, scope: Scope) -> Drawn:
    a = pick(d, scope, lambda s: bool(s.dims) and s.dtype != "bool")
    if a is None:
        return None

    def fits(s: Shaped) -> bool:
        return s.dtype == a.shape.dtype and bool(set(s.dims) & set(a.shape.dims)) and union(a.shape, s) is not None

    b = pick(d, scope, fits)
    return None if b is None else product(d, a, b)


def product(d: Drawing, a: Expr, b: Expr) -> Expr:
    """The contraction of two operands of one format, over some of the dimensions that they share."""
    shared = [dim for dim in a.shape.dims if dim in b.shape.dims]
    summed = tuple(d.rng.sample(shared, d.rng.choice((1, 1, len(shared)))))
    sizes = a.shape.sizes | b.shape.sizes
    dims = tuple(dim for dim in sizes if dim not in summed)
    # Integers accumulate in int32, which is what the product has where no type is declared; 8-bit floats in f32.
    dtype = "int32" if is_integer(a.shape.dtype) else "f32" if is_f8(a.shape.dtype) else a.shape.dtype
    shape = Shaped(dtype, dims, tuple(sizes[dim] for dim in dims))
    bare = len(shared) == 1 and d.chance(0.4)
    text = "".join(summed) if all(dim[0].isupper() for dim in summed) else " ".join(summed)
    return Expr("@", shape, (a, b), "" if bare else text, summed)


def reduction(d: Drawing, scope: Scope) -> Drawn:
    a = pick(d, scope, lambda s: bool(s.dims) and computes(s.dtype))
    if a is None:
        return None
    dims = tuple(d.rng.sample(a.shape.dims, d.rng.choice((1, 1, 1, min(2, len(a.shape.dims))))))
    op = "sum" if d.wishes.smooth else d.rng.choice(("sum", "max"))
    return Expr(op, a.shape.without(*dims), (a,), "".join(dims), dims)


def cumsum(d: Drawing, scope: Scope) -> Drawn:
    a = pick(d, scope, lambda s: bool(s.dims) and computes(s.dtype))
    if a is None:
        return None
    dim = d.rng.choice(a.shape.dims)
    return Expr("cumsum", a.shape, (a,), dim, dim)


def argmax(d: Drawing, scope: Scope) -> Drawn:
    a = pick(d, scope, lambda s: bool(s.dims) and computes(s.dtype))
    if a is None:
        return None
    dim = d.rng.choice(a.shape.dims)
    return Expr("argmax", a.shape.without(dim).of("int32"), (a,), dim, dim)


def topk(d: Drawing, scope: Scope) -> Drawn:
    a = pick(d, scope, lambda s: bool(s.dims) and computes(s.dtype))
    if a is None:
        return None
    dim = d.rng.choice(a.shape.dims)
    k = d.rng.randint(1, a.shape.extent(dim))
    name = d.rng.choice([n for n in d.dims if n not in a.shape.dims and n not in scope.loops] or [dim])
    if d.dims[name].size != k:
        d.features.add("extent")
    by, blocks = parts_of_blocks(d, dim, a.shape.extent(dim), k)
    shape = a.shape.resized(dim, name, k)
    return Expr("topk", shape, (a,), f"{dim} -> {name}, k={k}{by}", (dim, name, k, blocks), (shape.of("int32"),))


def softmax(d: Drawing, scope: Scope) -> Drawn:
    a = pick(d, scope, lambda s: bool(s.dims) and is_wide(s.dtype))
    if a is None:
        return None
    if len(a.shape.dims) > 1 and d.chance(0.5):
        key, query = d.rng.sample(a.shape.dims, 2)
        window = d.rng.choice((None, None, 1, 2, 3))
        text = f"{key}, causal={query}" + (f", window={window}" if window else "")
        pos: Drawn = None
        if d.chance(0.5):
            pos = pick_index(d, scope, lambda s: not s.dims or (s.dims == (query,) and union(a.shape, s) is not None))
        return Expr("softmax", a.shape, (a, pos) if pos else (a,), text, ((key,), query, window))
    dims = tuple(d.rng.sample(a.shape.dims, d.rng.choice((1, 1, min(2, len(a.shape.dims))))))
    return Expr("softmax", a.shape, (a,), "".join(dims), (dims, None, None))


def norm(d: Drawing, scope: Scope) -> Drawn:
    a = pick(d, scope, lambda s: bool(s.dims) and is_wide(s.dtype))
    if a is None:
        return None
    op = d.rng.choice(("layernorm", "rmsnorm"))
    dims = tuple(d.rng.sample(a.shape.dims, d.rng.choice((1, 1, min(2, len(a.shape.dims))))))
    eps = d.rng.choice(("1e-5", "1e-6", "0.1"))
    args = [a]
    for _ in range(2 if op == "layernorm" else 1):
        scale = pick(
            d, scope, lambda s: is_wide(s.dtype) and s.dims == dims and s.sizes.items() <= a.shape.sizes.items()
        )
        if scale is None or not d.chance(0.6):
            break
        args.append(scale)
    return Expr(op, a.shape, tuple(args), f"{''.join(dims)}, eps={eps}", (dims, float(eps)))


SMOOTH_FUNCTIONS = ("gelu", "silu", "tanh", "sigmoid", "cos", "sin", "neg")
FUNCTIONS = (*SMOOTH_FUNCTIONS, "relu", "exp", "log", "log1p", "sqrt", "rsqrt", "abs", "round", "softsign")
SMOOTH = {
    "unary", "alias", "binary", "contraction", "reduction", "cumsum", "softmax", "norm", "lookup", "rotary", "update",
    "grouped", "take_range", "take_one", "concat", "rename", "split", "merge",
}  # fmt: skip
DRAWS: dict[str, Callable[[Drawing, Scope], Drawn]] = {
    "unary": unary,
    "alias": indexing.alias,
    "negative": negative,
    "binary": binary,
    "binary_bool": binary_bool,
    "comparison": comparison,
    "logical_not": logical_not,
    "where": where,
    "convert": convert,
    "bitcast": bitcast,
    "contraction": contraction,
    "reduction": reduction,
    "cumsum": cumsum,
    "argmax": argmax,
    "topk": topk,
    "softmax": softmax,
    "norm": norm,
    "lookup": indexing.lookup,
    "grouped": indexing.grouped,
    "iota": indexing.iota,
    "full": indexing.full,
    "uniform": indexing.uniform,
    "rotary": indexing.rotary,
    "update": indexing.update,
    "take_range": indexing.take_range,
    "take_one": indexing.take_one,
    "concat": indexing.concat,
    "rename": indexing.rename,
    "split": indexing.split,
    "merge": indexing.merge,
    "narrowed": eight_bits.narrowed,
    "narrow_product": eight_bits.narrow_product,
}
WEIGHTS = {
    "unary": 2.5, "alias": 0.5, "binary": 5.0, "contraction": 5.0, "reduction": 3.0, "comparison": 1.0, "where": 1.2,
    "topk": 0.6, "grouped": 2.5,
    "softmax": 1.2, "norm": 1.0, "update": 1.2, "lookup": 1.2, "bitcast": 0.4, "logical_not": 0.4, "uniform": 0.6,
    "full": 0.6, "iota": 0.6, "negative": 0.5, "split": 1.5, "merge": 0.7, "convert": 1.0,
    "narrowed": 3.0, "narrow_product": 4.0,
}  # fmt: skip
