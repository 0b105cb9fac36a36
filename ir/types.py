"""Types: a tensor's number format, its dimensions, and where over the mesh and the memories its bytes are."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

Axes = tuple[str, ...]
"""A set of mesh axes: sorted, without repetition (their order is no part of a type; see docs/concepts/digits.md)."""

StoredFormat = Literal["int8", "int4", "f8e4m3"]
"""The formats of few bits in which weights and caches may be stored, with scales of their own."""

DimSplits = tuple[tuple[str, Axes], ...]
"""Names of dimensions, each with the axes that split it."""


def axis_set(axes: Iterable[str]) -> Axes:
    """The canonical form of a set of axes."""
    return tuple(sorted(set(axes)))


class DType(StrEnum):
    """Number formats. `bits` is what one element takes in memory and on a link."""

    F32 = "f32"
    BF16 = "bf16"
    F16 = "f16"
    F8E4M3 = "f8e4m3"
    F8E5M2 = "f8e5m2"
    INT8 = "int8"
    INT4 = "int4"
    INT32 = "int32"
    UINT32 = "uint32"
    BOOL = "bool"

    @property
    def bits(self) -> int:
        return _BITS[self]

    @property
    def is_float(self) -> bool:
        return self.is_wide_float or self.is_f8

    @property
    def is_wide_float(self) -> bool:
        """Tells whether it is a float of 16 bits or more: what checkpoints give, and what is quantized."""
        return self in (DType.F32, DType.BF16, DType.F16)

    @property
    def is_f8(self) -> bool:
        """Tells whether it is a float of 8 bits (Micikevicius et al. 2022): such are kept, moved, chosen among and
        multiplied by `@`. E4M3 is the one without infinities."""
        return self in (DType.F8E4M3, DType.F8E5M2)

    @property
    def is_integer(self) -> bool:
        return not self.is_float and self is not DType.BOOL

    @property
    def integer_range(self) -> tuple[int, int]:
        """The least and the greatest number of an integer format."""
        return (0, 2**32 - 1) if self is DType.UINT32 else (-(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1)

    @property
    def positive_range(self) -> tuple[float, float]:
        """The least positive number that every device holds, of floats the least normal one, and the greatest finite
        number."""
        match self:
            case DType.F32:
                return 2.0**-126, (2 - 2.0**-23) * 2.0**127
            case DType.BF16:
                return 2.0**-126, (2 - 2.0**-7) * 2.0**127
            case DType.F16:
                return 2.0**-14, 65504.0
            case DType.F8E4M3:
                return 2.0**-6, 448.0
            case DType.F8E5M2:
                return 2.0**-14, 57344.0
            case _:
                return 1, self.integer_range[1]


_BITS = {
    DType.F32: 32,
    DType.BF16: 16,
    DType.F16: 16,
    DType.F8E4M3: 8,
    DType.F8E5M2: 8,
    DType.INT8: 8,
    DType.INT4: 4,
    DType.INT32: 32,
    DType.UINT32: 32,
    DType.BOOL: 8,
}

DEFAULT_DTYPE = DType.BF16


class Reduction(StrEnum):
    """How partial values over an axis are still to be combined."""

    SUM = "sum"
    MAX = "max"
    SOFTMAX = "softmax"
    """Weighted means, each normalised by itself, with the logarithms of the sums of the weights."""


State = str | Reduction | None
"""What a mesh axis does to a value: splits the dimension of this name, leaves partial values, or nothing.

`Reduction` members are strings too, so test for them first; dimension names never collide with them
because `is_split` does.
"""


def is_split(state: State) -> bool:
    """Tells whether the state is the name of a dimension."""
    return state is not None and not isinstance(state, Reduction)


@dataclass(frozen=True, slots=True)
class Dim:
    """A dimension of a value: its name and its extent in elements (before splitting)."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Partial:
    """`(partialsum-xy)`: the chips along these axes hold addends of the value, or maximands, or weighted means.

    A weighted mean, `(partialsoftmax-xy)`, is a pair: the mean, along whose last dimension nothing is split, and in f32
    the logarithm of the sum of the weights for each element of the other dimensions.
    """

    kind: Reduction
    axes: Axes

    def __str__(self) -> str:
        joined = "".join(self.axes) if all(is_short_axis(a) for a in self.axes) else ",".join(self.axes)
        return f"(partial{self.kind}-{joined})"


class Tier(StrEnum):
    """A memory."""

    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Placement:
    """Which memory holds the value: one tier, or shares in percent along a dimension."""

    shares: tuple[tuple[Tier, float], ...] = ((Tier.DEVICE, 100.0),)
    along: str | None = None

    @property
    def tier(self) -> Tier | None:
        """The single tier, or None where the value is spread over several."""
        return self.shares[0][0] if len(self.shares) == 1 else None

    def __str__(self) -> str:
        if len(self.shares) == 1:
            return str(self.shares[0][0])
        spread = " ".join(f"{tier} {share:g}%" for tier, share in self.shares)
        return f"{spread} along {self.along}" if self.along else spread


ON_DEVICE = Placement()
ON_HOST = Placement(((Tier.HOST, 100.0),))

_COMPACT_DIM = re.compile(r"[A-Z][0-9]*")
_SHORT_AXIS = re.compile(r"[a-z][0-9]*")


def is_compact_dim(name: str) -> bool:
    """Tells whether the dimension can be written without brackets, as the `E2` of `BE2_x`."""
    return _COMPACT_DIM.fullmatch(name) is not None


def is_short_axis(name: str) -> bool:
    """Tells whether the axis can be written without braces, as the `x` and `y` of `E_xy`."""
    return _SHORT_AXIS.fullmatch(name) is not None


def row_text(dims: Iterable[str], splits: Iterable[Axes | None]) -> str:
    """A layout as the language writes it: `BLE_xyz`, or `[batch embed_{data,model}]`. None is `_?`."""
    pieces = list(zip(dims, splits, strict=True))
    if not pieces:
        return ""
    compact = all(is_compact_dim(name) for name, _ in pieces)
    compact = compact and all(is_short_axis(axis) for _, axes in pieces for axis in axes or ())
    words: list[str] = []
    for name, axes in pieces:
        if axes is None:
            words.append(f"{name}_?")
        elif not axes:
            words.append(name)
        elif compact:
            words.append(f"{name}_{''.join(axes)}")
        else:
            words.append(f"{name}_{{{','.join(axes)}}}")
    return "".join(words) if compact else f"[{' '.join(words)}]"


@dataclass(frozen=True, slots=True)
class Shape:
    """A number format and dimensions, without a layout: what an operation infers from its operands."""

    dtype: DType
    dims: tuple[Dim, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dim.name for dim in self.dims)

    @property
    def elements(self) -> int:
        return math.prod(dim.size for dim in self.dims)

    def size(self, name: str) -> int:
        """The extent of a dimension; KeyError where the value has none of that name."""
        for dim in self.dims:
            if dim.name == name:
                return dim.size
        raise KeyError(name)

    def __contains__(self, name: str) -> bool:
        return any(dim.name == name for dim in self.dims)

    def __str__(self) -> str:
        return f"{self.dtype} {row_text(self.names, [()] * len(self.dims))}".rstrip()


@dataclass(frozen=True, slots=True)
class TensorType:
    """A type without holes: `bf16 BLF_yz(partialsum-x) on device`.

    `splits` runs parallel to `dims`. A mesh axis occurs at most once in all of `splits` and `partial`. A value `in
    flight` is on its way to its placement: nothing but a `wait` may use it.
    """

    dtype: DType
    dims: tuple[Dim, ...]
    splits: tuple[Axes, ...]
    partial: Partial | None = None
    placement: Placement = ON_DEVICE
    in_flight: bool = False

    def __post_init__(self) -> None:
        if len(self.splits) != len(self.dims):
            raise ValueError(f"{len(self.splits)} splits for {len(self.dims)} dimensions")
        used = [axis for axes in self.splits for axis in axes]
        if self.partial is not None:
            used.extend(self.partial.axes)
            if not self.partial.axes:
                raise ValueError("a partial value over no axis is whole")
        if len(set(used)) != len(used):
            raise ValueError(f"an axis occurs twice in {self}")
        if self.is_pair and (not self.dims or self.splits[-1]):
            raise ValueError("a partial softmax has its last dimension whole")

    @staticmethod
    def whole(shape: Shape) -> TensorType:
        """The type with every chip holding all of the value."""
        return TensorType(shape.dtype, shape.dims, ((),) * len(shape.dims))

    @staticmethod
    def of_states(shape: Shape, states: Mapping[str, State], placement: Placement = ON_DEVICE) -> TensorType:
        """The type in which each mesh axis does what `states` says.

        Raises ValueError where partial sums and partial maxima would meet in one type.
        """
        splits: dict[str, list[str]] = {dim.name: [] for dim in shape.dims}
        partial: dict[Reduction, list[str]] = {}
        for axis, state in states.items():
            if isinstance(state, Reduction):
                partial.setdefault(state, []).append(axis)
            elif state is not None:
                splits[state].append(axis)
        if len(partial) > 1:
            raise ValueError("a value is partial in one way only")
        made = next((Partial(kind, axis_set(axes)) for kind, axes in partial.items()), None)
        return TensorType(
            shape.dtype, shape.dims, tuple(axis_set(splits[dim.name]) for dim in shape.dims), made, placement
        )

    @property
    def shape(self) -> Shape:
        return Shape(self.dtype, self.dims)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dim.name for dim in self.dims)

    @property
    def partial_axes(self) -> Axes:
        return self.partial.axes if self.partial else ()

    @property
    def is_pair(self) -> bool:
        """Tells whether there is a logarithm of a sum beside the value."""
        return self.partial is not None and self.partial.kind is Reduction.SOFTMAX

    def bytes_of(self, elements: int) -> int:
        """Bytes of so many elements, rounded up to whole bytes (int4 packs two elements in one); of a partial softmax,
        of the logarithms that belong to them too."""
        width, beside = (self.dims[-1].size, DType.F32.bits) if self.is_pair else (1, 0)
        return -(-elements * (self.dtype.bits * width + beside) // (8 * width))

    @property
    def split_axes(self) -> Axes:
        return axis_set(axis for axes in self.splits for axis in axes)

    def split(self, name: str) -> Axes:
        """The axes that split a dimension, () if the value has none of that name."""
        for dim, axes in zip(self.dims, self.splits, strict=True):
            if dim.name == name:
                return axes
        return ()

    def state(self, axis: str) -> State:
        """The state of the mesh axis: what it does to this value."""
        for dim, axes in zip(self.dims, self.splits, strict=True):
            if axis in axes:
                return dim.name
        return self.partial.kind if self.partial is not None and axis in self.partial.axes else None

    def local_shape(self, mesh: Mapping[str, int]) -> tuple[int, ...]:
        """The shape of one chip's array. Sizes must divide (the verifier sees to it)."""
        return tuple(
            dim.size // math.prod(mesh[axis] for axis in axes) for dim, axes in zip(self.dims, self.splits, strict=True)
        )

    def local_elements(self, mesh: Mapping[str, int]) -> int:
        elements = 1
        for dim, axes in zip(self.dims, self.splits, strict=True):
            chips = 1
            for axis in axes:
                chips *= mesh[axis]
            elements *= dim.size // chips
        return elements

    def local_bytes(self, mesh: Mapping[str, int]) -> int:
        """Bytes that one chip holds."""
        return self.bytes_of(self.local_elements(mesh))

    def without_dim(self, name: str) -> TensorType:
        """The type of one slice along a dimension: what a loop over it sees."""
        kept = [i for i, dim in enumerate(self.dims) if dim.name != name]
        return replace(self, dims=tuple(self.dims[i] for i in kept), splits=tuple(self.splits[i] for i in kept))

    @property
    def layout_text(self) -> str:
        """The type without its number format and placement: `BLF_yz(partialsum-x)`."""
        return row_text(self.names, self.splits) + (str(self.partial) if self.partial else "")

    def __str__(self) -> str:
        text = f"{self.dtype} {row_text(self.names, self.splits)}".rstrip()
        if self.partial:
            text += str(self.partial) if self.dims else f" {self.partial}"
        text = text if self.placement == ON_DEVICE else f"{text} on {self.placement}"
        return f"{text} in flight" if self.in_flight else text


@dataclass(frozen=True, slots=True)
class AnyPartial:
    """Partial values left to the compiler: of one kind (`(partialsum-?)`), or of any (`BLF?`)."""

    kind: Reduction | None = None


@dataclass(frozen=True, slots=True)
class OpenType:
    """A type with holes. `splits` holds None for `_?`; `placement` is None for `on ?`.

    `open` is the `?` after the row, which leaves every split to the compiler. `partial` is what is demanded of partial
    values; inside a function `?` leaves these open too, as `AnyPartial()`.
    """

    dtype: DType
    dims: tuple[Dim, ...]
    splits: tuple[Axes | None, ...]
    partial: Partial | AnyPartial | None = None
    placement: Placement | None = ON_DEVICE
    open: bool = False
    in_flight: bool = False

    @staticmethod
    def anything(shape: Shape) -> OpenType:
        """The type of a value of which nothing was written."""
        return OpenType(shape.dtype, shape.dims, (None,) * len(shape.dims), AnyPartial(), open=True)

    @staticmethod
    def any_split(shape: Shape) -> OpenType:
        """The type `BLE?` of a weight, a parameter or a result, which are partial only where that is written."""
        return OpenType(shape.dtype, shape.dims, (None,) * len(shape.dims), open=True)

    @property
    def shape(self) -> Shape:
        return Shape(self.dtype, self.dims)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dim.name for dim in self.dims)

    def admits(self, candidate: TensorType) -> bool:
        """Tells whether the candidate fills the holes and changes nothing else."""
        if candidate.shape != self.shape:
            return False
        if self.placement is not None and candidate.placement != self.placement:
            return False
        if self.in_flight != candidate.in_flight:
            return False
        if any(a is not None and a != b for a, b in zip(self.splits, candidate.splits, strict=True)):
            return False
        if isinstance(self.partial, AnyPartial):
            return candidate.partial is None or self.partial.kind in (None, candidate.partial.kind)
        return candidate.partial == self.partial

    def without_dim(self, name: str) -> OpenType:
        kept = [i for i, dim in enumerate(self.dims) if dim.name != name]
        return replace(self, dims=tuple(self.dims[i] for i in kept), splits=tuple(self.splits[i] for i in kept))

    def __str__(self) -> str:
        if self.open:
            row = row_text(self.names, [axes or () for axes in self.splits]) + ("?" if self.dims else "")
        else:
            row = row_text(self.names, self.splits)
        text = f"{self.dtype} {row}".rstrip()
        if isinstance(self.partial, Partial):
            text += str(self.partial)
        elif self.partial is not None and self.partial.kind is not None:
            text += f"(partial{self.partial.kind}-?)"
        if self.placement is None:
            text = f"{text} on ?"
        elif self.placement != ON_DEVICE:
            text = f"{text} on {self.placement}"
        return f"{text} in flight" if self.in_flight else text


ValueType = TensorType | OpenType
