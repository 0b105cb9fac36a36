"""The meaning of a tree in plain numpy, unsharded, with a bound on the error of every element (see `bounded`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from oracles.random_programs import bounded
from oracles.random_programs.bounded import UNKNOWN, Array, Formats, Number, certain, of
from oracles.random_programs.tree import (
    Assign,
    Expr,
    Free,
    Func,
    Loop,
    Program,
    SetState,
    Shaped,
    Stmt,
    is_f8,
    is_float,
)


@dataclass(frozen=True)
class Meaning:
    """What a function gives, and what it leaves of the state."""

    results: tuple[Number, ...]
    state: dict[str, Number]


@dataclass
class _Held:
    """A value and how many loops stand around its definition."""

    number: Number
    depth: int


@dataclass
class _Run:
    formats: Formats
    sizes: dict[str, int]
    state: frozenset[str]
    trips: tuple[tuple[str, int], ...] = ()


def meaning(program: Program, func: Func, arrays: Mapping[str, Array], formats: Formats) -> Meaning:
    """The results and the new state of a function of arrays by name: parameters, weights and state."""
    sizes = {dim.name: dim.size for dim in program.dims} | dict(func.sizes)
    run = _Run(formats, sizes, frozenset(decl.name for decl in program.state))
    names = {
        decl.name: _Held(certain(decl.shape.dtype, decl.shape.dims, arrays[decl.name]), 0)
        for decl in (*program.weights, *program.state, *func.params)
    }
    with np.errstate(all="ignore"):
        _block(func.body, names, run)
        results = tuple(_value(expr, names, run)[0] for expr, _ in func.returns)
    return Meaning(results, {decl.name: names[decl.name].number for decl in program.state})


# ------------------------------------------------------------ statements


def _block(body: tuple[Stmt, ...], names: dict[str, _Held], run: _Run) -> None:
    for stmt in body:
        match stmt:
            case Assign(targets, value):
                for target, number in zip(targets, _value(value, names, run), strict=True):
                    names[target.name] = _Held(number, len(run.trips))
            case SetState(state, value):
                _set(names[state], _value(value, names, run)[0], run)
            case Free():
                pass
            case Loop():
                _loop(stmt, names, run)


def _loop(loop: Loop, names: dict[str, _Held], run: _Run) -> None:
    carried = [_value(initial, names, run)[0] for _, initial in loop.carries]
    outside = run.trips
    for trip in range(run.sizes[loop.dim]):
        run.trips = (*outside, (loop.dim, trip))
        inner = dict(names)
        for (target, _), number in zip(loop.carries, carried, strict=True):
            inner[target.name] = _Held(number, len(run.trips))
        if loop.index:
            inner[loop.index] = _Held(certain("int32", (), np.asarray(trip)), len(run.trips))
        _block(loop.body, inner, run)
        carried = [_value(expr, inner, run)[0] for expr in loop.following]
    run.trips = outside
    for target, number in zip(loop.targets, carried, strict=True):
        names[target.name] = _Held(number, len(outside))


def _seen(held: _Held, run: _Run) -> tuple[tuple[int | slice, ...], tuple[str, ...]]:
    """Where the loops around see a value, and the dimensions that are left."""
    at: dict[str, int] = {}
    for dim, trip in run.trips[held.depth :]:
        if dim in held.number.dims and dim not in at:
            at[dim] = trip
    where = tuple(at.get(dim, slice(None)) for dim in held.number.dims)
    return where, tuple(dim for dim in held.number.dims if dim not in at)


def _set(held: _Held, number: Number, run: _Run) -> None:
    where, dims = _seen(held, run)

    def put(old: Array, new: Array) -> Array:
        made = np.array(old)
        made[where] = new
        return made

    assert dims == number.dims
    old = held.number
    held.number = of(
        old.dtype,
        old.dims,
        put(old.value, number.value),
        put(old.error, number.error),
        put(old.addends, number.addends),
    )


# ------------------------------------------------------------ expressions


def _value(expr: Expr, names: dict[str, _Held], run: _Run) -> tuple[Number, ...]:
    if expr.op == "ref":
        held = names[expr.info]
        where, dims = _seen(held, run)
        numbers = (held.number.each(lambda array: np.asarray(array[where]), dims),)
    elif expr.op in _SEVERAL:
        numbers = _SEVERAL[expr.op](expr, [_value(arg, names, run)[0] for arg in expr.args], run)
    else:
        numbers = (_one(expr, [_value(arg, names, run)[0] for arg in expr.args], run),)
    for number, shape in zip(numbers, (expr.shape, *expr.more), strict=True):
        made = Shaped(number.dtype, number.dims, number.value.shape)
        if made != shape:
            raise AssertionError(f"{expr.op}[{expr.statics}] gives {made}, and the generator expected {shape}")
    return numbers


def _one(expr: Expr, args: list[Number], run: _Run) -> Number:
    formats, dims, info = run.formats, expr.shape.dims, expr.info
    match expr.op:
        case "number" | "full":
            return _constant(info, expr.shape, formats)
        case "+" | "-" | "*" | "/" | "maximum" | "minimum":
            if expr.shape.dtype == "bool":
                return bounded.logical("logical_or" if expr.op == "maximum" else "logical_and", args, dims)
            return bounded.arithmetic(expr.op, args[0], args[1], dims, formats)
        case "neg":
            if is_float(args[0].dtype):
                return of(args[0].dtype, dims, -args[0].value, args[0].error, args[0].addends)
            return of(args[0].dtype, dims, bounded.wrap(-args[0].value, args[0].dtype), args[0].error)
        case "less" | "less_equal" | "equal":
            return bounded.compare(expr.op, args[0], args[1], dims)
        case "logical_and" | "logical_or" | "logical_not":
            return bounded.logical(expr.op, args, dims)
        case "where":
            return bounded.where(args[0], args[1], args[2], dims)
        case "convert":
            return bounded.convert(args[0], expr.shape.dtype, formats)
        case "bitcast":
            return bounded.bitcast(args[0], expr.shape.dtype)
        case "gelu" if info == "tanh":
            return bounded.function("gelu_tanh", args[0], formats)
        case op if op in bounded.MONOTONE or op in bounded.BOUNDED_SLOPE:
            return bounded.function(op, args[0], formats)
        case "@":
            return bounded.contraction(args[0], args[1], info, dims, expr.shape.dtype, formats)
        case "sum":
            return bounded.sums(args[0], info, expr.shape.dtype, formats)
        case "max":
            return bounded.greatest(args[0], info)
        case "cumsum":
            return bounded.cumsum(args[0], info, formats)
        case "argmax":
            at = args[0].dims.index(info)
            return bounded.ranked(args[0], info)[1].each(lambda array: array.take(0, axis=at), dims)
        case "softmax":
            return _softmax(expr, args, run)
        case "layernorm" | "rmsnorm":
            return _norm(expr, args, run)
        case "lookup":
            return _lookup(args[0], args[1], *info)
        case "grouped":
            return _grouped(expr, args, formats)
        case "iota":
            return certain("int32", dims, np.arange(expr.shape.extents[0]))
        case "uniform":
            return _uniform(expr, args)
        case "rotary":
            return _rotary(expr, args, run)
        case "update":
            return _update(expr, args)
        case "take":
            return _take(expr, args[0])
        case "concat":
            return _concat(expr, args)
        case "rename":
            return args[0].each(lambda array: array, dims)
        case "split" | "merge":
            return args[0].each(lambda array: array.reshape(expr.shape.extents), dims)
        case "alias":
            return args[0]
        case op:
            raise AssertionError(op)


def _constant(value: float, shape: Shaped, formats: Formats) -> Number:
    if is_float(shape.dtype):
        number = certain(shape.dtype, shape.dims, np.full(shape.extents, float(value)))
        if is_f8(shape.dtype):
            finite = replace(number, dtype="f32")
            return bounded.narrowed(finite, shape.dtype, formats) if np.isfinite(value) else number
        return bounded.rounded(number, formats, 1)
    held = bool(value) if shape.dtype == "bool" else bounded.wrap(np.asarray(int(value)), shape.dtype)
    return certain(shape.dtype, shape.dims, np.full(shape.extents, held))


def _in_f32(number: Number, formats: Formats) -> Number:
    return bounded.convert(number, "f32", formats)


def _softmax(expr: Expr, args: list[Number], run: _Run) -> Number:
    """exp(s - max) / sum over the visible keys, in f32, and rounded."""
    dims, causal, window = expr.info
    formats, shape = run.formats, expr.shape
    s = _in_f32(args[0], formats)
    empty: Array = np.zeros(s.value.shape, bool)
    if causal is not None:
        (key_dim,) = dims
        t = certain("int32", (key_dim,), np.arange(shape.extent(key_dim)))
        q = certain("int32", (causal,), np.arange(shape.extent(causal)))
        if len(args) > 1:
            every = (causal, *(dim for dim in args[1].dims if dim != causal))
            q = bounded.arithmetic("+", q, bounded.convert(args[1], "int32", formats), every, formats)
        everything = (*q.dims, key_dim)
        mask = bounded.compare("less_equal", t, q, everything)
        if window is not None:
            least = bounded.arithmetic("-", q, _constant(window, Shaped("int32", (), ()), formats), q.dims, formats)
            mask = bounded.logical("logical_and", [mask, bounded.compare("less", least, t, everything)], everything)
        s = bounded.where(mask, s, _constant(-np.inf, Shaped("f32", (), ()), formats), shape.dims)
        seen = np.broadcast_to(mask.aligned(shape.dims)[0], s.value.shape)
        at = shape.dims.index(key_dim)
        empty = np.broadcast_to(~seen.any(axis=at, keepdims=True), s.value.shape)
    e = bounded.function("exp", bounded.arithmetic("-", s, bounded.greatest(s, dims), shape.dims, formats), formats)
    p = bounded.arithmetic("/", e, bounded.sums(e, dims, "f32", formats), shape.dims, formats)
    p = of("f32", p.dims, p.value, np.where(empty, UNKNOWN, p.error))
    return bounded.convert(p, shape.dtype, formats)


def _norm(expr: Expr, args: list[Number], run: _Run) -> Number:
    dims, eps = expr.info
    formats, shape = run.formats, expr.shape
    f32 = Shaped("f32", (), ())
    x = _in_f32(args[0], formats)
    count = _constant(np.prod([shape.extent(dim) for dim in dims]), f32, formats)

    def arithmetic(op: str, a: Number, b: Number) -> Number:
        every = tuple(dim for dim in shape.dims if dim in a.dims or dim in b.dims)
        return bounded.arithmetic(op, a, b, every, formats)

    def mean(a: Number) -> Number:
        return arithmetic("/", bounded.sums(a, dims, "f32", formats), count)

    if expr.op == "layernorm":
        middle = mean(x)
        squares = arithmetic("-", mean(arithmetic("*", x, x)), arithmetic("*", middle, middle))
        x = arithmetic("-", x, middle)
        moment = mean(arithmetic("*", x, x))
        # Either form of the variance is a right one: the bound is that of the worse.
        error = np.maximum(moment.error, squares.error)
        moment = of("f32", moment.dims, moment.value, error, np.maximum(moment.addends, squares.addends))
    else:
        moment = mean(arithmetic("*", x, x))
    scale = bounded.function("rsqrt", arithmetic("+", moment, _constant(eps, f32, formats)), formats)
    y = arithmetic("*", x, scale)
    if len(args) > 1:
        y = arithmetic("*", y, _in_f32(args[1], formats))
    if len(args) > 2:
        y = arithmetic("+", y, _in_f32(args[2], formats))
    return bounded.convert(y, shape.dtype, formats)


def _grouped(expr: Expr, args: list[Number], formats: Formats) -> Number:
    """A contraction with the matrices looked up, zeros where an index is beyond them, whatever the row holds."""
    dim, summed = expr.info
    x, w, ids = args
    dims = expr.shape.dims
    made = bounded.contraction(x, _lookup(w, ids, dim, wrapped=False), summed, dims, expr.shape.dtype, formats)
    known = (ids.value < 0) | (ids.value >= w.value.shape[w.dims.index(dim)])
    beyond = certain("bool", ids.dims, known & ~np.isinf(ids.error)).aligned(dims)[0].astype(bool)
    value, error, addends = (np.where(beyond, 0.0, array) for array in (made.value, made.error, made.addends))
    return of(made.dtype, dims, value, error, addends)


def _lookup(table: Number, ids: Number, dim: str, wrapped: bool) -> Number:
    """The table's slices at these indices, zeros where they are beyond it."""
    at = table.dims.index(dim)
    extent = table.value.shape[at]
    index = ids.value % extent if wrapped else ids.value
    inside = (index >= 0) & (index < extent)
    rest = tuple(d for d in table.dims if d != dim)
    shared = tuple(d for d in rest if d in ids.dims)
    assert not shared
    lost = np.isinf(ids.error)
    side = (..., *(None for _ in rest))

    def read(array: Array) -> Array:
        rows = np.moveaxis(array, at, 0)
        taken = rows[np.clip(index, 0, extent - 1)]
        return np.where(inside[side], taken, np.zeros((), array.dtype))

    made = table.each(read, (*ids.dims, *rest))
    return of(made.dtype, made.dims, made.value, np.where(lost[side], UNKNOWN, made.error), made.addends)


def _rotary(expr: Expr, args: list[Number], run: _Run) -> Number:
    """Pairs (a, b) along D turned by the angle pos * base^(-2i/R)."""
    dim, base, style, turned, seq = expr.info
    formats, shape = run.formats, expr.shape
    x, pos = _in_f32(args[0], formats), args[1]
    half = turned // 2
    rates = args[2].value if len(args) > 2 else base ** (-2.0 * np.arange(half) / turned)
    if not pos.dims and seq in shape.dims:
        pos = of(
            "int32", (seq,), pos.value + np.arange(shape.extent(seq)), np.broadcast_to(pos.error, (shape.extent(seq),))
        )
    pair = "pair of " + dim
    others = tuple(d for d in shape.dims if d != dim)
    angles = np.multiply.outer(pos.value.astype(np.float64), rates)
    blur = 32 * formats["f32"].roundoff * np.abs(angles)
    lost = np.isinf(pos.error)[..., None] | (np.abs(angles) > 1e4)
    angle = of("f32", (*pos.dims, pair), angles, np.where(lost, UNKNOWN, blur))
    cos, sin = (bounded.function(name, angle, formats) for name in ("cos", "sin"))
    at = shape.dims.index(dim)

    def part(index: Array) -> Number:
        return x.each(lambda array: np.moveaxis(array.take(index, axis=at), at, -1), (*others, pair))

    i = np.arange(half)
    first, second = (i, i + half) if style == "neox" else (2 * i, 2 * i + 1)
    a, b = part(first), part(second)
    every = (*others, pair)

    def arithmetic(op: str, u: Number, v: Number) -> Number:
        return bounded.arithmetic(op, u, v, every, formats)

    new_a = arithmetic("-", arithmetic("*", a, cos), arithmetic("*", b, sin))
    new_b = arithmetic("+", arithmetic("*", b, cos), arithmetic("*", a, sin))
    out = [np.moveaxis(array, at, -1).copy() for array in (x.value, x.error, x.addends)]
    for index, new in ((first, new_a), (second, new_b)):
        for whole, change in zip(out, (new.value, new.error, new.addends), strict=True):
            whole[..., index] = change
    value, error, addends = (np.moveaxis(array, -1, at) for array in out)
    return bounded.convert(of("f32", shape.dims, value, error, addends), shape.dtype, formats)


def _update(expr: Expr, args: list[Number]) -> Number:
    """The cache with `new` written along T from `pos` on, at one index of each further dimension; what falls beyond it
    is dropped."""
    dim, written, wrapped, indexed = expr.info
    cache, new, *places = args
    inner = (*indexed, dim)
    others = tuple(d for d in cache.dims if d not in inner)
    order = [cache.dims.index(d) for d in (*others, *inner)]
    parts = [np.asarray(array) for array in new.aligned((*others, written) if written else others)]
    if not written:
        parts = [array[..., None] for array in parts]
    shape = tuple(cache.value.shape[at] for at in order[: len(others)])
    extents = [cache.value.shape[at] for at in order[len(others) :]]
    numbers = [np.broadcast_to(place.aligned(others)[0], shape) for place in places]
    lost = np.zeros(shape, bool)
    for place in places:
        lost |= np.isinf(np.broadcast_to(place.aligned(others)[1], shape))
    out = [array.transpose(order).copy() for array in (cache.value, cache.error, cache.addends)]
    for at in np.ndindex(shape):
        first, *fixed = (int(number[at]) for number in numbers)
        for step in range(parts[0].shape[-1]):
            t = (first + step) % extents[-1] if wrapped else first + step
            if all(0 <= i < extent for i, extent in zip((*fixed, t), extents, strict=True)):
                for whole, part in zip(out, parts, strict=True):
                    whole[(*at, *fixed, t)] = part[(*at, step)]
        if lost[at]:
            out[1][at] = UNKNOWN
    value, error, addends = (array.transpose(np.argsort(order)) for array in out)
    return of(cache.dtype, cache.dims, value, error, addends)


def _take(expr: Expr, x: Number) -> Number:
    dim, begin, end, blocks = expr.info
    at = x.dims.index(dim)
    if end is None:
        return x.each(lambda array: array.take(begin, axis=at), expr.shape.dims)
    extent = x.value.shape[at]
    index = np.arange(extent).reshape(blocks, -1)[:, begin // blocks : end // blocks].ravel()
    return x.each(lambda array: array.take(index, axis=at), expr.shape.dims)


def _concat(expr: Expr, args: list[Number]) -> Number:
    dim, blocks = expr.info
    at = expr.shape.dims.index(dim)

    def joined(arrays: list[Array]) -> Array:
        parts = [np.split(array, blocks, axis=at) for array in arrays]
        return np.concatenate([part[block] for block in range(blocks) for part in parts], axis=at)

    parts = [joined([getattr(arg, name) for arg in args]) for name in ("value", "error", "addends")]
    return Number(expr.shape.dtype, expr.shape.dims, parts[0], parts[1], parts[2])


def _topk(expr: Expr, args: list[Number], run: _Run) -> tuple[Number, ...]:
    """The k greatest, an equal share of them from each block."""
    dim, _, k, blocks = expr.info
    (x,) = args
    at = x.dims.index(dim)
    size = x.value.shape[at] // blocks
    first = np.arange(k // blocks)
    values: list[Number] = []
    ids: list[Number] = []
    for block in range(blocks):
        part = x.each(lambda array, block=block: array.take(np.arange(block * size, (block + 1) * size), axis=at))
        best, index = bounded.ranked(part, dim)
        values.append(best.each(lambda array: array.take(first, axis=at)))
        index = index.each(lambda array: array.take(first, axis=at))
        ids.append(of("int32", index.dims, index.value + block * size, index.error))
    dims = expr.shape.dims

    def joined(numbers: list[Number]) -> Number:
        arrays = [
            np.concatenate([getattr(n, what) for n in numbers], axis=at) for what in ("value", "error", "addends")
        ]
        return Number(numbers[0].dtype, dims, arrays[0], arrays[1], arrays[2])

    return joined(values), joined(ids)


def _uniform(expr: Expr, args: list[Number]) -> Number:
    from oracles.random_programs.threefry import uniform

    key, at = args
    every = expr.shape.dims
    dim = every[-1]
    batch = every[:-1]
    k, ek, _ = key.aligned(batch)
    p, ep, _ = at.aligned(batch)
    index = np.arange(expr.shape.extents[-1])
    value = uniform(k[..., None], p[..., None], index)
    unknown = np.broadcast_to((np.isinf(ek) | np.isinf(ep))[..., None], value.shape)
    assert dim in every
    # Numbers of f32 even where floats are exact, since equal random numbers everywhere are what the operation is for.
    return of("f32", every, value, np.where(unknown, UNKNOWN, 2 * bounded.DECLARED["f32"].roundoff * value))


_SEVERAL = {"topk": _topk}
