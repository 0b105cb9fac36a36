"""Draws programs that look like models: embeddings, norms, attention with a cache, feedforward layers, layer loops.

Each is a few statements that belong together, over whatever layouts the dice give; the steps between are those of all
other programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oracles.random_programs import build
from oracles.random_programs.scope import Scope, Source
from oracles.random_programs.tree import Assign, Decl, Dim, Expr, Loop, SetState, Shaped, Stmt, Target, is_f8, ref

if TYPE_CHECKING:
    import random

    from oracles.random_programs.draw import Drawing

_WEIGHTS = {
    "w_in": "EF", "w_out": "FE", "w_q": "EHD", "w_k": "ED", "w_o": "HDE", "scale": "E", "table": "VE",
    "layers_in": "NEF", "layers_out": "NFE",
}  # fmt: skip


def model_dims(rng: random.Random, mesh: dict[str, int]) -> list[Dim]:
    """Sizes of which most, but not all, are divided by every set of axes."""
    n = 1
    for size in mesh.values():
        n *= size
    base = n if n > 1 else rng.choice((1, 2, 3))
    k = rng.choice((base, 1, 2, 3))
    sizes = {
        "B": base * rng.choice((1, 2)), "L": rng.choice((base, 1, 2, 3)), "E": 2 * base, "F": base * rng.choice((1, 2)),
        "K": k, "G": 2, "D": rng.choice((2, 4)), "T": rng.choice((2 * base, 5, 6)),
        "V": rng.choice((base, 2 * base, 7)),
    }  # fmt: skip
    made = [Dim(name, min(size, 16)) for name, size in sizes.items()]
    made += [Dim("H", 2 * k, "K*G"), Dim("N", rng.choice((1, 2, 3))), Dim("C2", 2), Dim("C3", 3)]
    length = next(dim.size for dim in made if dim.name == "L")
    return [*made, Dim("P", length)]


def model_values(d: Drawing) -> tuple[list[Decl], list[Decl]]:
    """Weights and state."""
    weights = [_decl(d, name, row, _stored(d)) for name, row in _WEIGHTS.items()]
    state = [_decl(d, "cache", "BTD", _stored(d)), _decl(d, "caches", "NBTD", _stored(d))]
    state.append(Decl("pos", Shaped("int32", (), ()), d.layout(Shaped("int32", (), ())), index_below=3))
    return weights, state


def _stored(d: Drawing) -> str:
    """The format that weights and caches are kept in."""
    return d.rng.choice(("f32", *d.eights)) if d.eights else "f32"


def _decl(d: Drawing, name: str, row: str, dtype: str = "f32") -> Decl:
    shape = _shape(d, row, dtype)
    return Decl(name, shape, d.layout(shape, holes=0.2))


def _shape(d: Drawing, row: str, dtype: str = "f32") -> Shaped:
    return Shaped(dtype, tuple(row), tuple(d.dims[dim].size for dim in row))


def model_params(d: Drawing) -> list[Decl]:
    """Tokens' vectors, and their ids."""
    ids = _shape(d, "BL", "int32")
    return [
        _decl(d, d.name("tokens_in"), "BLE"),
        Decl(d.name("ids"), ids, d.layout(ids, holes=0.2), index_below=d.dims["V"].size + 1),
    ]


def model_step(d: Drawing, scope: Scope, body: list[Stmt]) -> None:
    """A few statements of a model, where what they need is at hand."""
    steps = [_feedforward, _attention, _cached, _embed, _heads, _gated]
    if not scope.loops:
        steps += [_layers, _layers]
    d.rng.choice(steps)(d, scope, body)


def _let(d: Drawing, scope: Scope, body: list[Stmt], expr: Expr) -> Expr:
    name = d.name(d.rng.choice("abcdghuvy"))
    body.append(d.assign(scope, expr, (name,)))
    return ref(name, body[-1].targets[0].shape)  # type: ignore[union-attr]


def _named(scope: Scope, name: str) -> Expr | None:
    """A weight or a state value, converted to f32 where it is kept in 8 bits."""
    found = _kept(scope, name)
    return build.convert(found, "f32") if found and is_f8(found.shape.dtype) else found


def _kept(scope: Scope, name: str) -> Expr | None:
    source = scope.entries.get(name)
    return ref(name, source.shape) if source else None


def _written(name: str, cache: Expr, new: Expr, pos: Expr, *, wrap: bool = False) -> SetState:
    """New keys at their positions in a cache, in its format."""
    new = build.convert(new, cache.shape.dtype) if is_f8(cache.shape.dtype) else new
    return SetState(name, build.update(cache, new, pos, "T", "L", wrap=wrap))


def _tokens(d: Drawing, scope: Scope) -> Expr | None:
    """A value BLE, in any order."""
    wanted = _shape(d, "BLE")
    found = [
        s for s in scope.sources()
        if s.shape.sizes == wanted.sizes and s.shape.dtype == "f32" and s.kind not in {"state", "weight"}
    ]  # fmt: skip
    if not found:
        return None
    source = d.rng.choice(found)
    return ref(source.name, source.shape)


def _feedforward(d: Drawing, scope: Scope, body: list[Stmt]) -> Expr | None:
    x, w_in, w_out = _tokens(d, scope), _named(scope, "w_in"), _named(scope, "w_out")
    if x is None or w_in is None or w_out is None:
        return None
    if d.chance(0.2):
        low = build.dot(build.convert(x, "bf16"), build.convert(w_in, "bf16"), "E")
        h = build.convert(_let(d, scope, body, low), "f32")
    elif d.eights and d.chance(0.5):
        w_kept = _kept(scope, "w_in")
        w_in = w_kept if w_kept and is_f8(w_kept.shape.dtype) else build.convert(w_in, d.eights[0])
        low = build.dot(build.convert(x, w_in.shape.dtype), w_in, "E")
        h = build.convert(_let(d, scope, body, low), "f32")
    else:
        h = _let(d, scope, body, build.dot(x, w_in, "E"))
    g = _let(d, scope, body, build.call(d.rng.choice(("gelu", "silu", "relu")), h))
    return _let(d, scope, body, build.dot(g, w_out, "F"))


def _gated(d: Drawing, scope: Scope, body: list[Stmt]) -> None:
    """Two halves of a product, one the gate of the other."""
    x, w = _tokens(d, scope), _named(scope, "w_in")
    if x is None or w is None or w.shape.extent("F") % 2:
        return
    half = w.shape.extent("F") // 2
    h = _let(d, scope, body, build.dot(x, w, "E"))
    left, right = build.take(h, "F", 0, half), build.take(h, "F", half, 2 * half)
    gated = _let(d, scope, body, build.infix("*", build.call("silu", left), right))
    _let(d, scope, body, build.concat(gated, "F", gated))


def _queries(d: Drawing, scope: Scope, body: list[Stmt]) -> tuple[Expr, Expr] | None:
    x, w, pos = _tokens(d, scope), _named(scope, "w_q"), _named(scope, "pos")
    if x is None or w is None:
        return None
    q = _let(d, scope, body, build.squashed(build.dot(x, w, "E")))
    if d.chance(0.5) and pos is not None:
        q = _let(d, scope, body, build.rotary(q, pos, "D", d.rng.choice(("neox", "gptj"))))
    return x, q


def _attention(d: Drawing, scope: Scope, body: list[Stmt]) -> None:
    """Over the tokens of the call, one head of keys for all queries; heads perhaps split in two."""
    pair, w = _queries(d, scope, body), _named(scope, "w_k")
    if pair is None or w is None:
        return
    x, q = pair
    if d.chance(0.3):
        parts = (("K", d.dims["K"].size), ("G", d.dims["G"].size))
        q = _let(d, scope, body, build.split(q, "H", parts))
    keys = _let(d, scope, body, build.rename(build.dot(x, w, "E"), {"L": "P"}))
    s = _let(d, scope, body, build.dot(q, keys, "D"))
    causal = "L" if d.chance(0.6) else None
    p = _let(d, scope, body, build.softmax(s, "P", causal, None, d.rng.choice((None, None, 2)) if causal else None))
    _output(d, scope, body, build.dot(p, keys, "P"))


def _cached(d: Drawing, scope: Scope, body: list[Stmt]) -> None:
    """New keys are written into the cache, and the queries see all of it that is not later than they are."""
    w, pos, cache = (_named(scope, name) for name in ("w_k", "pos", "cache"))
    kept = _kept(scope, "cache")
    if w is None or pos is None or cache is None or kept is None or d.dims["L"].size > cache.shape.extent("T"):
        return
    pair = _queries(d, scope, body)
    if pair is None:
        return
    x, q = pair
    new = build.dot(x, w, "E")
    body.append(_written("cache", kept, new, pos, wrap=d.chance(0.2)))
    s = _let(d, scope, body, build.dot(q, cache, "D"))
    p = _let(d, scope, body, build.softmax(s, "T", "L", pos))
    _output(d, scope, body, build.dot(p, cache, "T"))


def _output(d: Drawing, scope: Scope, body: list[Stmt], o: Expr) -> None:
    """Back from heads to embeddings."""
    w = _named(scope, "w_o")
    if w is None or not {"D"} <= set(o.shape.dims):
        return
    o = _let(d, scope, body, o)
    dims = o.shape.dims
    if "K" in dims:
        if "G" not in dims or dims.index("G") != dims.index("K") + 1:
            return
        o = _let(d, scope, body, build.merge(o, "K", "H"))
    if "H" in o.shape.dims:
        _let(d, scope, body, build.squashed(build.dot(o, w, "HD")))


def _heads(d: Drawing, scope: Scope, body: list[Stmt]) -> None:
    """Heads split in groups and merged again, something done in between."""
    found = [s for s in scope.sources() if "H" in s.shape.dims and not {"K", "G"} & set(s.shape.dims)]
    found = [s for s in found if s.shape.extent("H") == d.dims["H"].size and s.shape.dtype == "f32"]
    if not found:
        return
    source = d.rng.choice(found)
    parts = (("K", d.dims["K"].size), ("G", d.dims["G"].size))
    a = _let(d, scope, body, build.split(ref(source.name, source.shape), "H", parts))
    if a.shape.dims.index("G") == a.shape.dims.index("K") + 1:
        _let(d, scope, body, build.merge(build.call("tanh", a), "K", "H"))


def _embed(d: Drawing, scope: Scope, body: list[Stmt]) -> None:
    table, ids = _named(scope, "table"), _named(scope, "ids")
    if table is not None and ids is not None:
        _let(d, scope, body, build.lookup(table, ids, "V"))


def _layers(d: Drawing, scope: Scope, body: list[Stmt]) -> None:
    """A loop over layers: a norm, a feedforward block with a residual, perhaps an attention over each layer's cache."""
    x = _tokens(d, scope)
    names = ("layers_in", "layers_out", "w_k", "pos", "caches")
    if x is None or any(name not in scope.entries for name in names):
        return
    with d.names_of_a_loop():
        inside = scope.inside("N")
        h = Target(d.name("h"), x.shape, d.layout(x.shape, holes=0.4) if d.chance(0.5) else None)
        inside.add(Source(h.name, h.shape, "carried"))
        inner: list[Stmt] = []
        carried = ref(h.name, h.shape)
        a = _let(d, inside, inner, build.norm(d.rng.choice(("rmsnorm", "layernorm")), carried, "E"))
        w_in, w_out, w_k, pos, caches = (_named(inside, name) for name in names)
        kept = _kept(inside, "caches")
        if w_in is None or w_out is None or w_k is None or pos is None or caches is None or kept is None:
            return
        g = _let(d, inside, inner, build.call("gelu", build.dot(a, w_in, "E")))
        o = _let(d, inside, inner, build.squashed(build.dot(g, w_out, "F")))
        if d.chance(0.5) and d.dims["L"].size <= caches.shape.extent("T"):
            q = _let(d, inside, inner, build.squashed(build.dot(a, w_k, "E")))
            inner.append(_written("caches", kept, q, pos))
            s = _let(d, inside, inner, build.dot(q, caches, "D"))
            p = _let(d, inside, inner, build.softmax(s, "T", "L", pos))
            c = _let(d, inside, inner, build.dot(p, caches, "T"))
            shape = c.shape.without("D")
            total = _let(d, inside, inner, Expr("sum", shape, (c,), "D", ("D",)))
            if set(shape.dims) <= set(o.shape.dims):
                o = _let(d, inside, inner, build.infix("*", o, build.call("tanh", total)))
        index = d.name("i") if d.chance(0.4) else None
        if index:
            inside.add(Source(index, Shaped("int32", (), ()), "index"))
        inner += d.block(inside, d.rng.randint(0, 2), 1)
        name = d.name("r")
    d.used.add(name)
    if o.shape.dims != h.shape.dims:
        return
    result = Target(name, x.shape, d.annotation(x.shape))
    body.append(Loop("N", index, (result,), ((h, x),), tuple(inner), (build.infix("+", carried, o),)))
    scope.add(Source(result.name, result.shape, "local"))
    d.features.add("loop")


__all__ = ["Assign", "model_dims", "model_params", "model_step", "model_values"]
