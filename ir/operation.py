"""The definition of an operation: statics, inference of shapes, and one table of strategies per mesh axis.

The table of an operation says, for one mesh axis at a time, which states of the operands give which
states of the results. `ir.strategies` forms the strategies over a whole mesh from it; the verifier,
placement and the search use nothing else.
"""

from __future__ import annotations

import math
from abc import ABCMeta, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Note, fault, nearest
from shardwright.ir.text.syntax import Static
from shardwright.ir.types import ON_DEVICE, Dim, DType, Placement, Reduction, Shape, State

SUM = Reduction.SUM
MAX = Reduction.MAX
SOFTMAX = Reduction.SOFTMAX


class AxisRow(NamedTuple):
    """The role of one mesh axis: what it does to the operands and to the results of an operation."""

    operands: tuple[State, ...]
    results: tuple[State, ...]


@dataclass(frozen=True, slots=True)
class Number:
    """A literal operand; it takes the number format of the values that it meets.

    `size_of` is the D of `size[D]`. What the author computed from sizes has `made_of`, an operator and one number or
    two.
    """

    text: str
    size_of: str | None = None
    made_of: tuple[str, tuple[Number, ...]] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def folded(cls, operator: str, *operands: Number) -> Number:
        """The result of `+`, `-`, `*` or `/` on two numbers, or of `-` on one. Raises ZeroDivisionError."""
        first, *rest = (operand.value for operand in operands)
        match operator, rest:
            case "-", []:
                value = -first
            case "+", [second]:
                value = first + second
            case "-", [second]:
                value = first - second
            case "*", [second]:
                value = first * second
            case _:
                value = first / rest[0]
        text = f"{value:.1f}" if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else repr(value)
        return cls(text, None, (operator, operands) if any(o.sizes_of for o in operands) else None)

    @property
    def sizes_of(self) -> tuple[str, ...]:
        """Every dimension whose size it was computed from."""
        if self.made_of is not None:
            return tuple(dict.fromkeys(name for operand in self.made_of[1] for name in operand.sizes_of))
        return () if self.size_of is None else (self.size_of,)

    def at_sizes(self, sizes: Mapping[str, int]) -> Number:
        """The number where these dimensions have these sizes."""
        if self.made_of is not None:
            operator, operands = self.made_of
            return Number.folded(operator, *(operand.at_sizes(sizes) for operand in operands))
        size = sizes.get(self.size_of or "")
        return self if size is None else Number(str(size), self.size_of)

    def renamed(self, names: Mapping[str, str]) -> Number:
        """The same number of dimensions under other names."""
        made = self.made_of and (self.made_of[0], tuple(operand.renamed(names) for operand in self.made_of[1]))
        return Number(self.text, names.get(self.size_of, self.size_of) if self.size_of else None, made)

    def fixed(self, names: Collection[str]) -> Number:
        """The number as it is, where it was computed from the size of one of these dimensions."""
        return self if set(names).isdisjoint(self.sizes_of) else Number(self.text)

    @property
    def value(self) -> int | float:
        return int(self.text) if self.text.lstrip("-").isdigit() else float(self.text)

    def as_float(self, dtype: DType) -> float:
        """The number for a floating-point format: those of 8 bits stop at their largest, as conversions to them do."""
        value, most = float(self.value), dtype.positive_range[1]
        return max(-most, min(value, most)) if dtype.bits == 8 and math.isfinite(value) else value

    def __str__(self) -> str:
        return f"size[{self.size_of}]" if self.size_of else self.text


Operand = str | Number


@dataclass(frozen=True, slots=True)
class Arg:
    """An operand as inference sees it: its text for messages, and its shape, None for a literal."""

    text: str
    shape: Shape | None
    number: Number | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self.shape.names if self.shape else ()

    @property
    def is_zero(self) -> bool:
        return self.number is not None and self.number.value == 0

    @property
    def tensor(self) -> Shape:
        """The operand's shape; raises where a literal stands in place of a value."""
        if self.shape is None:
            raise misuse("literal-operand", f"a value is needed here, not the number {self.text}")
        return self.shape


@dataclass(frozen=True, slots=True)
class Context:
    """The facts that inference may ask of its surroundings: the sizes of dimensions, and the declared result, if
    any."""

    sizes: Mapping[str, int]
    declared: Shape | None = None

    def dim(self, name: str) -> Dim:
        """The dimension with its declared size."""
        if name not in self.sizes:
            way_out = nearest(name, list(self.sizes)) or f"give its size: dim {name}=..."
            raise misuse("unknown-dimension", f"dimension {name} is not declared", way_out)
        return Dim(name, self.sizes[name])


def misuse(code: str, message: str, *notes: str | Note) -> DiagnosticError:
    """A fault whose place the caller of the operation fills in (`ir.elaboration.elaborate` knows the statement)."""
    return fault(code, message, NOWHERE, *notes)


class _Abstract(ABCMeta):
    """Abstract classes without virtual subclasses: `isinstance`, asked of every statement, is as quick as of others."""

    __instancecheck__ = type.__instancecheck__
    __subclasscheck__ = type.__subclasscheck__


class Operation(metaclass=_Abstract):
    """An operation with its statics. Subclasses are frozen dataclasses, either abstract or final."""

    keyword: ClassVar[str]
    arity: ClassVar[tuple[int, int]]
    """The least and the greatest number of operands."""
    result_words: ClassVar[tuple[str, ...]] = ("y",)
    """What the results are called where no name of theirs is at hand, as many as there are."""

    @property
    def keywords(self) -> tuple[str, ...]:
        """The names that the last operands are written with, as `pos=p`."""
        return ()

    @property
    def statics(self) -> tuple[Static, ...]:
        """The text between the square brackets."""
        return ()

    is_product: ClassVar[bool] = False
    """It multiplies matrices, and its kernel is named after it."""
    takes_f8: ClassVar[bool] = False
    """Operands may be 8-bit floats, which are kept, moved, chosen among and multiplied, and nothing else."""
    n_lying: ClassVar[int | None] = None
    """How many of the first operands lie where the first lies; those behind are on the device. None for all."""

    def shapes(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        """The shapes of the results. Raises a `DiagnosticError` without a place where the operands do not fit."""
        for arg in args:
            if arg.shape is not None and arg.shape.dtype.is_f8 and not self.takes_f8:
                raise misuse(
                    "dtype-mismatch",
                    f"{self.keyword} of {arg.text}, which is {arg.shape.dtype}: floats of 8 bits are kept, moved and"
                    " multiplied by @",
                    f"convert it first: convert[bf16]({arg.text})",
                )
        return self.infer(args, context)

    @abstractmethod
    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        """The shapes of the results, whatever numbers are computed with."""

    def lies(self, home: Placement, source: Shape, result: Shape) -> Placement | None:
        """Where the result lies, of a first operand that lies at `home`; None where that has to be on the device.

        What computes nothing takes what lies in any memory, and leaves it there; attention is computed on the host
        where its operands lie there.
        """
        return ON_DEVICE if home == ON_DEVICE else None

    def axis_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        """The strategies of one mesh axis that the operation does not name itself: it does nothing, or what
        `active_rows` says."""
        yield AxisRow((None,) * len(args), (None,) * len(results))
        yield from self.active_rows(args, results)

    @abstractmethod
    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        """The strategies in which an axis that the operation does not name splits something, or has it partial."""

    def named_axis_rows(self, axis: str, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow] | None:
        """The strategies of an axis that the operation names (movements do), or None where it does not name it."""
        return None

    @property
    def named_axes(self) -> tuple[str, ...]:
        """The mesh axes that the operation names."""
        return ()

    @property
    def is_movement(self) -> bool:
        """Tells whether it moves bytes and computes nothing."""
        return False


def pass_through(args: Sequence[Arg], result: Shape, dims: Iterable[str]) -> Iterable[AxisRow]:
    """Rows in which an axis splits the same dimension of every operand that has it and of the result."""
    for dim in dims:
        yield AxisRow(tuple(dim if dim in arg.names else None for arg in args), (dim if dim in result else None,))


def linear_rows(args: Sequence[Arg], changed: Sequence[str] = ()) -> Iterable[AxisRow]:
    """Rows in which partial values pass; a partial softmax only where its last dimension is none of those `changed`."""
    yield AxisRow((SUM,), (SUM,))
    yield AxisRow((MAX,), (MAX,))
    if args[0].names and args[0].names[-1] not in changed and args[0].tensor.dtype.is_float:
        yield AxisRow((SOFTMAX,), (SOFTMAX,))


def same_dtype(operation: str, args: Sequence[Arg]) -> DType:
    """The number format that all values among the operands have; numbers take any."""
    dtypes = [(arg.text, arg.shape.dtype) for arg in args if arg.shape is not None]
    if not dtypes:
        raise misuse("literal-operand", f"{operation} of numbers alone: write the result as a number")
    first_text, first = dtypes[0]
    for text, dtype in dtypes[1:]:
        if dtype != first:
            wide = max(first, dtype, key=lambda d: (d.is_float, d.bits))
            other = text if dtype != wide else first_text
            raise misuse(
                "dtype-mismatch",
                f"{operation} of {first} ({first_text}) and {dtype} ({text}): there is no implicit promotion",
                f"convert one of them: convert[{wide}]({other})",
            )
    return first
