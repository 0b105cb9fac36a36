"""Elementwise operations: arithmetic, comparison, selection and functions, with broadcasting by name."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from shardwright.ir.operation import MAX, SUM, Arg, AxisRow, Context, Operation, misuse, pass_through, same_dtype
from shardwright.ir.ops.elementwise_table import FORMS, Entry, entry_of
from shardwright.ir.text.syntax import OptionStatic, Static, WordStatic
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

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        return (Shape(self.result_dtype(args), broadcast_dims(self.keyword, args, context.declared)),)

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield from pass_through(args, results[0], results[0].names)
        yield from self.partial_rows(args)

    @abstractmethod
    def result_dtype(self, args: Sequence[Arg]) -> DType:
        """The result's number format. Raises where those of the operands do not go together."""

    def partial_rows(self, args: Sequence[Arg]) -> Iterable[AxisRow]:
        """Rows in which partial values pass: sums where it is linear, maxima where it decreases nowhere."""
        return ()


def _uniform(args: Sequence[Arg], state: State, positions: Iterable[int]) -> AxisRow:
    chosen = set(positions)
    return AxisRow(tuple(state if i in chosen and arg.shape else None for i, arg in enumerate(args)), (state,))


def _values_dtype(args: Sequence[Arg]) -> DType:
    """The number format that the values among the operands have and numbers take; masks stand before them."""
    return next(arg.shape.dtype for arg in reversed(args) if arg.shape is not None)


class TableOperation(Elementwise):
    """An elementwise operation that `ir.ops.elementwise_table` describes."""

    arity: ClassVar[tuple[int, int]] = (2, 2)

    @property
    def entry(self) -> Entry:
        return entry_of(self.keyword)

    def result_dtype(self, args: Sequence[Arg]) -> DType:
        entry = self.entry
        values = [arg for arg, takes in zip(args, entry.takes, strict=True) if takes == "value"]
        for arg, takes in zip(args, entry.takes, strict=True):
            if takes == "bool" and arg.tensor.dtype is not DType.BOOL:
                what = "a bool mask" if values else "bool"
                raise misuse("dtype-mismatch", f"{self.keyword} takes {what}, and {arg.text} is {arg.tensor.dtype}")
            if takes == "float" and not arg.tensor.dtype.is_float:
                raise misuse(
                    "dtype-mismatch",
                    f"{self.keyword} takes a floating-point value, and {arg.text} is {arg.tensor.dtype}",
                    f"convert it first: convert[f32]({arg.text})",
                )
        if "bool" in entry.takes and values and all(arg.shape is None for arg in values):
            mask = args[entry.takes.index("bool")].text
            raise misuse(
                "literal-operand",
                f"{self.keyword} chooses between numbers alone, whose number format nothing says",
                f"convert[f32]({mask}) is 1 where {mask} holds, else 0; of other numbers make one a value by full",
            )
        dtype = same_dtype(self.keyword, values or args)
        return DType.BOOL if entry.gives_bool else dtype

    def partial_rows(self, args: Sequence[Arg]) -> Iterable[AxisRow]:
        entry, dtype = self.entry, _values_dtype(args)
        for together in entry.sums_of(dtype):
            beside = [arg.number.value for i, arg in enumerate(args) if i not in together and arg.number is not None]
            if (
                any(args[i].shape is not None for i in together)
                and all(args[i].shape is not None or args[i].is_zero for i in together)
                and all(math.isfinite(value) and value != 0 for value in beside)  # 0 * inf and x / 0 are NaN
            ):
                yield _uniform(args, SUM, together)
        for together in entry.maxima_of(dtype):
            others = [arg for i, arg in enumerate(args) if i not in together]
            rises = all(entry.rises_beside(arg, dtype) for arg in others)
            if rises and all(args[i].shape is not None for i in together):
                yield _uniform(args, MAX, together)


# ---------------------------------------------------------------- with a class each, because passes know them


@dataclass(frozen=True)
class Add(TableOperation):
    """`a + b`."""

    keyword: ClassVar[str] = "+"


@dataclass(frozen=True)
class Sub(TableOperation):
    """`a - b`."""

    keyword: ClassVar[str] = "-"


@dataclass(frozen=True)
class Mul(TableOperation):
    """`a * b`."""

    keyword: ClassVar[str] = "*"


@dataclass(frozen=True)
class Div(TableOperation):
    """`a / b`."""

    keyword: ClassVar[str] = "/"


@dataclass(frozen=True)
class Neg(TableOperation):
    """`-a`."""

    keyword: ClassVar[str] = "neg"
    arity: ClassVar[tuple[int, int]] = (1, 1)


@dataclass(frozen=True)
class Function(TableOperation):
    """An operation called by its name, perhaps in one of several forms: `exp(x)`, `where(mask, a, b)`,
    `gelu[form=tanh](x)`."""

    name: str
    form: str = ""

    def __post_init__(self) -> None:
        if self.form == FORMS[self.name][0]:
            object.__setattr__(self, "form", "")
        object.__setattr__(self, "keyword", self.name)
        object.__setattr__(self, "arity", (len(self.entry.takes),) * 2)
        object.__setattr__(self, "takes_f8", self.entry.takes_f8)

    @property
    def entry(self) -> Entry:
        return entry_of(self.name, self.form)

    @property
    def statics(self) -> tuple[Static, ...]:
        return () if not self.form else (OptionStatic("form", WordStatic((self.form,))),)


# ---------------------------------------------------------------- between number formats


@dataclass(frozen=True)
class Convert(Elementwise):
    """`convert[bf16](x)`. Partial sums pass between floats, where it is declared linear (but to 8 bits, where it
    quantizes), and from integers to those of as many bits or fewer; maxima pass to floats, and from integers to those
    that have every number of the first."""

    keyword: ClassVar[str] = "convert"
    arity: ClassVar[tuple[int, int]] = (1, 1)
    takes_f8: ClassVar[bool] = True
    dtype: DType = DType.BF16

    @property
    def statics(self) -> tuple[Static, ...]:
        return (WordStatic((str(self.dtype),)),)

    def result_dtype(self, args: Sequence[Arg]) -> DType:
        return self.dtype

    def partial_rows(self, args: Sequence[Arg]) -> Iterable[AxisRow]:
        source = args[0].tensor.dtype
        target = self.dtype
        if (source.is_float and target.is_float and not target.is_f8) or _is_modulo(source, target):
            yield _uniform(args, SUM, [0])
        if target.is_float or (not source.is_float and _contains(target, source)):
            yield _uniform(args, MAX, [0])


def _is_modulo(source: DType, target: DType) -> bool:
    """Tells whether all that a conversion does is to wrap around, so that it does not matter when."""
    return source.is_integer and target.is_integer and target.bits <= source.bits


def _contains(target: DType, source: DType) -> bool:
    """Tells whether the format has every number of the other, neither being of floats."""
    if target is DType.BOOL or source is DType.BOOL:
        return source is DType.BOOL
    (low, high), (least, greatest) = target.integer_range, source.integer_range
    return low <= least and greatest <= high


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
