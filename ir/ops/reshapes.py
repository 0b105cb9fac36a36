"""Renaming, splitting and merging dimensions: the same numbers under other names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from shardwright.ir.memory_shares import home_along, is_written
from shardwright.ir.operation import Arg, AxisRow, Context, Operation, linear_rows, misuse, pass_through
from shardwright.ir.ops.reductions import dims_static, require_dims
from shardwright.ir.text.syntax import ArrowStatic, Static
from shardwright.ir.types import Dim, Placement, Shape


@dataclass(frozen=True)
class Alias(Operation):
    """`z: T = y`: the same value under another name, and perhaps, at the surface level, in another layout."""

    keyword: ClassVar[str] = ""
    arity: ClassVar[tuple[int, int]] = (1, 1)
    takes_f8: ClassVar[bool] = True

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        return (args[0].tensor,)

    def lies(self, home: Placement, source: Shape, result: Shape) -> Placement | None:
        return home if is_written(home, result) else None

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield from pass_through(args, results[0], args[0].names)
        yield from linear_rows(args)


@dataclass(frozen=True)
class Rename(Operation):
    """`rename[L -> T](k)`. The extent stays; a split passes where both dimensions have equal digits."""

    keyword: ClassVar[str] = "rename"
    arity: ClassVar[tuple[int, int]] = (1, 1)
    takes_f8: ClassVar[bool] = True
    pairs: tuple[tuple[str, str], ...]

    @property
    def statics(self) -> tuple[Static, ...]:
        return tuple(ArrowStatic(dims_static([old]), dims_static([new])) for old, new in self.pairs)

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        require_dims(self.keyword, args[0], [old for old, _ in self.pairs])
        names = dict(self.pairs)
        for _, new in self.pairs:
            context.dim(new)
        dims = tuple(Dim(names.get(dim.name, dim.name), dim.size) for dim in args[0].tensor.dims)
        if len({dim.name for dim in dims}) != len(dims):
            raise misuse("wrong-dimensions", f"rename would give {args[0].text}: {args[0].shape} a dimension twice")
        return (Shape(args[0].tensor.dtype, dims),)

    def lies(self, home: Placement, source: Shape, result: Shape) -> Placement | None:
        along = dict(self.pairs).get(str(home.along), home.along)
        return replace(home, along=along) if is_written(home, source) else None

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        for before, after in zip(args[0].names, results[0].names, strict=True):
            yield AxisRow((before,), (after,))
        yield from linear_rows(args)


@dataclass(frozen=True)
class Split(Operation):
    """`split[H -> KG](q)`: index h becomes k = h div |G| and g = h mod |G|. `K_yG_z` comes of `H_yz` for free."""

    keyword: ClassVar[str] = "split"
    arity: ClassVar[tuple[int, int]] = (1, 1)
    takes_f8: ClassVar[bool] = True
    source: str
    parts: tuple[str, ...]

    @property
    def statics(self) -> tuple[Static, ...]:
        return (ArrowStatic(dims_static([self.source]), dims_static(self.parts)),)

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        require_dims(self.keyword, args[0], [self.source])
        shape = args[0].tensor
        parts = tuple(context.dim(name) for name in self.parts)
        if math.prod(part.size for part in parts) != shape.size(self.source):
            product = "*".join(f"{part.name}={part.size}" for part in parts)
            raise misuse(
                "size-mismatch", f"split: {self.source}={shape.size(self.source)} does not split into {product}"
            )
        dims: list[Dim] = []
        for dim in shape.dims:
            dims.extend(parts if dim.name == self.source else (dim,))
        if len({dim.name for dim in dims}) != len(dims):
            raise misuse("wrong-dimensions", f"split gives {args[0].text}: {shape} a dimension twice")
        return (Shape(shape.dtype, tuple(dims)),)

    def lies(self, home: Placement, source: Shape, result: Shape) -> Placement | None:
        if home.along == self.source:
            return home_along(home, source, self.parts[0], result)
        return home if is_written(home, source) else None

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield from pass_through(args, results[0], (name for name in args[0].names if name != self.source))
        for part in self.parts:
            yield AxisRow((self.source,), (part,))
        yield from linear_rows(args, (self.source,))


@dataclass(frozen=True)
class Merge(Operation):
    """`merge[KG -> H](o)`: the inverse of split; the result has H where the first part stood."""

    keyword: ClassVar[str] = "merge"
    arity: ClassVar[tuple[int, int]] = (1, 1)
    takes_f8: ClassVar[bool] = True
    parts: tuple[str, ...]
    target: str

    @property
    def statics(self) -> tuple[Static, ...]:
        return (ArrowStatic(dims_static(self.parts), dims_static([self.target])),)

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        require_dims(self.keyword, args[0], self.parts)
        shape = args[0].tensor
        context.dim(self.target)
        merged = Dim(self.target, math.prod(shape.size(part) for part in self.parts))
        dims: list[Dim] = []
        for dim in shape.dims:
            if dim.name == self.parts[0]:
                dims.append(merged)
            elif dim.name not in self.parts:
                dims.append(dim)
        if len({dim.name for dim in dims}) != len(dims):
            raise misuse("wrong-dimensions", f"merge gives {args[0].text}: {shape} a dimension twice")
        return (Shape(shape.dtype, tuple(dims)),)

    def side_by_side(self, names: Iterable[str]) -> list[str]:
        """The operand's dimensions with all parts where the first stands."""
        others = [name for name in names if name not in self.parts[1:]]
        at = others.index(self.parts[0])
        return [*others[:at], *self.parts, *others[at + 1 :]]

    def lies(self, home: Placement, source: Shape, result: Shape) -> Placement | None:
        if home.along == self.parts[0]:
            return home_along(home, source, self.target, result)
        return home if is_written(home, result) else None

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield from pass_through(args, results[0], (name for name in results[0].names if name != self.target))
        for part in self.parts:
            yield AxisRow((part,), (self.target,))
        yield from linear_rows(args, self.parts)
