"""Number formats on numpy: in which arrays the interpreter holds values, and how it rounds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt

from shardwright.ir.operation import Number
from shardwright.ir.settings import require_word
from shardwright.ir.types import DType, Reduction

Array = npt.NDArray[Any]

Precision = Literal["exact", "declared"]
"""`exact`: floats are float64 throughout, which proves equality of programs. `declared`: every value is rounded to
its own format as soon as it is computed, and sums are accumulated in f32, which is what accelerators do."""

_NUMPY: dict[DType, Any] = {
    DType.F32: np.float32,
    DType.BF16: ml_dtypes.bfloat16,
    DType.F16: np.float16,
    DType.F8E4M3: ml_dtypes.float8_e4m3fn,
    DType.F8E5M2: ml_dtypes.float8_e5m2,
    DType.INT8: np.int8,
    DType.INT4: ml_dtypes.int4,
    DType.INT32: np.int32,
    DType.UINT32: np.uint32,
    DType.BOOL: np.bool_,
}


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy (or ml_dtypes) format of the same name."""
    return np.dtype(_NUMPY[dtype])


@dataclass(frozen=True)
class Formats:
    """How values are held while a program is interpreted.

    Floats are float64 (`exact`) or float32 holding numbers of their declared format (`declared`); integers are
    int64 within their declared range, wrapping around as two's complement does; bool is bool. A partial softmax is
    complex: the mean its real part, the logarithm of the sum, alike along the last dimension, its imaginary one.
    """

    precision: Precision

    def __post_init__(self) -> None:
        require_word("precision", self.precision, get_args(Precision))

    def storage(self, dtype: DType) -> np.dtype[Any]:
        """The numpy format that holds values of `dtype` inside the interpreter."""
        if dtype.is_float:
            return np.dtype(np.float64 if self.precision == "exact" else np.float32)
        return np.dtype(np.bool_ if dtype is DType.BOOL else np.int64)

    def round(self, array: Array, dtype: DType) -> Array:
        """The computed array, as a value of `dtype`: rounded to nearest even, or wrapped around."""
        if np.iscomplexobj(array):
            return paired(self.round(np.real(array), dtype), self.round(np.imag(array), DType.F32))
        held = self.storage(dtype)
        if dtype.is_integer:
            low, high = dtype.integer_range
            return np.asarray(((array.astype(np.int64) - low) & (high - low)) + low)
        if dtype.is_float and self.precision == "declared" and dtype is not DType.F32:
            return array.astype(numpy_dtype(dtype)).astype(held)
        return array.astype(held, copy=False)

    def convert(self, array: Array, source: DType, target: DType) -> Array:
        """`convert[target]`. From floats to integers: towards zero, saturating at the ends, NaN to 0, as XLA does. To
        8-bit floats: to nearest even, saturating. Between integers: wraps around. To bool: whether it differs from 0.
        """
        if target is DType.BOOL:
            return array != 0
        if target.is_integer and source.is_float:
            low, high = target.integer_range
            return np.clip(np.nan_to_num(np.trunc(array.astype(np.float64)), nan=0.0), low, high).astype(np.int64)
        if source is DType.BOOL:
            array = array.astype(np.int64)
        if target.is_f8 and source is not target:
            largest = target.positive_range[1]
            array = np.clip(array, -largest, largest)
        return self.round(array, target)

    def literal(self, number: Number, dtype: DType) -> Array:
        """A number as a scalar of the format that it meets."""
        if dtype.is_float:
            return self.round(np.asarray(number.as_float(dtype)), dtype)
        if dtype is DType.BOOL:
            return np.asarray(number.value != 0)
        return self.round(np.asarray(int(number.value), np.int64), dtype)

    def enter(self, array: npt.ArrayLike, dtype: DType) -> Array:
        """A caller's array as the interpreter holds it: always a copy."""
        given = np.asarray(array)
        if dtype.is_integer:
            return self.round(given.astype(np.int64), dtype)
        held = given.astype(self.storage(dtype))
        return held if given.dtype == numpy_dtype(dtype) else self.round(held, dtype)

    def leave(self, array: Array, dtype: DType) -> Array:
        """A value as the caller gets it: floats in float64 (`exact`) or their own format, the rest in their own."""
        if dtype.is_float and self.precision == "exact":
            return array.astype(np.float64)
        return array.astype(numpy_dtype(dtype))

    def combine(self, array: Array, kind: Reduction, axes: tuple[int, ...], dtype: DType) -> Array:
        """Addends or maximands combined along axes of the array, which stay with extent 1.

        Sums are accumulated in f32 and rounded once.
        """
        if kind is Reduction.MAX:
            return array.max(axis=axes, keepdims=True)
        if kind is Reduction.SOFTMAX:
            weights, lse = softmax_weights(np.imag(array), axes)
            mean = (weights * np.real(array)).sum(axis=axes, keepdims=True)
            return paired(self.round(mean, dtype), lse)
        with np.errstate(all="ignore"):  # infinities of both signs make NaN, as everywhere
            return self.round(array.sum(axis=axes, keepdims=True), dtype)


def paired(mean: Array, lse: Array) -> Array:
    """A partial softmax as the interpreter holds it."""
    made = np.empty(np.broadcast_shapes(mean.shape, lse.shape), np.complex128)
    made.real, made.imag = mean, lse
    return made


def softmax_weights(scores: Array, axes: tuple[int, ...] | int) -> tuple[Array, Array]:
    """exp(s) over its sum along axes, 0 where all s are -inf; and the logarithm of the sum, axes kept with extent 1."""
    with np.errstate(all="ignore"):
        greatest = np.maximum(scores.max(axis=axes, keepdims=True), np.finfo(np.float32).min)
        powers = np.exp(scores - greatest)
        total = powers.sum(axis=axes, keepdims=True)
        return powers / np.where(total == 0, 1, total), greatest + np.log(total)
