"""Constants of a chip from measured times: least squares on their logarithms, held near what such chips usually reach.

Rows that were measured on one layout may not tell two constants apart (a slow link from slow arithmetic, where both
grow with the tokens). So each constant has an expected value and a spread, and a row counts as known to within
`ROW_SPREAD`: the sum of squares of both kinds of deviation, each over its spread, is least at the constants that are
most probable. Few rows change little, many decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING

from shardwright.cost.constants import NAMES, Constants, Demand, times_of

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
"""Of each constant the expected value and the spread of its logarithm."""

_LIMITS = {"compute_efficiency": 1.0, "memory_efficiency": 1.0, "link_efficiency": 1.0, "unoverlapped": 1.0}
_STEPS = 60


@dataclass(frozen=True)
class Sample:
    """A measured time, and the kernels that ran in it, each with how often it did."""

    measured_s: float
    demands: Sequence[tuple[float, Demand]]


@dataclass(frozen=True)
class Fit:
    """The constants, and for each sample the predicted time over the measured one, less 1."""

    constants: Constants
    errors: tuple[float, ...]

    @property
    def median_abs_error(self) -> float:
        ordered = sorted(abs(error) for error in self.errors)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def calibrate(samples: Sequence[Sample]) -> Fit:
    """The constants that explain the samples best, by Levenberg and Marquardt's method on their logarithms.

    Raises ValueError without samples, or where a measured time is not above 0.
    """
    import numpy as np

    if not samples:
        raise ValueError("no samples to calibrate on")
    if any(not sample.measured_s > 0 for sample in samples):
        raise ValueError("measured times are above 0")
    expected = np.array([math.log(EXPECTED[name][0]) for name in NAMES])
    spread = np.array([EXPECTED[name][1] for name in NAMES])
    upper = np.array([math.log(_LIMITS.get(name, math.inf)) if name in _LIMITS else math.inf for name in NAMES])
    table = _Table(samples)

    def residuals(x: Vector) -> Vector:
        rows = (np.log(table.predicted(np.exp(x))) - table.log_measured) / ROW_SPREAD
        return np.concatenate([rows, (x - expected) / spread])

    x, damping = np.minimum(expected, upper), 1e-3
    current = residuals(x)
    for _ in range(_STEPS):
        slopes = np.stack([(residuals(x + step) - current) / 1e-6 for step in 1e-6 * np.eye(len(x))], axis=1)
        normal, pull = slopes.T @ slopes, slopes.T @ current
        tried = np.minimum(x - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), pull), upper)
        following = residuals(tried)
        if following @ following < current @ current:
            done = current @ current - following @ following < 1e-10 * (current @ current)
            x, current, damping = tried, following, damping / 10
            if done:
                break
        else:
            damping *= 10
    constants = Constants(**{name: float(f"{value:.4g}") for name, value in zip(NAMES, np.exp(x), strict=True)})
    return Fit(constants, tuple(predicted_s(s, constants) / s.measured_s - 1 for s in samples))


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
        """`cost.constants.times_of`, all at once."""
        import numpy as np

        compute_efficiency, memory_efficiency, link_efficiency, latency, overhead, unoverlapped = values
        count = self.columns[1]
        each = {field.name: column for field, column in zip(fields(Demand), self.columns[2:], strict=True)}
        matrix, vector = each["compute_s"] / compute_efficiency, each["vector_s"] / compute_efficiency
        memory, behind, beside = (each[name] / memory_efficiency for name in ("memory_s", "behind_s", "beside_s"))
        longest = np.maximum(np.maximum(matrix, vector), memory)
        own = longest + unoverlapped * (matrix + vector + memory - longest + behind) + beside
        own += each["kernels"] * overhead + each["transfer_s"] / link_efficiency + each["latency_s"] * latency
        return np.asarray(np.bincount(self.rows, count * own, len(self.log_measured)), np.float64)
