"""Numbers with a bound on their error, by running error analysis: what an exact result may differ by, and no more.

A float is held in float64 with `error`, the most that a right implementation may differ from it, and `addends`, the
most that the addends of a partial sum may have summed to in magnitude, since a partial sum is rounded addend by addend.
An error of infinity says that nothing is known: beyond a discontinuity within reach of the error, after an overflow, or
where the documentation leaves a value open. Integers and bools are exact or unknown.

With u the unit roundoff of a format, an arithmetic operation adds at most 4u of the magnitude of its addends (two
roundings for a product that is rounded to its format on each chip and again after the collective, and as much for the
order of operations), a function of the library 16u. Sums of n elements add n + 8 roundoffs of f32. Each is a bound, not
a measured figure, and holds to first order; twice the bound is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from oracles.random_programs.eight_bits import nearest, within
from oracles.random_programs.tree import INTEGER_RANGES, is_f8, is_float, is_integer

Array = npt.NDArray[Any]

UNKNOWN = np.inf


@dataclass(frozen=True)
class Format:
    """The unit roundoff, the least normal number and the greatest number of a format."""

    roundoff: float
    least: float
    greatest: float


_F64 = Format(2.0**-53, 2.0**-1022, 1.79e308)
EXACT = {"f32": _F64, "bf16": _F64, "f16": _F64, "f8e4m3": _F64, "f8e5m2": _F64}
DECLARED = {
    "f32": Format(2.0**-24, 2.0**-126, 3.4e38),
    "bf16": Format(2.0**-8, 2.0**-126, 3.38e38),
    "f16": Format(2.0**-11, 2.0**-14, 65500.0),
    "f8e4m3": Format(2.0**-4, 2.0**-6, 448.0),
    "f8e5m2": Format(2.0**-3, 2.0**-14, 57344.0),
}
Formats = dict[str, Format]


@dataclass(frozen=True)
class Number:
    """An array of values by named dimensions, with bounds (see the module)."""

    dtype: str
    dims: tuple[str, ...]
    value: Array
    error: Array
    addends: Array

    @property
    def extents(self) -> dict[str, int]:
        return dict(zip(self.dims, self.value.shape, strict=True))

    def each(self, change: Callable[[Array], Array], dims: tuple[str, ...] | None = None) -> Number:
        """The same numbers elsewhere: `change` moves elements of an array."""
        return Number(
            self.dtype,
            self.dims if dims is None else dims,
            change(self.value),
            change(self.error),
            change(self.addends),
        )

    def aligned(self, dims: tuple[str, ...]) -> tuple[Array, Array, Array]:
        """The three arrays with these dimensions, extent 1 where it has none."""
        order = [self.dims.index(dim) for dim in dims if dim in self.dims]
        missing = tuple(at for at, dim in enumerate(dims) if dim not in self.dims)
        return tuple(  # type: ignore[return-value]
            np.expand_dims(array.transpose(order), missing) for array in (self.value, self.error, self.addends)
        )


def certain(dtype: str, dims: tuple[str, ...], value: Array) -> Number:
    """Numbers without error."""
    held = value.astype(np.float64 if is_float(dtype) else np.bool_ if dtype == "bool" else np.int64)
    return Number(dtype, dims, held, np.zeros(held.shape), np.abs(held.astype(np.float64)))


def wrap(value: Array, dtype: str) -> Array:
    low, high = INTEGER_RANGES[dtype]
    return (value - low) % (high - low + 1) + low


def of(dtype: str, dims: tuple[str, ...], value: Array, error: Array, addends: Array | None = None) -> Number:
    """Numbers with a shape common to all three arrays; NaN in an error or in a bound is no knowledge."""
    value = np.asarray(value)
    error = np.broadcast_to(np.where(np.isnan(error), UNKNOWN, error), value.shape)
    known = np.abs(value.astype(np.float64)) + error if addends is None else addends
    return Number(dtype, dims, value, error, np.broadcast_to(known, value.shape))


def rounded(number: Number, formats: Formats, roundings: float = 4) -> Number:
    """Numbers as their format holds them: rounded `roundings` times, addend by addend; overflow is unknown."""
    if not is_float(number.dtype):
        return number
    form = formats[number.dtype]
    most = np.where(np.isfinite(number.value), number.addends + number.error, 0)
    error = number.error + roundings * (form.roundoff * most + form.least * (form is not _F64))
    error = np.where(most >= form.greatest * (1 - form.roundoff), UNKNOWN, error)
    return of(number.dtype, number.dims, number.value, error, number.addends)


def nonfinite(value: Array, error: Array, *operands: tuple[Array, Array], linear: bool = False) -> Array:
    """The error with what follows from operands (values and errors) that are not finite.

    An infinity or NaN is certain where all that made it are, and NaN also where an operand is NaN for certain. In sums
    (`linear`) an infinity whose own error is finite outweighs whatever errors finite operands have.
    """
    unknown = np.zeros(value.shape, bool)
    exact = np.ones(value.shape, bool)
    is_nan = np.zeros(value.shape, bool)
    infinite = np.zeros(value.shape, bool)
    for v, e in operands:
        unknown |= np.isinf(e)
        exact &= e == 0
        is_nan |= np.isnan(v) & np.isfinite(e)
        infinite |= np.isinf(v)
    certain_ = exact | is_nan | (infinite if linear else False)
    error = np.where(~np.isfinite(value), np.where(certain_, 0.0, UNKNOWN), error)
    return np.where(unknown | np.isnan(error), UNKNOWN, error)


# ------------------------------------------------------------ arithmetic


def arithmetic(op: str, a: Number, b: Number, dims: tuple[str, ...], formats: Formats) -> Number:
    """`+ - * /`, `maximum` and `minimum` of numbers of one format."""
    (x, ex, mx), (y, ey, my) = a.aligned(dims), b.aligned(dims)
    x, y, ex, ey, mx, my = np.broadcast_arrays(x, y, ex, ey, mx, my)
    if is_integer(a.dtype):
        unknown = np.isinf(ex) | np.isinf(ey)
        if op == "/":
            value = np.where(y == 0, 0, x // np.where(y == 0, 1, y))
        else:
            value = {"+": np.add, "-": np.subtract, "*": _times, "maximum": np.maximum, "minimum": np.minimum}[op](x, y)
        return of(a.dtype, dims, wrap(value, a.dtype), np.where(unknown, UNKNOWN, 0.0))
    match op:
        case "+" | "-":
            value = x + y if op == "+" else x - y
            return rounded(
                of(a.dtype, dims, value, nonfinite(value, ex + ey, (x, ex), (y, ey), linear=True), mx + my), formats
            )
        case "*":
            value = x * y
            error = nonfinite(value, mx * ey + my * ex + ex * ey, (x, ex), (y, ey))
            # An infinite factor of a partial sum makes NaN of an addend that is zero.
            error = np.where(np.isinf(value), UNKNOWN, error)
            return rounded(of(a.dtype, dims, value, error, (mx + ex) * (my + ey)), formats)
        case "/":
            value = x / y
            room = np.abs(y) - ey
            error = np.where(room > 0, (ex + np.abs(value) * ey) / room, UNKNOWN)
            error = np.where((room <= 0) & (ey == 0), 0.0, error)
            error = nonfinite(value, error, (x, ex), (y, ey))
            error = np.where(np.isinf(value), UNKNOWN, error)
            magnitude = np.where(room > 0, (mx + ex) / room, np.abs(value))
            return rounded(of(a.dtype, dims, value, error, magnitude), formats)
        case _:
            value = np.maximum(x, y) if op == "maximum" else np.minimum(x, y)
            return of(a.dtype, dims, value, nonfinite(value, np.maximum(ex, ey), (x, ex), (y, ey), linear=True))


def _times(x: Array, y: Array) -> Array:
    with np.errstate(over="ignore"):  # uint32 * uint32 may pass int64, and wraps as its own product does
        return x * y


def compare(op: str, a: Number, b: Number, dims: tuple[str, ...]) -> Number:
    """`less`, `less_equal`, `equal`: unknown where the difference lies within the errors."""
    (x, ex, _), (y, ey, _) = a.aligned(dims), b.aligned(dims)
    x, y, ex, ey = np.broadcast_arrays(x, y, ex, ey)
    value = {"less": np.less, "less_equal": np.less_equal, "equal": np.equal}[op](x, y)
    error = np.where(np.isinf(ex) | np.isinf(ey), UNKNOWN, 0.0)
    if is_float(a.dtype):
        error = np.where((ex + ey > 0) & (np.abs(x - y) <= 4 * (ex + ey)), UNKNOWN, error)
    return of("bool", dims, value, error)


def logical(op: str, operands: list[Number], dims: tuple[str, ...]) -> Number:
    arrays = [number.aligned(dims) for number in operands]
    values = np.broadcast_arrays(*(value for value, _, _ in arrays))
    unknown = np.broadcast_arrays(*(np.isinf(error) for _, error, _ in arrays))
    if op == "logical_not":
        return of("bool", dims, ~values[0], np.where(unknown[0], UNKNOWN, 0.0))
    value = values[0] & values[1] if op == "logical_and" else values[0] | values[1]
    return of("bool", dims, value, np.where(unknown[0] | unknown[1], UNKNOWN, 0.0))


def where(mask: Number, a: Number, b: Number, dims: tuple[str, ...]) -> Number:
    m, em, _ = mask.aligned(dims)
    parts = [np.where(m, x, y) for x, y in zip(a.aligned(dims), b.aligned(dims), strict=True)]
    shape = parts[0].shape
    error = np.where(np.isinf(np.broadcast_to(em, shape)), UNKNOWN, parts[1])
    return of(a.dtype, dims, parts[0], error, parts[2])


# ------------------------------------------------------------ functions of one operand


def _erf(x: Array) -> Array:
    import math

    return np.vectorize(math.erf, otypes=[float])(x)


def _gelu(x: Array) -> Array:
    return x * 0.5 * (1 + _erf(x / np.sqrt(2)))


def _gelu_tanh(x: Array) -> Array:
    return x * 0.5 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


MONOTONE: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "round": np.rint,
    "exp": np.exp,
    "log": np.log,
    "log1p": np.log1p,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
}
# With a bound on their slope, and on their error in roundoffs of the operand's magnitude.
BOUNDED_SLOPE: dict[str, tuple[Callable[[Array], Array], float]] = {
    "gelu": (_gelu, 1.2),
    "gelu_tanh": (_gelu_tanh, 1.2),
    "silu": (lambda x: x * _sigmoid(x), 1.2),
    "cos": (np.cos, 1.0),
    "sin": (np.sin, 1.0),
    "softsign": (lambda x: x / (1 + np.abs(x)), 1.0),
    "abs": (np.abs, 1.0),
}


def function(op: str, a: Number, formats: Formats) -> Number:
    """A function of the library, correct to 16 roundoffs."""
    x, e = a.value, a.error
    form = formats[a.dtype]
    if op in MONOTONE:
        f = MONOTONE[op]
        value = f(x)
        ends = f(x - e), f(x + e)
        error = np.maximum(np.abs(ends[0] - value), np.abs(ends[1] - value))
        error = np.where((ends[0] == value) & (ends[1] == value), 0.0, error)
        both_nan = np.isnan(ends[0]) & np.isnan(ends[1]) & np.isnan(value) & np.isfinite(e)
        error = np.where(both_nan, 0.0, error)
        near_one = 1.0 if op in {"log", "log1p"} else 0.0
        own = 16 * form.roundoff * np.where(np.isfinite(value), np.abs(value) + near_one, 0)
        own = 0.0 if op in {"relu", "round"} else own
        error = np.where(np.isinf(e), UNKNOWN, error + own)
        # Exponentials and the like near the ends of the format under- or overflow.
        return rounded(of(a.dtype, a.dims, value, error), formats, 1)
    f, slope = BOUNDED_SLOPE[op]
    value = f(x)
    error = nonfinite(value, slope * e, (x, e))
    size = 1.0 if op in {"cos", "sin"} else 0.0 if op == "abs" else np.abs(x)
    own = 16 * form.roundoff * np.where(np.isfinite(x), size, 0)
    error = error + own
    if op in {"cos", "sin"} and form is not _F64:
        error = np.where(np.abs(x) > 1e4, UNKNOWN, error)  # how far a library reduces its argument is its own affair
    return rounded(of(a.dtype, a.dims, value, error), formats, 1)


def convert(a: Number, dtype: str, formats: Formats) -> Number:
    """Between floats rounded; to integers towards zero, saturating, NaN to 0; between integers wrapped."""
    if dtype == a.dtype:
        return a
    if is_f8(dtype):
        return narrowed(a, dtype, formats)
    if is_f8(a.dtype) and is_float(dtype):  # every other float has all numbers of 8 bits
        return of(dtype, a.dims, a.value, a.error, a.addends)
    unknown = np.where(np.isinf(a.error), UNKNOWN, 0.0)
    if dtype == "bool":
        near = is_float(a.dtype) & (np.abs(a.value.astype(float)) <= a.error) & (a.error > 0)
        return of("bool", a.dims, a.value != 0, np.where(near, UNKNOWN, unknown))
    if is_float(dtype):
        if is_float(a.dtype):
            return rounded(of(dtype, a.dims, a.value, a.error, a.addends), formats)
        return rounded(of(dtype, a.dims, a.value.astype(np.float64), unknown), formats)
    if is_float(a.dtype):
        low, high = INTEGER_RANGES[dtype]

        def whole(x: Array) -> Array:
            return np.clip(np.nan_to_num(np.trunc(x), nan=0.0, posinf=high, neginf=low), low, high).astype(np.int64)

        value = whole(a.value)
        e = np.where(np.isfinite(a.error), 4 * a.error, 0)
        same = (whole(a.value - e) == value) & (whole(a.value + e) == value)
        return of(dtype, a.dims, value, np.where(same, unknown, UNKNOWN))
    return of(dtype, a.dims, wrap(a.value.astype(np.int64), dtype), unknown)


def narrowed(a: Number, dtype: str, formats: Formats) -> Number:
    """To 8-bit floats: rounded to nearest even and saturated, once, of the whole value.

    Rounding decreases nowhere, so that what lies within the error of a value is rounded to what lies between the
    rounded ends. Where these are one, the result is certain; four times the error counts, as for all that jumps.
    """
    value = a.value.astype(np.float64)
    exact = formats[dtype] is _F64

    def held(x: Array) -> Array:
        return within(x, dtype) if exact else nearest(x, dtype)

    reach = np.where(np.isfinite(a.error), (1 if exact else 4) * a.error, 0)
    made = held(value)
    error = np.maximum(held(value + reach) - made, made - held(value - reach))
    error = np.where(np.isnan(made), 0.0, error)
    return of(dtype, a.dims, made, np.where(np.isinf(a.error), UNKNOWN, error))


def bitcast(a: Number, dtype: str) -> Number:
    if a.dtype == dtype == "f32":  # its bits are those of the rounded number
        error = a.error + np.where(np.isfinite(a.value), DECLARED["f32"].roundoff * np.abs(a.value), 0)
        return of(dtype, a.dims, a.value, error)
    if a.dtype == dtype:
        return a
    if a.dtype == "f32":
        held = a.value.astype(np.float32)
        # The sign of a zero is that of a sum of zeros, in whatever order it was made.
        unknown = (a.error > 0) | ((held != a.value) & ~np.isnan(a.value)) | np.isnan(a.value) | (held == 0)
        bits = held.view(np.uint32).astype(np.int64)
        return of(dtype, a.dims, wrap(bits, dtype), np.where(unknown, UNKNOWN, 0.0))
    bits = wrap(a.value, "uint32")
    unknown = np.where(np.isinf(a.error), UNKNOWN, 0.0)
    if dtype == "f32":
        value = bits.astype(np.uint32).view(np.float32).astype(np.float64)
        tiny = (value != 0) & (np.abs(value) < 2.0**-126)  # a platform may flush subnormal numbers to zero
        return of(dtype, a.dims, value, np.where(tiny, UNKNOWN, unknown))
    return of(dtype, a.dims, wrap(bits, dtype), unknown)


# ------------------------------------------------------------ sums and maxima


def _axes(a: Number, dims: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(a.dims.index(dim) for dim in dims)


def sums(a: Number, dims: tuple[str, ...], dtype: str, formats: Formats) -> Number:
    """`sum[D]`: accumulated in f32 or int32, then in `dtype`."""
    at = _axes(a, dims)
    kept = tuple(dim for dim in a.dims if dim not in dims)
    unknown = np.isinf(a.error).any(axis=at)
    if not is_float(a.dtype):
        value = wrap(a.value.astype(np.int64).sum(axis=at), dtype)
        return of(dtype, kept, value, np.where(unknown, UNKNOWN, 0.0))
    value = a.value.sum(axis=at)
    return _summed(value, a.error, a.addends, at, dtype, kept, formats, unknown)


def _summed(
    value: Array,
    error: Array,
    addends: Array,
    at: tuple[int, ...],
    dtype: str,
    kept: tuple[str, ...],
    formats: Formats,
    unknown: Array,
) -> Number:
    n = int(np.prod([error.shape[axis] for axis in at]))
    magnitude = addends.sum(axis=at)
    finite = np.where(np.isfinite(error), error, 0).sum(axis=at)
    own = (n + 8) * formats["f32"].roundoff * np.where(np.isfinite(value), magnitude, 0)
    total = np.where(np.isfinite(value), finite + own, 0)
    return rounded(of(dtype, kept, value, np.where(unknown, UNKNOWN, total), magnitude), formats)


def cumsum(a: Number, dim: str, formats: Formats) -> Number:
    at = a.dims.index(dim)
    unknown = np.cumsum(np.isinf(a.error), axis=at) > 0
    value = np.cumsum(a.value, axis=at)
    if not is_float(a.dtype):
        return of(a.dtype, a.dims, wrap(value, a.dtype), np.where(unknown, UNKNOWN, 0.0))
    n = a.value.shape[at]
    magnitude = np.cumsum(a.addends, axis=at)
    error = np.cumsum(np.where(np.isfinite(a.error), a.error, 0), axis=at)
    error = np.where(np.isfinite(value), error + (n + 8) * formats["f32"].roundoff * magnitude, 0)
    return rounded(of(a.dtype, a.dims, value, np.where(unknown, UNKNOWN, error), magnitude), formats)


def contraction(
    a: Number, b: Number, summed: tuple[str, ...], dims: tuple[str, ...], dtype: str, formats: Formats
) -> Number:
    """`a @[D] b`: products summed over `summed`, accumulated in f32 or int32, rounded to `dtype`."""
    every = (*dims, *summed)
    (x, ex, mx), (y, ey, my) = a.aligned(every), b.aligned(every)
    at = tuple(range(len(dims), len(every)))
    unknown = np.broadcast_arrays(np.isinf(ex) | np.isinf(ey))[0].any(axis=at)
    if is_integer(a.dtype):
        value = wrap(wrap(_times(x, y), "int32").sum(axis=at), "int32")
        return of(dtype, dims, wrap(value, dtype), np.where(unknown, UNKNOWN, 0.0))
    products = x * y
    # NaN and infinities: certain only where no finite sum of addends could have met them on another chip first.
    value = products.sum(axis=at)
    error = mx * ey + my * ex + ex * ey
    error = np.where(np.isfinite(error), error, 0)
    unknown |= np.isinf(value) | (np.isnan(value) & ((ex > 0) | (ey > 0)).any(axis=at))
    magnitude = (mx + np.where(np.isfinite(ex), ex, 0)) * (my + np.where(np.isfinite(ey), ey, 0))
    magnitude = np.where(np.isnan(magnitude), 0, magnitude)
    return _summed(value, error, magnitude, at, dtype, dims, formats, unknown)


def greatest(a: Number, dims: tuple[str, ...]) -> Number:
    """`max[D]`, NaN where there is one."""
    at = _axes(a, dims)
    kept = tuple(dim for dim in a.dims if dim not in dims)
    value = a.value.max(axis=at)
    return of(a.dtype, kept, value, np.where(np.isfinite(value), a.error.max(axis=at), _special(a, at)))


def _special(a: Number, at: tuple[int, ...]) -> Array:
    return np.where(np.isinf(a.error).any(axis=at), UNKNOWN, 0.0)


def ranked(a: Number, dim: str) -> tuple[Number, Number]:
    """All elements along `dim`, greatest first, NaN before every number, of equal ones the lower index first."""
    at = a.dims.index(dim)
    value = np.moveaxis(a.value, at, -1)
    error = np.moveaxis(a.error, at, -1)
    if is_float(a.dtype):
        key = np.where(np.isnan(value), -np.inf, -value)
        order = np.lexsort((key, ~np.isnan(value)), axis=-1)
    else:
        order = np.argsort(-value.astype(np.int64), axis=-1, kind="stable")
    ordered, errors = (np.take_along_axis(array, order, axis=-1) for array in (value, error))
    lost = np.isinf(error).any(axis=-1, keepdims=True)
    most = np.where(lost, UNKNOWN, error.max(axis=-1, keepdims=True))
    values = np.where(errors.max(axis=-1, keepdims=True) > 0, np.broadcast_to(most, errors.shape), 0.0)
    ids = np.zeros(ordered.shape)
    if is_float(a.dtype) and ordered.shape[-1] > 1:
        with np.errstate(invalid="ignore"):
            gap = np.abs(ordered[..., 1:] - ordered[..., :-1])
        close = (gap <= 4 * (errors[..., 1:] + errors[..., :-1])) & (errors[..., 1:] + errors[..., :-1] > 0)
        ids[..., 1:] = np.where(close, UNKNOWN, ids[..., 1:])
        ids[..., :-1] = np.where(close, UNKNOWN, ids[..., :-1])
    ids = np.where(lost, UNKNOWN, ids)
    back = lambda array: np.moveaxis(array, -1, at)  # noqa: E731
    special = ~np.isfinite(ordered) if is_float(a.dtype) else np.zeros(ordered.shape, bool)
    values = np.where(special & ~lost, 0.0, values)
    return (
        of(a.dtype, a.dims, back(ordered), back(values)),
        of("int32", a.dims, back(order), back(ids)),
    )
