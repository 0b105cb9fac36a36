"""Numbers over the whole range of a format, extremes first: where arithmetic wraps around, rounds and overflows."""

from __future__ import annotations

import numpy as np

from shardwright.backends.number_formats import Array, numpy_dtype
from shardwright.ir.types import DType


def extremes(dtype: DType) -> list[float]:
    """The ends of the range and what lies about zero; of floats infinities and NaN as well."""
    if dtype is DType.BOOL:
        return [0, 1]
    if dtype.is_integer:
        low, high = dtype.integer_range
        return list(dict.fromkeys((low, high, low + 1, high - 1, 0, 1, 2, min(high, 7), *((-1, -2) if low else ()))))
    least, greatest = dtype.positive_range
    return [np.nan, np.inf, -np.inf, greatest, -greatest, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, least, -least]


def whole_range(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Random numbers of a format: half of them extremes, the others uniform over the range (of floats, normal)."""
    if dtype.is_float:
        drawn: Array = rng.standard_normal(shape)
    else:
        low, high = (0, 1) if dtype is DType.BOOL else dtype.integer_range
        drawn = rng.integers(low, high, shape, endpoint=True)
    chosen = rng.choice(np.asarray(extremes(dtype), np.float64 if dtype.is_float else np.int64), shape)
    return np.where(rng.integers(0, 2, shape) == 1, chosen, drawn).astype(numpy_dtype(dtype))
