"""Typed statements of looped collectives: names, the dimensions that they need, splits, merges and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shardwright.ir.digits import Order
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Arg, Context, Number, Operation
from shardwright.ir.ops import Full, Merge, Rename, Split
from shardwright.ir.program import Carry, DimInfo, Loop, index_value
from shardwright.ir.rewriter import Rewriter
from shardwright.ir.strategies import result_types
from shardwright.ir.types import Dim, DType, Shape, TensorType, axis_set, is_compact_dim


@dataclass(frozen=True)
class RingTensor:
    """A value by name, with the type that the block sees; `stem` is what names of what is made of it begin with."""

    name: str
    kind: TensorType
    stem: str = ""

    def called(self, suffix: str = "") -> str:
        """A name for what is made of it."""
        stem = self.stem or self.name
        return f"{stem}_{suffix}" if suffix else stem

    @property
    def names(self) -> tuple[str, ...]:
        return self.kind.names


@dataclass(frozen=True)
class RingFactor:
    """A factor of a dimension's index: a dimension of its own, with its digits: a ring's, or what stands between."""

    name: str
    size: int
    order: Order


class Dims:
    """Dimensions that loops need, each made once: the digits of rings, what is left between them, and trips."""

    def __init__(self, declared: Sequence[DimInfo], mesh: Mesh) -> None:
        self.mesh = mesh
        self.taken = {dim.name for dim in declared}
        self.known: dict[tuple[object, ...], str] = {}
        self.added: list[DimInfo] = []

    def of(self, what: str, key: tuple[object, ...], size: int, order: Order = ()) -> str:
        """The dimension for this purpose; `what` is the letter, or the dimension, that its name begins with."""
        full = (what, *key, size, order)
        if full not in self.known:
            name, count = what, 0
            while name in self.taken:
                count += 1
                name = f"{what}{count}"
            self.taken.add(name)
            self.known[full] = name
            self.added.append(DimInfo(name, size, None, order or None))
        return self.known[full]

    def stem(self, dim: str) -> str:
        """The beginning of names of parts of a dimension: its letter, or its whole name where that is a word."""
        return dim[0] if is_compact_dim(dim) else dim


@dataclass
class RingWriter:
    """Writes statements whose types follow from those of their operands."""

    mesh: Mesh
    sizes: dict[str, int]
    rewriter: Rewriter

    def let(
        self,
        operation: Operation,
        operands: Sequence[RingTensor | Number],
        wish: str,
        *,
        order: Sequence[str] | None = None,
        dtype: DType | None = None,
        kind: TensorType | None = None,
        stem: str = "",
    ) -> RingTensor:
        """The operation's result under a fresh name; `order` and `dtype` as a contraction or a sum may choose them."""
        args = [Arg(str(o), None, o) if isinstance(o, Number) else Arg(o.name, o.kind.shape) for o in operands]
        (shape,) = operation.infer(args, Context(self.sizes))
        if order is not None:
            shape = Shape(dtype or shape.dtype, tuple(sorted(shape.dims, key=lambda dim: order.index(dim.name))))
        names = [o if isinstance(o, Number) else o.name for o in operands]
        kinds = [None if isinstance(o, Number) else o.kind for o in operands]
        made = kind or result_types(operation, names, kinds, [shape], self.mesh)[0]
        return RingTensor(self.rewriter.let(operation, names, wish, made), made, stem)

    def aside(self) -> RingWriter:
        """A writer of statements that stand elsewhere: in a loop's body."""
        return replace(self, rewriter=self.rewriter.aside())

    def trial(self, write: Callable[[RingWriter], Sequence[RingTensor]]) -> list[TensorType]:
        """The types of what would be written; nothing is."""
        return [made.kind for made in write(replace(self, rewriter=self.rewriter.trial()))]

    def split(self, value: RingTensor, dim: str, factors: Sequence[RingFactor]) -> RingTensor:
        """The dimension as its factors, each split as its digits were."""
        if dim not in value.names:
            return value
        at = value.names.index(dim)
        dims = [Dim(factor.name, factor.size) for factor in factors]
        axes = value.kind.split(dim)
        splits = [axis_set(axis for axis in axes if axis in factor.order) for factor in factors]
        kind = replace(
            value.kind,
            dims=(*value.kind.dims[:at], *dims, *value.kind.dims[at + 1 :]),
            splits=(*value.kind.splits[:at], *splits, *value.kind.splits[at + 1 :]),
        )
        names = tuple(factor.name for factor in factors)
        operation = Split(dim, names) if len(names) > 1 else Rename(((dim, factors[0].name),))
        return self.let(operation, [value], value.called("blocks"), kind=kind, stem=value.called())

    def merge(self, value: RingTensor, names: Sequence[str], dim: str, wish: str) -> RingTensor:
        operation = Merge(tuple(names), dim) if len(names) > 1 else Rename(((names[0], dim),))
        return self.let(operation, [value], wish)

    def zeros(self, kind: TensorType, wish: str) -> RingTensor:
        return self.let(Full(kind.names, kind.dtype), [Number("0")], wish, kind=kind)

    def loop(
        self,
        dim: str,
        carried: Sequence[tuple[str, RingTensor]],
        body: Callable[[RingWriter, RingTensor, list[RingTensor]], Sequence[RingTensor]],
    ) -> list[RingTensor]:
        """A loop whose body is written by `body(writer, index, what is carried)`, which gives what follows."""
        index = self.rewriter.namer.fresh("i")
        inner = [self.rewriter.value(wish, start.kind) for wish, start in carried]
        writer = self.aside()
        place = Loop((), dim, index, (), (), ())
        arrived = [RingTensor(v.name, start.kind, wish) for v, (wish, start) in zip(inner, carried, strict=True)]
        following = body(writer, RingTensor(index, index_value(place).concrete), arrived)
        results = [self.rewriter.value(f"{wish}_last", start.kind) for wish, start in carried]
        self.rewriter.put(
            replace(
                place,
                results=tuple(results),
                carries=tuple(Carry(made, start.name) for made, (_, start) in zip(inner, carried, strict=True)),
                body=writer.rewriter.written(),
                following=tuple(made.name for made in following),
            )
        )
        return [RingTensor(v.name, start.kind, wish) for v, (wish, start) in zip(results, carried, strict=True)]
