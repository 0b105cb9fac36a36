"""Draws whole programs, valid by the documentation: sizes, layouts, ranges, extents, formats, state, loops."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from oracles.random_programs import eight_bits, models
from oracles.random_programs.build import rename
from oracles.random_programs.expressions import DRAWS, SMOOTH, WEIGHTS
from oracles.random_programs.scope import Scope, Source
from oracles.random_programs.tree import (
    Assign,
    Decl,
    Dim,
    Expr,
    Free,
    Func,
    Layout,
    Loop,
    Program,
    SetState,
    Shaped,
    Stmt,
    Target,
    is_f8,
    ref,
)

LOOP_DIMS = ("N", "M")
_ORDERED = {"+", "-", "*", "/", "@", "maximum", "minimum", "less", "less_equal", "equal", "where", "logical_and"}
BIGGEST = 512
"""Elements of the largest array, so that a program costs milliseconds."""


@dataclass(frozen=True)
class Wishes:
    """What a campaign asks of its programs."""

    most_chips: int = 16
    statements: tuple[int, int] = (2, 7)
    one_memory: bool = False
    """Everything on the device."""
    smooth: bool = False
    """Numbers in f32, operations that have derivatives everywhere, and no addends at a function's edges."""
    eights: bool = True
    """8-bit floats in some of them."""
    fitting: bool = False
    """Nothing that may be refused: all axes that split a dimension anywhere divide its size together, and no partial
    maximum is demanded, which only a maximum over a split dimension gives."""


SMALL = Wishes(most_chips=8, statements=(1, 4))
"""Programs that cost some tens of milliseconds each, of which the tests take a thousand."""


@dataclass
class Drawing:
    rng: random.Random
    wishes: Wishes
    mesh: dict[str, int]
    dims: dict[str, Dim]
    formats: tuple[str, ...]
    fitting: dict[str, frozenset[str]] | None
    """The axes that may split each dimension, where all digits of the program are to fit together."""
    model: bool = False
    eights: tuple[str, ...] = ()
    """The 8-bit floats among the formats."""
    features: set[str] = field(default_factory=set[str])
    used: set[str] = field(default_factory=set[str])

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def name(self, wish: str) -> str:
        name, n = wish, 0
        while name in self.used:
            n += 1
            name = f"{wish}{n}"
        self.used.add(name)
        return name

    @contextmanager
    def names_of_a_loop(self) -> Iterator[None]:
        """Names drawn meanwhile are free again afterwards: those of a loop's body mean nothing outside."""
        outside = set(self.used)
        yield
        self.used &= outside

    # ------------------------------------------------------------ layouts

    def axes(self, shape: Shaped, taken: frozenset[str] = frozenset()) -> list[tuple[str, ...]]:
        """A random full layout: an axis on at most one dimension, which its chips divide."""
        splits: list[tuple[str, ...]] = [() for _ in shape.dims]
        axes = [axis for axis in self.mesh if axis not in taken]
        self.rng.shuffle(axes)
        for axis in axes:
            if not shape.dims or not self.chance(0.6):
                continue
            at = self.rng.randrange(len(shape.dims))
            dim, extent = shape.dims[at], shape.extents[at]
            if dim in LOOP_DIMS and not self.chance(0.01):
                continue
            order = self.dims[dim].order
            if order and axis not in order:
                continue
            if self.fitting is not None and axis not in self.fitting.get(dim, frozenset()):
                continue
            chips = self.mesh[axis]
            for other in splits[at]:
                chips *= self.mesh[other]
            if extent % chips == 0:
                splits[at] = (*splits[at], axis)
        return splits

    def layout(self, shape: Shaped, *, holes: float = 0.4, partial: float = 0.0) -> Layout:
        roll = self.rng.random()
        if roll < holes * 0.7 and shape.dims:
            return Layout(tuple(() for _ in shape.dims), open=True)
        taken: frozenset[str] = frozenset()
        part = ""
        if self.chance(partial) and self.mesh and not self.wishes.smooth and shape.dtype != "bool":
            axes = self.rng.sample(sorted(self.mesh), self.rng.randint(1, min(2, len(self.mesh))))
            taken = frozenset(axes)
            kind = "partialmax" if self.chance(0.4) and not self.wishes.fitting else "partialsum"
            text = "".join(sorted(axes)) if all(len(a) == 1 for a in axes) else "{" + ",".join(sorted(axes)) + "}"
            part = f"{kind}-{text}"
            self.features.add(kind)
        splits: list[tuple[str, ...] | None] = list(self.axes(shape, taken))
        if roll < holes and shape.dims:
            if self.chance(0.5):
                at = self.rng.randrange(len(shape.dims))
                splits[at] = None
            elif not part and not self.wishes.fitting:
                return Layout(tuple(splits), open=True)
        return Layout(tuple(splits), part, found=self.chance(0.1) and all(s is not None for s in splits))

    def annotation(self, shape: Shaped) -> Layout | None:
        if self.chance(0.55):
            return None
        return self.layout(shape, holes=0.45, partial=0.03)

    # ------------------------------------------------------------ statements

    def assign(self, scope: Scope, expr: Expr, names: tuple[str, ...]) -> Assign:
        targets: list[Target] = []
        expr = eight_bits.declared_product(self, expr)
        if expr.op in _ORDERED and len(expr.shape.dims) > 1 and self.chance(0.08):
            return self.reordered(scope, expr, names[0])
        for name, shape in zip(names, (expr.shape, *expr.more), strict=True):
            annotation = self.annotation(shape)
            made = eight_bits.target(self, name, shape, annotation) if eight_bits.is_product(expr) else None
            targets.append(made or Target(name, shape, annotation))
        for target in targets:
            scope.add(Source(target.name, target.shape, "local"))
        return Assign(tuple(targets), expr)

    def reordered(self, scope: Scope, expr: Expr, name: str) -> Assign:
        """With the dimensions of its result in a declared order, which such an operation follows."""
        order = self.rng.sample(range(len(expr.shape.dims)), len(expr.shape.dims))
        dims, extents = expr.shape.dims, expr.shape.extents
        shape = Shaped(expr.shape.dtype, tuple(dims[n] for n in order), tuple(extents[n] for n in order))
        scope.add(Source(name, shape, "local"))
        self.features.add("declared order")
        return Assign((Target(name, shape, self.layout(shape, holes=0.6)),), replace(expr, shape=shape))

    def block(self, scope: Scope, count: int, depth: int) -> list[Stmt]:
        body: list[Stmt] = []
        own: list[str] = []
        for _ in range(count):
            roll = self.rng.random()
            if self.model and self.chance(0.45):
                models.model_step(self, scope, body)
                continue
            if roll < 0.12 and depth < 2:
                loop = self.loop(scope, depth)
                if loop:
                    body.append(loop)
                continue
            if roll < 0.24:
                stmt = self.set_state(scope)
                if stmt:
                    body.append(stmt)
                continue
            if roll < 0.27 and len(own) > 2:
                name = self.rng.choice(own[:-1])
                own.remove(name)
                scope.drop(name)
                body.append(Free((name,)))
                continue
            expr = draw_expression(self, scope)
            if expr is None:
                continue
            wish = self.rng.choice("abcdghuvy")
            names = tuple(self.name(wish) for _ in (expr.shape, *expr.more))
            body.append(self.assign(scope, expr, names))
            own += names
        return body

    def set_state(self, scope: Scope) -> SetState | None:
        states = [source for source in scope.sources() if source.kind == "state"]
        if not states:
            return None
        state = self.rng.choice(states)
        made = self.like(scope, state.shape, avoid=state.name)
        if made is None:
            return None
        self.features.add("set")
        return SetState(state.name, made)

    def like(self, scope: Scope, shape: Shaped, avoid: str = "") -> Expr | None:
        """An expression of just this shape: an update, or arithmetic of values that there are."""
        same = [s for s in scope.sources() if s.shape == shape and s.name != avoid]
        itself = ref(avoid, shape) if avoid else None
        for _ in range(6):
            if self.chance(0.4):
                expr = draw_expression(self, scope, only=("update",))
                if expr and expr.shape == shape:
                    return expr
            expr = draw_expression(self, scope, only=("binary", "unary", "where", "convert", "contraction", "narrowed"))
            if expr and expr.shape == shape and expr.op != "ref":
                return expr
        others = [ref(s.name, s.shape) for s in same] + ([itself] if itself else [])
        if not others:
            return None
        a, b = self.rng.choice(others), self.rng.choice(others)
        if shape.dtype == "bool":
            return Expr("logical_or", shape, (a, b))
        if is_f8(shape.dtype):
            return eight_bits.like(self, a, b)
        return Expr(self.rng.choice("+-*"), shape, (a, b))

    def loop(self, scope: Scope, depth: int) -> Loop | None:
        dims = [dim for dim in LOOP_DIMS if dim in self.dims and dim not in scope.loops]
        if not dims:
            return None
        dim = self.rng.choice(dims)
        floats = [s for s in scope.sources() if dim not in s.shape.dims and s.kind != "state" and s.shape.dims]
        inside = scope.inside(dim)
        with self.names_of_a_loop():
            made = self.loop_body(dim, scope, inside, floats, depth)
            if made is None:
                return None
            results = tuple(Target(self.name("r"), target.shape, target.layout) for target in made.targets)
        self.used.update(target.name for target in results)
        self.features.add("loop" if depth == 0 else "nested-loop")
        for target in results:
            scope.add(Source(target.name, target.shape, "local"))
        return replace(made, targets=results)

    def loop_body(self, dim: str, scope: Scope, inside: Scope, floats: list[Source], depth: int) -> Loop | None:
        """A loop whose results have no names yet that others know."""
        index = self.name("i") if self.chance(0.5) else None
        carries: list[tuple[Target, Expr]] = []
        targets: list[Target] = []
        for _ in range(self.rng.choice((0, 1, 1, 1, 2, 2, 3))):
            if not floats:
                break
            start = self.rng.choice(floats)
            if set(start.shape.dims) & set(inside.loops):
                continue
            annotation = self.layout(start.shape, holes=0.4) if self.chance(0.6) else None
            carried = Target(self.name("h"), start.shape, annotation)
            carries.append((carried, ref(start.name, start.shape)))
            targets.append(Target("", start.shape, self.annotation(start.shape)))
        if index:
            inside.add(Source(index, Shaped("int32", (), ()), "index"))
        for target, _ in carries:
            inside.add(Source(target.name, target.shape, "carried"))
        body = self.block(inside, self.rng.randint(1, 4), depth + 1)
        if not carries and not any(isinstance(stmt, SetState) for stmt in body):
            stmt = self.set_state(inside)
            if stmt is None:
                return None
            body.append(stmt)
        following: list[Expr] = []
        for target, _ in carries:
            made = self.like(inside, target.shape, avoid=target.name)
            if made is None:
                return None
            following.append(made)
        return Loop(dim, index, tuple(targets), tuple(carries), tuple(body), tuple(following))

    def func(self, name: str, shared: list[Decl], state: list[Decl]) -> Func:
        sizes: dict[str, int] = {}
        dims = dict(self.dims)
        fixed = {dim for decl in (*shared, *state) for dim in decl.shape.dims} | set(LOOP_DIMS)
        free = [d for d in dims if d not in fixed and not dims[d].text and not dims[d].order]
        free = [d for d in free if not any(d in other.text for other in dims.values())]
        if free and self.chance(0.2):
            dim = self.rng.choice(free)
            sizes[dim] = self.rng.choice((1, 2, 3, 4, 6))
            self.features.add("override")
        before = self.dims
        self.dims = {d: replace(info, size=sizes.get(d, info.size)) for d, info in before.items()}
        self.used = {decl.name for decl in (*shared, *state)}
        scope = Scope({d: info.size for d, info in self.dims.items()})
        for decl in shared:
            scope.add(Source(decl.name, decl.shape, "weight"))
        for decl in state:
            scope.add(Source(decl.name, decl.shape, "state"))
        params: list[Decl] = []
        for _ in range(self.rng.randint(1, 3)):
            shape = self.shape()
            params.append(Decl(self.name(self.rng.choice("pqtx")), shape, self.layout(shape, holes=0.2, partial=0.06)))
        if self.chance(0.5):
            params.append(self.indices())
        if self.model:
            params += models.model_params(self)
        for param in params:
            scope.add(Source(param.name, param.shape, "index" if param.index_below is not None else "param"))
        body = self.block(scope, self.rng.randint(*self.wishes.statements), 0)
        returns = self.returns(scope, body)
        self.dims = before
        return Func(name, tuple(sorted(sizes.items())), tuple(params), tuple(body), tuple(returns))

    def returns(self, scope: Scope, body: list[Stmt]) -> list[tuple[Expr, Layout]]:
        local = [s for s in scope.sources() if s.kind == "local"]
        pool = local[-4:] or [s for s in scope.sources() if s.kind in {"param", "weight"}]
        chosen = self.rng.sample(pool, self.rng.randint(1, min(3, len(pool))))
        made: list[tuple[Expr, Layout]] = []
        for source in chosen:
            expr = self.declared(ref(source.name, source.shape))
            made.append((expr, self.layout(expr.shape, holes=0.35, partial=0.03)))
        return made

    def declared(self, expr: Expr) -> Expr:
        """With declared extents only: another extent is reduced, or renamed to a dimension of that size."""
        for dim, extent in expr.shape.sizes.items():
            if self.dims[dim].size == extent:
                continue
            names = [d for d, info in self.dims.items() if info.size == extent and d not in expr.shape.dims]
            if names and self.chance(0.7):
                expr = rename(expr, {dim: self.rng.choice(names)})
            elif expr.shape.dtype == "bool" or is_f8(expr.shape.dtype):
                expr = Expr(
                    "take", expr.shape.without(dim), (expr,), f"{dim}, {extent - 1}", (dim, extent - 1, None, 1)
                )
            else:
                op = self.rng.choice(("sum", "max"))
                expr = Expr(op, expr.shape.without(dim), (expr,), dim, (dim,))
        return expr

    # ------------------------------------------------------------ declarations

    def shape(self, dtype: str | None = None, most: int = 3) -> Shaped:
        names = [d for d in self.dims if d not in LOOP_DIMS]
        if self.chance(0.15):
            names += [d for d in LOOP_DIMS if d in self.dims]
        count = min(len(names), self.rng.choice((0, 1, 2, 2, 2, 3, 3)), most)
        chosen = self.rng.sample(names, count)
        dtype = dtype or self.rng.choice(self.formats)
        shape = Shaped(dtype, tuple(chosen), tuple(self.dims[d].size for d in chosen))
        return shape if shape.elements <= BIGGEST else shape.without(*chosen[1:])

    def indices(self) -> Decl:
        shape = self.shape("int32", most=2)
        top = max(self.dims[d].size for d in self.dims)
        return Decl(
            self.name("at"), shape, self.layout(shape, holes=0.2), index_below=self.rng.choice((3, top, top + 2))
        )


def draw_expression(drawing: Drawing, scope: Scope, only: tuple[str, ...] | None = None) -> Expr | None:
    """A random expression of one to three operations; None where the dice ask for what there is not."""
    smooth = drawing.wishes.smooth
    for _ in range(8):
        names = tuple(name for name in only or tuple(DRAWS) if name in SMOOTH or not smooth)
        names = names if drawing.eights else tuple(name for name in names if name not in eight_bits.DRAWS)
        if not names:
            return None
        name = drawing.rng.choices(names, [WEIGHTS.get(n, 1.0) for n in names])[0]
        made = DRAWS[name](drawing, scope)
        if made is None or any(
            s.elements > BIGGEST or len(set(s.dims)) < len(s.dims) for s in (made.shape, *made.more)
        ):
            continue
        if any(dim in scope.loops for s in (made.shape, *made.more) for dim in s.dims):
            continue  # a value with N inside a loop over N: legal, but nothing to be seen of it there
        return made
    return None


# ------------------------------------------------------------ programs


def draw_program(rng: random.Random, wishes: Wishes | None = None) -> Program:
    wishes = wishes or Wishes()
    eights = eight_bits.drawn_beside(rng, wishes)
    mesh = _mesh(rng, wishes)
    model = rng.random() < 0.2
    dims = models.model_dims(rng, mesh) if model else _dims(rng, mesh)
    main = rng.choices(("f32", "bf16", "f16"), (6, 2, 1))[0]
    others = rng.sample(("int8", "int32", "uint32", "int4", "bool", "f32"), rng.choice((0, 1, 1, 2)))
    formats = ("f32",) if wishes.smooth else tuple([main] * 3 + others + list(eights))
    fitting = None
    features: set[str] = set()
    if wishes.fitting or rng.random() < 0.7:
        fitting = {dim.name: _fitting(rng, mesh, dim) for dim in dims}
    else:
        features.add("digits")
    drawing = Drawing(rng, wishes, mesh, {dim.name: dim for dim in dims}, formats, fitting, model, eights, features)
    weights: list[Decl] = []
    state: list[Decl] = []
    if model:
        features.add("model")
        weights, state = models.model_values(drawing)
    for _ in range(0 if model else rng.choice((0, 1, 1, 2, 3))):
        shape = _with_loop(drawing, drawing.shape())
        weights.append(Decl(drawing.name("w"), shape, drawing.layout(shape, holes=0.2)))
    for _ in range(0 if model else rng.choice((0, 0, 1, 1, 2))):
        shape = _with_loop(drawing, drawing.shape())
        state.append(Decl(drawing.name("k"), shape, drawing.layout(shape, holes=0.2)))
    if state and not model and rng.random() < 0.4:
        state.append(Decl("pos", Shaped("int32", (), ()), Layout(()), index_below=3))
    count = rng.choice((1, 1, 1, 1, 2, 3))
    funcs = tuple(drawing.func(name, weights, state) for name in ("f", "prefill", "decode")[:count])
    if count > 1:
        drawing.features.add("functions")
    if model:
        weights, state = _used(weights, funcs), _used(state, funcs)
    if rng.random() < 0.06 and not wishes.one_memory:
        weights = [_elsewhere(drawing, decl) for decl in weights]
    made = Program(tuple(mesh.items()), tuple(dims), tuple(weights), tuple(state), funcs)
    if eights and eight_bits.formats_in(made):
        drawing.features.add("f8")
    return replace(made, features=frozenset(drawing.features))


def _used(decls: list[Decl], funcs: tuple[Func, ...]) -> list[Decl]:
    text = Program((), (), (), (), funcs).text()
    return [decl for decl in decls if re.search(rf"\b{decl.name}\b", text)]


def _elsewhere(d: Drawing, decl: Decl) -> Decl:
    """A weight in another memory, or shared among several along a dimension."""
    if d.chance(0.3):
        return decl
    d.features.add("placement")
    where = d.rng.choice(("host", "disk", "host"))
    wide = [dim for dim, axes in zip(decl.shape.dims, decl.layout.splits, strict=True) if axes == ()]
    wide = [dim for dim in wide if decl.shape.extent(dim) % 4 == 0 and dim not in LOOP_DIMS]
    if wide and not decl.layout.open and d.chance(0.4):
        where = f"device 25% host 75% along {d.rng.choice(wide)}"
    return replace(decl, layout=replace(decl.layout, placement=where))


def _with_loop(drawing: Drawing, shape: Shaped) -> Shaped:
    dims = [d for d in LOOP_DIMS if d in drawing.dims and d not in shape.dims]
    if dims and drawing.chance(0.5):
        dim = drawing.rng.choice(dims)
        at = 0 if drawing.chance(0.7) else drawing.rng.randint(0, len(shape.dims))
        made = Shaped(
            shape.dtype,
            (*shape.dims[:at], dim, *shape.dims[at:]),
            (*shape.extents[:at], drawing.dims[dim].size, *shape.extents[at:]),
        )
        return made if made.elements <= BIGGEST else shape
    return shape


def _mesh(rng: random.Random, wishes: Wishes) -> dict[str, int]:
    names = ("data", "model", "x", "y") if rng.random() < 0.05 else ("x", "y", "z", "w")
    mesh: dict[str, int] = {}
    n = 1
    for name in names[: rng.choice((1, 1, 1, 1, 2, 2, 2, 2, 3, 4))]:
        sizes = [size for size in (2, 2, 2, 2, 3, 4, 1) if n * size <= wishes.most_chips]
        mesh[name] = rng.choice(sizes)
        n *= mesh[name]
    return mesh


def _dims(rng: random.Random, mesh: dict[str, int]) -> list[Dim]:
    made: list[Dim] = []

    def size(most: int = 16) -> int:
        if rng.random() < 0.15:
            return rng.choice((1, 3, 5, 6, 7, 9, 10))
        n = rng.choice((1, 1, 2, 3))
        for axis in rng.sample(sorted(mesh), rng.randint(0, len(mesh))):
            if n * mesh[axis] <= most:
                n *= mesh[axis]
        return n

    order_all = tuple(rng.sample(sorted(mesh), len(mesh)))
    for name in rng.sample(("B", "L", "E", "F", "T", "V", "D"), rng.randint(3, 5)):
        n = size()
        chips = 1
        for axis in order_all:
            chips *= mesh[axis]
        pinned = n % chips == 0 and rng.random() < 0.15
        made.append(Dim(name, n, order=order_all if pinned else ()))
    by_name = {dim.name: dim for dim in made}
    if rng.random() < 0.5:
        k, g = size(6), size(4)
        made += [Dim("K", k), Dim("G", g), Dim("H", k * g, "K*G")]
    if rng.random() < 0.25 and "E" in by_name and "F" in by_name:
        made.append(Dim("A", by_name["E"].size + by_name["F"].size, "E+F"))
    made += [Dim(f"C{n}", n) for n in rng.sample(range(1, 7), 2)]
    made += [Dim(name, rng.choice((1, 2, 2, 3))) for name in LOOP_DIMS[: rng.choice((0, 1, 1, 2))]]
    return made


def _fitting(rng: random.Random, mesh: dict[str, int], dim: Dim) -> frozenset[str]:
    axes: set[str] = set()
    chips = 1
    for axis in rng.sample(sorted(mesh), len(mesh)):
        if dim.size % (chips * mesh[axis]) == 0:
            chips *= mesh[axis]
            axes.add(axis)
    return frozenset(axes)


__all__ = ["SMALL", "Wishes", "draw_program"]
