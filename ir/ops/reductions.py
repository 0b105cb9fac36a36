"""Reductions over dimensions, and the norms and softmax that `passes.compiling.decompose` builds from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from shardwright.ir.operation import MAX, SUM, Arg, AxisRow, Context, Operation, misuse, pass_through
from shardwright.ir.text.syntax import DimsStatic, NegExpr, NumberExpr, OptionStatic, RowDim, Static
from shardwright.ir.types import DType, Reduction, Shape


def dims_static(names: Iterable[str]) -> DimsStatic:
    """Dimensions as a static: the `T` of `softmax[T]`."""
    return DimsStatic(tuple(RowDim(name) for name in names))


def number_static(value: float) -> NumberExpr | NegExpr:
    """A number as a static's value."""
    text = f"{abs(value):g}" if float(f"{value:g}") == value else repr(abs(value))
    number = NumberExpr(text.replace("e-0", "e-").replace("e+", "e"))
    return NegExpr(number) if value < 0 else number


def require_dims(keyword: str, arg: Arg, dims: Iterable[str]) -> None:
    """Raises where the operand lacks one of the dimensions."""
    for name in dims:
        if name not in arg.tensor:
            raise misuse("wrong-dimensions", f"{keyword}[{name}]: {arg.text}: {arg.shape} has no {name}")


class _Reduce(Operation):
    arity: ClassVar[tuple[int, int]] = (1, 1)
    kind: ClassVar[Reduction]
    dims: tuple[str, ...]

    @property
    def statics(self) -> tuple[Static, ...]:
        return (dims_static(self.dims),)

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        require_dims(self.keyword, args[0], self.dims)
        shape = args[0].tensor
        if shape.dtype is DType.BOOL:
            raise misuse("dtype-mismatch", f"{self.keyword} of bool: convert it first, convert[int32]({args[0].text})")
        return (Shape(shape.dtype, tuple(dim for dim in shape.dims if dim.name not in self.dims)),)

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield from pass_through(args, results[0], results[0].names)
        for name in self.dims:
            yield AxisRow((name,), (self.kind,))
        yield AxisRow((self.kind,), (self.kind,))


@dataclass(frozen=True)
class Sum(_Reduce):
    """`sum[E](x)`, accumulated in f32 and rounded. Over a split dimension it gives a partial sum."""

    keyword: ClassVar[str] = "sum"
    kind: ClassVar[Reduction] = SUM
    dims: tuple[str, ...]


@dataclass(frozen=True)
class Max(_Reduce):
    """`max[E](x)`. Over a split dimension it gives a partial maximum."""

    keyword: ClassVar[str] = "max"
    kind: ClassVar[Reduction] = MAX
    dims: tuple[str, ...]


@dataclass(frozen=True)
class Cumsum(Operation):
    """`cumsum[S](x)`: element s is the sum of the elements up to s, itself among them; accumulated as `sum` does.

    S is whole: an element needs all before it. The operation is linear, so partial sums pass.
    """

    keyword: ClassVar[str] = "cumsum"
    arity: ClassVar[tuple[int, int]] = (1, 1)
    dim: str

    @property
    def statics(self) -> tuple[Static, ...]:
        return (dims_static([self.dim]),)

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        require_dims(self.keyword, args[0], [self.dim])
        shape = args[0].tensor
        if shape.dtype is DType.BOOL:
            raise misuse("dtype-mismatch", f"cumsum of bool: convert it first, convert[int32]({args[0].text})")
        return (shape,)

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield from pass_through(args, results[0], (name for name in results[0].names if name != self.dim))
        yield AxisRow((SUM,), (SUM,))


@dataclass(frozen=True)
class Argmax(Operation):
    """`argmax[V](x)`: the least index of a greatest element, int32. `decompose` lets V be split."""

    keyword: ClassVar[str] = "argmax"
    arity: ClassVar[tuple[int, int]] = (1, 1)
    dim: str

    @property
    def statics(self) -> tuple[Static, ...]:
        return (dims_static([self.dim]),)

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        require_dims(self.keyword, args[0], [self.dim])
        if args[0].tensor.dtype is DType.BOOL:
            raise misuse("dtype-mismatch", f"argmax of bool: convert it first, convert[int32]({args[0].text})")
        return (Shape(DType.INT32, tuple(dim for dim in args[0].tensor.dims if dim.name != self.dim)),)

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield from pass_through(args, results[0], results[0].names)


class _Norm(Operation):
    """Computed in f32 and rounded; the dimensions of the norm are whole, the others may be split."""

    dims: tuple[str, ...]
    eps: float

    @property
    def statics(self) -> tuple[Static, ...]:
        return (dims_static(self.dims), OptionStatic("eps", number_static(self.eps)))

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        require_dims(self.keyword, args[0], self.dims)
        shape = args[0].tensor
        if not shape.dtype.is_float:
            raise misuse(
                "dtype-mismatch", f"{self.keyword} takes a floating-point value, and {args[0].text} is {shape.dtype}"
            )
        for arg, role in zip(args[1:], ("scale", "offset"), strict=False):
            for dim in arg.tensor.dims:
                if dim not in shape.dims:
                    raise misuse(
                        "wrong-dimensions",
                        f"{self.keyword}: the {role} {arg.text}: {arg.shape} has {dim.name},"
                        f" which {args[0].text}: {shape} lacks or has in another size",
                    )
        return (shape,)

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield from pass_through(args, results[0], (name for name in results[0].names if name not in self.dims))


@dataclass(frozen=True)
class Layernorm(_Norm):
    """`layernorm[E, eps=1e-5](x, scale, offset)`; scale and offset may be left out (Ba et al. 2016)."""

    keyword: ClassVar[str] = "layernorm"
    arity: ClassVar[tuple[int, int]] = (1, 3)
    dims: tuple[str, ...]
    eps: float = 1e-5


@dataclass(frozen=True)
class Rmsnorm(_Norm):
    """`rmsnorm[E, eps=1e-6](x, scale)`: no mean is subtracted (Zhang and Sennrich 2019)."""

    keyword: ClassVar[str] = "rmsnorm"
    arity: ClassVar[tuple[int, int]] = (1, 2)
    dims: tuple[str, ...]
    eps: float = 1e-6


@dataclass(frozen=True)
class Softmax(Operation):
    """`softmax[T](s)`, in f32 and rounded. `softmax[T, causal=L](s, pos)` lets position t through where t <= l + pos.

    `pos` (int32, 0 if left out) is the cache position of the first query, a scalar or one for each batch element.
    `window=w` lets only the last w of those through, t > l + pos - w (Beltagy et al. 2020, sliding window attention).
    """

    keyword: ClassVar[str] = "softmax"
    arity: ClassVar[tuple[int, int]] = (1, 2)
    dims: tuple[str, ...]
    causal: str | None = None
    window: int | None = None

    @property
    def statics(self) -> tuple[Static, ...]:
        made: list[Static] = [dims_static(self.dims)]
        if self.causal is not None:
            made.append(OptionStatic("causal", dims_static([self.causal])))
        if self.window is not None:
            made.append(OptionStatic("window", number_static(self.window)))
        return tuple(made)

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        require_dims(self.keyword, args[0], self.dims)
        shape = args[0].tensor
        if not shape.dtype.is_float:
            raise misuse("dtype-mismatch", f"softmax takes a floating-point value, and {args[0].text} is {shape.dtype}")
        if self.causal is not None:
            require_dims("softmax causal", args[0], [self.causal])
            if len(self.dims) != 1 or self.causal in self.dims:
                raise misuse(
                    "wrong-dimensions",
                    f"softmax[{''.join(self.dims)}, causal={self.causal}]: a causal softmax is over one dimension,"
                    " that of the keys, and causal names that of the queries",
                    "as in softmax[T, causal=L](s)",
                )
        elif self.window is not None:
            raise misuse(
                "wrong-operands",
                f"softmax has a window only where it is causal: softmax[T, causal=L, window={self.window}]",
            )
        if len(args) > 1:
            require_positions(self.keyword, args[1], shape)
            if self.causal is None:
                raise misuse("wrong-operands", "softmax takes positions only where it is causal: softmax[T, causal=L]")
        return (shape,)

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        fixed = {*self.dims, self.causal}
        yield from pass_through(args, results[0], (name for name in results[0].names if name not in fixed))


def far_position(positions: int, queries: int, window: int | None) -> int | None:
    """A position from which on so many queries all see the same of so many positions: all, or none in a window. None
    where a query from there on may be at a position beyond int32, since the window is so large."""
    far = positions + (window or 0)
    return far if far + queries < 2**31 else None


def require_positions(keyword: str, arg: Arg, over: Shape) -> None:
    """Raises unless the operand is int32 and its dimensions are among those of `over`."""
    if arg.shape is None:
        return
    if arg.shape.dtype is not DType.INT32:
        raise misuse("dtype-mismatch", f"{keyword} takes positions in int32, and {arg.text} is {arg.shape.dtype}")
    for dim in arg.shape.dims:
        if dim not in over.dims:
            raise misuse("wrong-dimensions", f"{keyword}: the positions {arg.text}: {arg.shape} do not fit {over}")
