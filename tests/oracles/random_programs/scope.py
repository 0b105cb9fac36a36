"""The scope in which an expression is drawn, and how operands are picked from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from oracles.random_programs import eight_bits
from oracles.random_programs.tree import INTEGER_RANGES, Expr, Shaped, is_f8, is_integer, ref

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
    """The values that may be used, the sizes of dimensions here, and the loops around."""

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
        """The scope that a loop over `dim` sees; a value whose extent of `dim` is not the loop's is left out."""
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


def parts_of_blocks(d: Drawing, dim: str, extent: int, also: int) -> tuple[str, int]:
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
