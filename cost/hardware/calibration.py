"""Constants of a chip from measured times: least squares on their logarithms, held near what such chips usually reach.

Rows that were measured on one layout may not tell two constants apart (a slow link from slow arithmetic, where both
grow with the tokens). So each constant has an expected value and a spread, and a row counts as known to within
`ROW_SPREAD`: the sum of squares of both kinds of deviation, each over its spread, is least at the constants that are
most probable. Few rows change little, many decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from statistics import median
from typing import TYPE_CHECKING

from shardwright.cost.hardware.constants import Constants, KernelDemand, times_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Vector = npt.NDArray[np.float64]

ROW_SPREAD = 0.04
"""Relative: published times are rounded, and no formula knows a system to better than this."""

EXPECTED: Mapping[str, tuple[float, float]] = {
    "compute_efficiency": (0.85, 0.1),
    "memory_efficiency": (0.85, 0.1),
    "link_efficiency": (0.85, 0.1),
    "latency_factor": (1.0, 0.3),
    "kernel_overhead_s": (1e-6, 0.7),
    "unoverlapped": (0.3, 0.7),
}
"""The expected value of each constant, and the spread of its logarithm."""

_LIMITS = {"compute_efficiency": 1.0, "memory_efficiency": 1.0, "link_efficiency": 1.0, "unoverlapped": 1.0}
_STEPS = 60


@dataclass(frozen=True)
class Sample:
    """A measured time, and the kernels that ran in it, each with how often it did."""

    measured_s: float
    demands: Sequence[tuple[float, KernelDemand]]


@dataclass(frozen=True)
class Fit:
    """The constants, and for each sample the predicted time over the measured one, less 1."""

    constants: Constants
    errors: tuple[float, ...]

    @property
    def median_abs_error(self) -> float:
        return median(map(abs, self.errors))


def calibrate(samples: Sequence[Sample]) -> Fit:
    """The constants that explain the samples best, by Levenberg and Marquardt's method on their logarithms.

    Raises ValueError without samples, or where a measured time is not above 0.
    """
    import numpy as np

    if not samples:
        raise ValueError("no samples to calibrate on")
    if any(not sample.measured_s > 0 for sample in samples):
        raise ValueError("measured times are above 0")
    table = _Table(samples)

    def deviations(values: Vector) -> Vector:
        return (np.log(table.predicted(values)) - table.log_measured) / ROW_SPREAD

    constants = Constants(**most_probable(deviations, EXPECTED, _LIMITS, digits=4))
    return Fit(constants, tuple(predicted_s(s, constants) / s.measured_s - 1 for s in samples))


def most_probable(
    deviations: Callable[[Vector], Vector],
    expected: Mapping[str, tuple[float, float]],
    limits: Mapping[str, float],
    digits: int,
) -> dict[str, float]:
    """The values, to so many digits, of constants by name, that are at most their limits and of which the deviations of
    rows and those from the `expected` values, each in units of its spread, have the least sum of squares.

    By Levenberg and Marquardt's method on the values' logarithms.
    """
    import numpy as np

    middle, spread = np.array(list(expected.values())).T
    middle, upper = np.log(middle), np.log([limits.get(name, math.inf) for name in expected])

    def residuals(x: Vector) -> Vector:
        return np.concatenate([deviations(np.exp(x)), (x - middle) / spread])

    x, damping = np.minimum(middle, upper), 1e-3
    current = residuals(x)
    for _ in range(_STEPS):
        # Downwards, since no share may be above 1.
        slopes = np.stack([(current - residuals(x - step)) / 1e-6 for step in 1e-6 * np.eye(len(x))], axis=1)
        normal, pull = slopes.T @ slopes, slopes.T @ current
        tried = np.minimum(x - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), pull), upper)
        following = residuals(tried)
        gained = current @ current - following @ following
        if gained > 0:
            done = gained < 1e-10 * (current @ current)
            x, current, damping = tried, following, damping / 10
            if done:
                break
        else:
            damping *= 10
    return {name: float(f"{value:.{digits}g}") for name, value in zip(expected, np.exp(x), strict=True)}


def predicted_s(sample: Sample, constants: Constants) -> float:
    """Seconds of a sample's kernels one after the other."""
    return sum(count * times_of(demand, constants).total for count, demand in sample.demands)


class _Table:
    """All kernels of all samples as columns, so that a prediction is a few operations on arrays."""

    def __init__(self, samples: Sequence[Sample]) -> None:
        import numpy as np

        rows = [(number, count, *astuple(d)) for number, sample in enumerate(samples) for count, d in sample.demands]
        self.columns = np.array(rows, np.float64).T
        self.rows = self.columns[0].astype(np.int64)
        self.log_measured = np.log([sample.measured_s for sample in samples])

    def predicted(self, values: Vector) -> Vector:
        """`cost.hardware.constants.times_of`, all at once."""
        import numpy as np

        compute_efficiency, memory_efficiency, link_efficiency, latency, overhead, unoverlapped = values
        count = self.columns[1]
        each = {field.name: column for field, column in zip(fields(KernelDemand), self.columns[2:], strict=True)}
        matrix, vector = each["compute_s"] / compute_efficiency, each["vector_s"] / compute_efficiency
        memory, behind, beside = (each[name] / memory_efficiency for name in ("memory_s", "behind_s", "beside_s"))
        longest = np.maximum(np.maximum(matrix, vector), memory)
        own = longest + unoverlapped * (matrix + vector + memory - longest + behind) + beside
        own += each["kernels"] * overhead + each["transfer_s"] / link_efficiency + each["latency_s"] * latency
        return np.asarray(np.bincount(self.rows, count * own, len(self.log_measured)), np.float64)
