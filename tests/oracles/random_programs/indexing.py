"""Draws expressions that look up, write, slice, join or name: one function for each kind of operation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from oracles.random_programs.build import rename as renamed
from oracles.random_programs.scope import Drawn, Scope, number, parts_of_blocks, pick, pick_index, union
from oracles.random_programs.tree import Expr, Shaped, is_wide, ref

if TYPE_CHECKING:
    from oracles.random_programs.draw import Drawing


# ------------------------------------------------------------ global indices


def _with_dim(d: Drawing, scope: Scope) -> tuple[Expr, str] | None:
    """An operand that has dimensions, and one of them."""
    picked = pick(d, scope, lambda s: bool(s.dims))
    return picked and (picked, d.rng.choice(picked.shape.dims))


def lookup(d: Drawing, scope: Scope) -> Drawn:
    if (picked := _with_dim(d, scope)) is None:
        return None
    table, dim = picked
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
    if (picked := _with_dim(d, scope)) is None:
        return None
    cache, dim = picked
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
        by, blocks = parts_of_blocks(d, dim, extent, extent)
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
        by, blocks = parts_of_blocks(d, dim, d.dims[dim].size, d.dims[dim].size)
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
