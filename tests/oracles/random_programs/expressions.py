"""Draws single expressions of what is in scope: one function for each kind of operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from oracles.random_programs import eight_bits
from oracles.random_programs.build import rename as renamed
from oracles.random_programs.tree import INTEGER_RANGES, Expr, Shaped, computes, is_f8, is_integer, is_wide, ref

if TYPE_CHECKING:
    from oracles.random_programs.draw import Drawing

Drawn = Expr | None


@dataclass(frozen=True)
class Source:
    """A value that may be used; kind: param, index, weight, state, local or carried."""

    name: str
    shape: Shaped
    kind: str


@dataclass
class Scope:
    """What may be used, the sizes of dimensions here, and the loops around."""

    sizes: dict[str, int]
    loops: tuple[str, ...] = ()
    entries: dict[str, Source] = field(default_factory=dict)
    nesting: int = 0

    def add(self, source: Source) -> None:
        self.entries[source.name] = source

    def drop(self, name: str) -> None:
        del self.entries[name]

    def sources(self) -> list[Source]:
        return list(self.entries.values())

    def inside(self, dim: str) -> Scope:
        """What a loop over `dim` sees; a value whose extent of `dim` is not the loop's is left out."""
        scope = Scope(self.sizes, (*self.loops, dim))
        for source in self.sources():
            shape = source.shape
            if dim in shape.dims:
                if shape.extent(dim) != self.sizes[dim]:
                    continue
                shape = shape.without(dim)
            scope.add(replace(source, shape=shape))
        return scope


def pick(d: Drawing, scope: Scope, fits: Callable[[Shaped], bool], kinds: tuple[str, ...] = ()) -> Drawn:
    """A value that fits: most often a name, sometimes an expression of its own."""
    if scope.nesting < 2 and not kinds and d.chance(0.15):
        from oracles.random_programs.draw import draw_expression

        scope.nesting += 1
        made = draw_expression(d, scope)
        scope.nesting -= 1
        if made is not None and not made.more and fits(made.shape):
            return made
    sources = [s for s in scope.sources() if fits(s.shape) and (not kinds or s.kind in kinds)]
    if not sources:
        return None
    weights = [(3 if s.kind in {"local", "carried"} else 1) * (3 if is_f8(s.shape.dtype) else 1) for s in sources]
    source = d.rng.choices(sources, weights)[0]
    return ref(source.name, source.shape)


def pick_index(d: Drawing, scope: Scope, fits: Callable[[Shaped], bool]) -> Drawn:
    """Positions or indices: what was drawn for them, or any int32."""
    kinds = ("index",) if d.chance(0.8) else ()
    return pick(d, scope, lambda s: s.dtype == "int32" and fits(s), kinds)


def number(d: Drawing, dtype: str) -> Expr:
    shape = Shaped(dtype, (), ())
    if dtype == "bool":
        value = d.rng.choice((0, 1))
        return Expr("number", shape, (), str(value), value)
    if is_integer(dtype):
        low, high = INTEGER_RANGES[dtype]
        value = d.rng.choice((0, 1, 2, 3, 5, 7, high, max(low, -1), max(low, -3), low))
        return Expr("number", shape, (), str(value), value)
    if is_f8(dtype):
        return eight_bits.number(d, dtype)
    text = d.rng.choice(("0", "1", "2", "0.5", "-1", "3", "1e-5", "-0.25", "inf", "-inf", "1e4"))
    if text.endswith("inf") and not d.chance(0.3):
        text = "0.5"
    return Expr("number", shape, (), text, float(text))


def union(*shapes: Shaped) -> tuple[tuple[str, ...], tuple[int, ...]] | None:
    """The dimensions of all, in the order of one that has them all if there is one; None where extents differ."""
    every = {dim for shape in shapes for dim in shape.dims}
    shapes = tuple(sorted(shapes, key=lambda shape: set(shape.dims) != every))
    sizes: dict[str, int] = {}
    for shape in shapes:
        for dim, extent in shape.sizes.items():
            if sizes.setdefault(dim, extent) != extent:
                return None
    return tuple(sizes), tuple(sizes.values())


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


def _blocks(d: Drawing, dim: str, extent: int, also: int) -> tuple[str, int]:
    """`, by=xy` and how many blocks that makes, for a dimension whose pinned order begins with these digits."""
    order = d.dims[dim].order
    if not order or extent != d.dims[dim].size or not d.chance(0.5):
        return "", 1
    by = order[: d.rng.randint(1, len(order))]
    blocks = 1
    for axis in by:
        blocks *= d.mesh[axis]
    if extent % blocks or also % blocks or any(len(axis) > 1 for axis in by):
        return "", 1
    d.features.add("by")
    return ", by=" + "".join(by), blocks


def topk(d: Drawing, scope: Scope) -> Drawn:
    a = pick(d, scope, lambda s: bool(s.dims) and computes(s.dtype))
    if a is None:
        return None
    dim = d.rng.choice(a.shape.dims)
    k = d.rng.randint(1, a.shape.extent(dim))
    name = d.rng.choice([n for n in d.dims if n not in a.shape.dims and n not in scope.loops] or [dim])
    if d.dims[name].size != k:
        d.features.add("extent")
    by, blocks = _blocks(d, dim, a.shape.extent(dim), k)
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


# ------------------------------------------------------------ global indices


def lookup(d: Drawing, scope: Scope) -> Drawn:
    table = pick(d, scope, lambda s: bool(s.dims))
    if table is None:
        return None
    dim = d.rng.choice(table.shape.dims)
    rest = table.shape.without(dim)
    ids = pick_index(d, scope, lambda s: dim not in s.dims and not set(s.dims) & set(rest.dims))
    if ids is None:
        return None
    wrapped = d.chance(0.4)
    shape = Shaped(table.shape.dtype, (*ids.shape.dims, *rest.dims), (*ids.shape.extents, *rest.extents))
    return Expr("lookup", shape, (table, ids), dim + (", wrap=true" if wrapped else ""), (dim, wrapped))


def grouped(d: Drawing, scope: Scope) -> Drawn:
    """Rows of x with the matrices of w that their indices say, summed over the dimensions that x and w share."""
    x = pick(d, scope, lambda s: bool(s.dims) and is_wide(s.dtype))
    if x is None:
        return None

    def fits(s: Shaped) -> bool:
        shared = set(s.dims) & set(x.shape.dims)
        return s.dtype == x.shape.dtype and 0 < len(shared) < len(s.dims) and union(x.shape, s) is not None

    w = pick(d, scope, fits)
    if w is None:
        return None
    summed = tuple(dim for dim in w.shape.dims if dim in x.shape.dims)
    dim = d.rng.choice([dim for dim in w.shape.dims if dim not in summed])
    ids = pick_index(d, scope, lambda s: not set(s.dims) & set(w.shape.dims) and union(x.shape, s) is not None)
    if ids is None:
        return None
    sizes = {**x.shape.sizes, **ids.shape.sizes, **w.shape.sizes}
    dims = tuple(name for name in sizes if name not in (dim, *summed))
    shape = Shaped(x.shape.dtype, dims, tuple(sizes[name] for name in dims))
    text = "".join(summed) if all(name[0].isupper() for name in summed) else " ".join(summed)
    return Expr("grouped", shape, (x, w, ids), f"{dim}, {text}", (dim, summed))


def iota(d: Drawing, scope: Scope) -> Drawn:
    dim = d.rng.choice([name for name in scope.sizes if name not in scope.loops])
    size = scope.sizes[dim]
    text = dim
    if d.chance(0.3):
        size = d.rng.randint(1, 9)
        text = f"{dim}, {size}"
        d.features.add("extent")
    return Expr("iota", Shaped("int32", (dim,), (size,)), (), text)


def full(d: Drawing, scope: Scope) -> Drawn:
    names = [name for name in scope.sizes if name not in scope.loops and name[0].isupper()]
    dims = tuple(d.rng.sample(names, min(len(names), d.rng.choice((1, 1, 2)))))
    dtype = d.rng.choice(d.formats)
    value = number(d, dtype)
    shape = Shaped(dtype, dims, tuple(scope.sizes[dim] for dim in dims))
    return Expr("full", shape, (replace(value, shape=value.shape),), f"{''.join(dims)}, {dtype}", value.info)


def uniform(d: Drawing, scope: Scope) -> Drawn:
    key = pick(d, scope, lambda s: s.dtype == "uint32")
    at = pick_index(d, scope, lambda s: True)
    if key is None or at is None or (every := union(key.shape, at.shape)) is None:
        return None
    names = [name for name in scope.sizes if name not in scope.loops and name not in every[0]]
    if not names:
        return None
    dim = d.rng.choice(names)
    return Expr("uniform", Shaped("f32", (*every[0], dim), (*every[1], scope.sizes[dim])), (key, at), dim)


def rotary(d: Drawing, scope: Scope) -> Drawn:
    x = pick(d, scope, lambda s: is_wide(s.dtype) and any(n % 2 == 0 for n in s.extents))
    if x is None:
        return None
    dim = d.rng.choice([name for name, n in x.shape.sizes.items() if n % 2 == 0])
    rotated = d.rng.choice(range(2, x.shape.extent(dim) + 1, 2))
    base = d.rng.choice((10, 100, 10000))
    style = d.rng.choice(("neox", "gptj"))
    seqs = [name for name in x.shape.dims if name != dim]
    seq = d.rng.choice(seqs) if seqs and d.chance(0.6) else None
    pos = pick_index(d, scope, lambda s: s.sizes.items() <= x.shape.sizes.items() and dim not in s.dims)
    if pos is None or (seq is None and dim == "L"):
        return None
    text = f"{dim}, base={base}, style={style}"
    if rotated != x.shape.extent(dim) or d.chance(0.3):
        text += f", rotated={rotated}"
    if seq:
        text += f", seq={seq}"
    return Expr("rotary", x.shape, (x, pos), text, (dim, float(base), style, rotated, seq or "L"))


def update(d: Drawing, scope: Scope) -> Drawn:
    cache = pick(d, scope, lambda s: bool(s.dims))
    if cache is None:
        return None
    dim = d.rng.choice(cache.shape.dims)
    rest = cache.shape.without(dim)
    indexed = tuple(d.rng.sample(rest.dims, d.rng.randint(1, len(rest.dims)))) if rest.dims and d.chance(0.3) else ()
    for name in indexed:
        rest = rest.without(name)

    def fits(s: Shaped) -> bool:
        if s.dtype != rest.dtype or union(rest, s.without(dim)) is None:
            return False
        others = [name for name in s.dims if name not in rest.dims]
        if not set(rest.dims) <= set(s.dims) or len(others) > 1 or (others and others[0] in (*scope.loops, *indexed)):
            return False
        return not others or s.extent(others[0]) <= cache.shape.extent(dim)

    new = pick(d, scope, fits)
    places = [pick_index(d, scope, lambda s: s.sizes.items() <= rest.sizes.items()) for _ in (dim, *indexed)]
    if new is None or None in places:
        return None
    written = [name for name in new.shape.dims if name not in rest.dims]
    wrapped = d.chance(0.4)
    info = (dim, written[0] if written else None, wrapped, indexed)
    text = "".join((dim, *indexed)) + (", wrap=true" if wrapped else "")
    return Expr("update", cache.shape, (cache, new, *(place for place in places if place)), text, info)


# ------------------------------------------------------------ extents and names


def take_range(d: Drawing, scope: Scope) -> Drawn:
    a = pick(d, scope, lambda s: any(n > 1 for n in s.extents))
    if a is None:
        return None
    dim = d.rng.choice([name for name, n in a.shape.sizes.items() if n > 1])
    extent = a.shape.extent(dim)
    begin = d.rng.randint(0, extent - 1)
    end = d.rng.randint(begin + 1, extent)
    by, blocks = "", 1
    if d.dims[dim].order:
        by, blocks = _blocks(d, dim, extent, extent)
        begin, end = begin // blocks * blocks, -(-end // blocks) * blocks
    if end - begin != d.dims[dim].size:
        d.features.add("extent")
    return Expr(
        "take", a.shape.resized(dim, dim, end - begin), (a,), f"{dim} {begin}:{end}{by}", (dim, begin, end, blocks)
    )


def alias(d: Drawing, scope: Scope) -> Drawn:
    """Another name; not of state, which may be set while the old version is still named."""
    sources = [s for s in scope.sources() if s.kind in {"local", "param", "weight", "carried"}]
    if not sources:
        return None
    source = d.rng.choice(sources)
    return ref(source.name, source.shape)


def take_one(d: Drawing, scope: Scope) -> Drawn:
    a = pick(d, scope, lambda s: bool(s.dims))
    if a is None:
        return None
    dim = d.rng.choice(a.shape.dims)
    at = d.rng.randrange(a.shape.extent(dim))
    return Expr("take", a.shape.without(dim), (a,), f"{dim}, {at}", (dim, at, None, 1))


def concat(d: Drawing, scope: Scope) -> Drawn:
    a = pick(d, scope, lambda s: bool(s.dims))
    if a is None:
        return None
    dim = d.rng.choice(a.shape.dims)
    rest = a.shape.without(dim)
    parts = [a]
    for _ in range(d.rng.choice((1, 1, 2))):
        b = pick(d, scope, lambda s: s.dims == a.shape.dims and s.without(dim) == rest and s.dtype == a.shape.dtype)
        if b is not None:
            parts.append(b)
    extent = sum(part.shape.extent(dim) for part in parts)
    if extent != d.dims[dim].size:
        d.features.add("extent")
    by, blocks = "", 1
    if d.dims[dim].order and all(part.shape.extent(dim) == d.dims[dim].size for part in parts):
        by, blocks = _blocks(d, dim, d.dims[dim].size, d.dims[dim].size)
    return Expr("concat", a.shape.resized(dim, dim, extent), tuple(parts), f"{dim}{by}", (dim, blocks))


def rename(d: Drawing, scope: Scope) -> Drawn:
    a = pick(d, scope, lambda s: bool(s.dims))
    if a is None:
        return None
    dim = d.rng.choice(a.shape.dims)
    names = [n for n in d.dims if n not in a.shape.dims and n not in scope.loops]
    same = [n for n in names if d.dims[n].size == a.shape.extent(dim)]
    if same and d.chance(0.8):
        names = same
    if not names or not d.chance(0.85):
        if len(a.shape.dims) < 2:
            return None
        one, two = d.rng.sample(a.shape.dims, 2)
        made = renamed(a, {one: two, two: one})
    else:
        made = renamed(a, {dim: d.rng.choice(names)})
    if any(d.dims[n].size != extent for n, extent in made.shape.sizes.items()):
        d.features.add("extent")
    return made


def split(d: Drawing, scope: Scope) -> Drawn:
    if "H" not in d.dims:
        return None
    k, g = d.dims["K"].size, d.dims["G"].size
    a = pick(d, scope, lambda s: any(n == k * g for n in s.extents) and not {"K", "G"} & set(s.dims))
    if a is None:
        return None
    dims = [n for n, extent in a.shape.sizes.items() if extent == k * g]
    dim = "H" if "H" in dims else d.rng.choice(dims)
    at = a.shape.dims.index(dim)
    shape = Shaped(
        a.shape.dtype,
        (*a.shape.dims[:at], "K", "G", *a.shape.dims[at + 1 :]),
        (*a.shape.extents[:at], k, g, *a.shape.extents[at + 1 :]),
    )
    return Expr("split", shape, (a,), f"{dim} -> KG", (dim, "K", "G"))


def merge(d: Drawing, scope: Scope) -> Drawn:
    """Two neighbouring dimensions made one: K and G into H, or any others into some dimension."""
    a = pick(d, scope, lambda s: len(s.dims) > 1)
    if a is None:
        return None
    at = d.rng.randrange(len(a.shape.dims) - 1)
    if "K" in a.shape.dims and a.shape.dims.index("K") < len(a.shape.dims) - 1:
        at = a.shape.dims.index("K")
    one, two = a.shape.dims[at : at + 2]
    extent = a.shape.extents[at] * a.shape.extents[at + 1]
    names = [n for n in d.dims if n not in a.shape.dims and n not in scope.loops]
    same = [n for n in names if d.dims[n].size == extent]
    if not names:
        return None
    name = "H" if (one, two) == ("K", "G") and "H" in same else d.rng.choice(same or names)
    if d.dims[name].size != extent:
        d.features.add("extent")
    shape = Shaped(
        a.shape.dtype,
        (*a.shape.dims[:at], name, *a.shape.dims[at + 2 :]),
        (*a.shape.extents[:at], extent, *a.shape.extents[at + 2 :]),
    )
    return Expr("merge", shape, (a,), f"{one}{two} -> {name}", (one, two, name))


SMOOTH_FUNCTIONS = ("gelu", "silu", "tanh", "sigmoid", "cos", "sin", "neg")
FUNCTIONS = (*SMOOTH_FUNCTIONS, "relu", "exp", "log", "log1p", "sqrt", "rsqrt", "abs", "round", "softsign")
SMOOTH = {
    "unary", "alias", "binary", "contraction", "reduction", "cumsum", "softmax", "norm", "lookup", "rotary", "update",
    "grouped", "take_range", "take_one", "concat", "rename", "split", "merge",
}  # fmt: skip
DRAWS: dict[str, Callable[[Drawing, Scope], Drawn]] = {
    "unary": unary,
    "alias": alias,
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
    "lookup": lookup,
    "grouped": grouped,
    "iota": iota,
    "full": full,
    "uniform": uniform,
    "rotary": rotary,
    "update": update,
    "take_range": take_range,
    "take_one": take_one,
    "concat": concat,
    "rename": rename,
    "split": split,
    "merge": merge,
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
