"""Elementwise operations: arithmetic, comparison, selection and functions, with broadcasting by name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from shardwright.ir.operation import (
    MAX,
    SUM,
    Arg,
    AxisRow,
    Context,
    Operation,
    misuse,
    pass_through,
    same_dtype,
    whole_row,
)
from shardwright.ir.syntax import OptionStatic, Static, WordStatic
from shardwright.ir.types import Dim, DType, Shape, State


def broadcast_dims(operation: str, args: Sequence[Arg], declared: Shape | None) -> tuple[Dim, ...]:
    """The union of the operands' dimensions.

    In the declared order if there is one, else in the order of an operand that has them all, else of
    first appearance.
    """
    found: dict[str, Dim] = {}
    owner: dict[str, str] = {}
    for arg in args:
        for dim in arg.shape.dims if arg.shape else ():
            known = found.setdefault(dim.name, dim)
            owner.setdefault(dim.name, arg.text)
            if known.size != dim.size:
                raise misuse(
                    "size-mismatch",
                    f"{operation}: {dim.name} is {known.size} in {owner[dim.name]} and {dim.size} in {arg.text}",
                )
    if declared is not None and set(declared.names) == set(found):
        return tuple(found[name] for name in declared.names)
    for arg in args:
        if arg.shape is not None and set(arg.shape.names) == set(found):
            return arg.shape.dims
    return tuple(found.values())


class Elementwise(Operation):
    """The result at an index depends on the operands at that index alone."""

    def result_dtype(self, args: Sequence[Arg]) -> DType:
        return same_dtype(self.keyword, args)

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        return (Shape(self.result_dtype(args), broadcast_dims(self.keyword, args, context.declared)),)

    def axis_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield whole_row(args)
        yield from pass_through(args, results[0], results[0].names)
        yield from self.partial_rows(args)

    def partial_rows(self, args: Sequence[Arg]) -> Iterable[AxisRow]:
        """Rows in which partial values pass; none unless the function is linear or does not decrease."""
        return ()


def _uniform(args: Sequence[Arg], state: State, positions: Iterable[int]) -> AxisRow:
    chosen = set(positions)
    return AxisRow(tuple(state if i in chosen and arg.shape else None for i, arg in enumerate(args)), (state,))


# ---------------------------------------------------------------- arithmetic


@dataclass(frozen=True)
class Add(Elementwise):
    """`a + b`. Sums of values partial over the same axes are partial; a maximum may be shifted by a whole value."""

    keyword: ClassVar[str] = "+"
    arity: ClassVar[tuple[int, int]] = (2, 2)

    def partial_rows(self, args: Sequence[Arg]) -> Iterable[AxisRow]:
        if all(arg.shape is not None or arg.is_zero for arg in args):
            yield _uniform(args, SUM, range(2))
        for i in range(2):
            if args[i].shape is not None:
                yield _uniform(args, MAX, [i])


@dataclass(frozen=True)
class Sub(Elementwise):
    """`a - b`."""

    keyword: ClassVar[str] = "-"
    arity: ClassVar[tuple[int, int]] = (2, 2)

    def partial_rows(self, args: Sequence[Arg]) -> Iterable[AxisRow]:
        if all(arg.shape is not None or arg.is_zero for arg in args):
            yield _uniform(args, SUM, range(2))
        if args[0].shape is not None:
            yield _uniform(args, MAX, [0])


@dataclass(frozen=True)
class Mul(Elementwise):
    """`a * b`. One factor may be partial where the other is whole."""

    keyword: ClassVar[str] = "*"
    arity: ClassVar[tuple[int, int]] = (2, 2)

    def partial_rows(self, args: Sequence[Arg]) -> Iterable[AxisRow]:
        for i in range(2):
            other = args[1 - i].number
            if args[i].shape is not None and (other is None or math.isfinite(other.value)):
                yield _uniform(args, SUM, [i])
                if other is not None and other.value > 0:
                    yield _uniform(args, MAX, [i])


@dataclass(frozen=True)
class Div(Elementwise):
    """`a / b`. The numerator may be partial where the denominator is whole; between integers, which round down, not."""

    keyword: ClassVar[str] = "/"
    arity: ClassVar[tuple[int, int]] = (2, 2)

    def partial_rows(self, args: Sequence[Arg]) -> Iterable[AxisRow]:
        shape, number = args[0].shape, args[1].number
        if shape is None:
            return
        if shape.dtype.is_float and (number is None or number.value != 0):
            yield _uniform(args, SUM, [0])
        if number is not None and 0 < number.value < math.inf:
            yield _uniform(args, MAX, [0])


@dataclass(frozen=True)
class Neg(Elementwise):
    """`-a`."""

    keyword: ClassVar[str] = "neg"
    arity: ClassVar[tuple[int, int]] = (1, 1)

    def partial_rows(self, args: Sequence[Arg]) -> Iterable[AxisRow]:
        yield _uniform(args, SUM, [0])


class _Extremum(Elementwise):
    arity: ClassVar[tuple[int, int]] = (2, 2)


@dataclass(frozen=True)
class Maximum(_Extremum):
    """`maximum(a, b)`. Taking the maximum twice changes nothing, so either operand may be whole."""

    keyword: ClassVar[str] = "maximum"

    def partial_rows(self, args: Sequence[Arg]) -> Iterable[AxisRow]:
        for states in product((None, MAX), repeat=2):
            if any(states) and all(s is None or a.shape is not None for s, a in zip(states, args, strict=True)):
                yield AxisRow(states, (MAX,))


@dataclass(frozen=True)
class Minimum(_Extremum):
    """`minimum(a, b)`; not decreasing in either operand."""

    keyword: ClassVar[str] = "minimum"

    def partial_rows(self, args: Sequence[Arg]) -> Iterable[AxisRow]:
        for i in range(2):
            if args[i].shape is not None:
                yield _uniform(args, MAX, [i])


# ---------------------------------------------------------------- comparison, logic, selection


class _Comparison(Elementwise):
    arity: ClassVar[tuple[int, int]] = (2, 2)

    def result_dtype(self, args: Sequence[Arg]) -> DType:
        same_dtype(self.keyword, args)
        return DType.BOOL


@dataclass(frozen=True)
class Less(_Comparison):
    keyword: ClassVar[str] = "less"


@dataclass(frozen=True)
class LessEqual(_Comparison):
    keyword: ClassVar[str] = "less_equal"


@dataclass(frozen=True)
class Equal(_Comparison):
    keyword: ClassVar[str] = "equal"


class _Logic(Elementwise):
    def result_dtype(self, args: Sequence[Arg]) -> DType:
        for arg in args:
            if arg.tensor.dtype is not DType.BOOL:
                raise misuse("dtype-mismatch", f"{self.keyword} takes bool, and {arg.text} is {arg.tensor.dtype}")
        return DType.BOOL


@dataclass(frozen=True)
class LogicalAnd(_Logic):
    keyword: ClassVar[str] = "logical_and"
    arity: ClassVar[tuple[int, int]] = (2, 2)


@dataclass(frozen=True)
class LogicalOr(_Logic):
    keyword: ClassVar[str] = "logical_or"
    arity: ClassVar[tuple[int, int]] = (2, 2)


@dataclass(frozen=True)
class LogicalNot(_Logic):
    keyword: ClassVar[str] = "logical_not"
    arity: ClassVar[tuple[int, int]] = (1, 1)


@dataclass(frozen=True)
class Where(Elementwise):
    """`where(mask, a, b)`: a where the mask holds, else b. Under a whole mask partial values pass."""

    keyword: ClassVar[str] = "where"
    arity: ClassVar[tuple[int, int]] = (3, 3)

    def result_dtype(self, args: Sequence[Arg]) -> DType:
        if args[0].tensor.dtype is not DType.BOOL:
            raise misuse("dtype-mismatch", f"where takes a bool mask, and {args[0].text} is {args[0].tensor.dtype}")
        return same_dtype(self.keyword, args[1:])

    def partial_rows(self, args: Sequence[Arg]) -> Iterable[AxisRow]:
        if all(arg.shape is not None or arg.is_zero for arg in args[1:]):
            yield _uniform(args, SUM, [1, 2])
        for states in product((None, MAX), repeat=2):
            if any(states) and all(s is None or a.shape is not None for s, a in zip(states, args[1:], strict=True)):
                yield AxisRow((None, *states), (MAX,))


# ---------------------------------------------------------------- functions of one operand


class Function(Elementwise):
    """A function of one floating-point operand."""

    arity: ClassVar[tuple[int, int]] = (1, 1)
    nondecreasing: ClassVar[bool] = False

    def result_dtype(self, args: Sequence[Arg]) -> DType:
        dtype = args[0].tensor.dtype
        if not dtype.is_float:
            raise misuse(
                "dtype-mismatch",
                f"{self.keyword} takes a floating-point value, and {args[0].text} is {dtype}",
                f"convert it first: convert[f32]({args[0].text})",
            )
        return dtype

    def partial_rows(self, args: Sequence[Arg]) -> Iterable[AxisRow]:
        if self.nondecreasing:
            yield _uniform(args, MAX, [0])


@dataclass(frozen=True)
class Gelu(Function):
    """`gelu(x)` is the exact form x Phi(x); `gelu[form=tanh](x)` the tanh approximation (Hendrycks and Gimpel 2016)."""

    keyword: ClassVar[str] = "gelu"
    form: str = "exact"

    @property
    def statics(self) -> tuple[Static, ...]:
        return () if self.form == "exact" else (OptionStatic("form", WordStatic((self.form,))),)


@dataclass(frozen=True)
class Silu(Function):
    """`x sigmoid(x)`."""

    keyword: ClassVar[str] = "silu"


@dataclass(frozen=True)
class Relu(Function):
    keyword: ClassVar[str] = "relu"
    nondecreasing: ClassVar[bool] = True


@dataclass(frozen=True)
class Exp(Function):
    keyword: ClassVar[str] = "exp"
    nondecreasing: ClassVar[bool] = True


@dataclass(frozen=True)
class Log(Function):
    """Of a negative maximand it is NaN, so maxima do not pass."""

    keyword: ClassVar[str] = "log"


@dataclass(frozen=True)
class Log1p(Function):
    """`log(1 + x)`, exact where x is small. Of a maximand below -1 it is NaN, so maxima do not pass."""

    keyword: ClassVar[str] = "log1p"


@dataclass(frozen=True)
class Sqrt(Function):
    """Of a negative maximand it is NaN, so maxima do not pass."""

    keyword: ClassVar[str] = "sqrt"


@dataclass(frozen=True)
class Rsqrt(Function):
    """`1 / sqrt(x)`."""

    keyword: ClassVar[str] = "rsqrt"


@dataclass(frozen=True)
class Tanh(Function):
    keyword: ClassVar[str] = "tanh"
    nondecreasing: ClassVar[bool] = True


@dataclass(frozen=True)
class Sigmoid(Function):
    keyword: ClassVar[str] = "sigmoid"
    nondecreasing: ClassVar[bool] = True


@dataclass(frozen=True)
class Cos(Function):
    keyword: ClassVar[str] = "cos"


@dataclass(frozen=True)
class Sin(Function):
    keyword: ClassVar[str] = "sin"


@dataclass(frozen=True)
class Abs(Function):
    keyword: ClassVar[str] = "abs"


@dataclass(frozen=True)
class Convert(Elementwise):
    """`convert[bf16](x)`. Between floating-point formats it is declared linear, so partial sums pass."""

    keyword: ClassVar[str] = "convert"
    arity: ClassVar[tuple[int, int]] = (1, 1)
    dtype: DType = DType.BF16

    @property
    def statics(self) -> tuple[Static, ...]:
        return (WordStatic((str(self.dtype),)),)

    def result_dtype(self, args: Sequence[Arg]) -> DType:
        return self.dtype

    def partial_rows(self, args: Sequence[Arg]) -> Iterable[AxisRow]:
        source = args[0].tensor.dtype
        if source.is_float and self.dtype.is_float:
            yield _uniform(args, SUM, [0])
        if source is not DType.BOOL and self.dtype.is_float:
            yield _uniform(args, MAX, [0])


@dataclass(frozen=True)
class Bitcast(Elementwise):
    """`bitcast[uint32](x)`: the same 32 bits read as another format. Bits are neither linear nor in order."""

    keyword: ClassVar[str] = "bitcast"
    arity: ClassVar[tuple[int, int]] = (1, 1)
    dtype: DType

    @property
    def statics(self) -> tuple[Static, ...]:
        return (WordStatic((str(self.dtype),)),)

    def result_dtype(self, args: Sequence[Arg]) -> DType:
        source = args[0].tensor.dtype
        for dtype, what in ((source, f"{args[0].text} is {source}"), (self.dtype, f"{self.dtype} is asked for")):
            if dtype.bits != 32:
                raise misuse(
                    "dtype-mismatch",
                    f"bitcast takes and gives formats of 32 bits, and {what}",
                    "they are f32, int32 and uint32",
                )
        return self.dtype
