"""Numbers over the whole range of a format, extremes first: where arithmetic wraps around, rounds and overflows."""

from __future__ import annotations

import numpy as np

from shardwright.backends.number_formats import Array, numpy_dtype
from shardwright.backends.simulation import random_inputs
from shardwright.backends.simulation.random_inputs import extreme_integers
from shardwright.ir.types import DType


def extremes(dtype: DType) -> list[float]:
    """The ends of the range and what lies about zero; of floats infinities and NaN as well."""
    if not dtype.is_float:
        return [*extreme_integers(dtype)]
    least, greatest = dtype.positive_range
    return [np.nan, np.inf, -np.inf, greatest, -greatest, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, least, -least]


def whole_range(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Random numbers of a format: half of them extremes, the others uniform over the range (of floats, normal)."""
    if not dtype.is_float:
        return random_inputs.whole_range(dtype, shape, rng).astype(numpy_dtype(dtype))
    chosen = rng.choice(np.asarray(extremes(dtype)), shape)
    return np.where(rng.integers(0, 2, shape) == 1, chosen, rng.standard_normal(shape)).astype(numpy_dtype(dtype))
