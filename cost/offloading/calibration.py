"""Constants of a runtime from measured times: bounded least squares on logarithms, held near what is expected.

Every share is at most 1, so that no fitted rate is above the datasheet's; how far a constant may be from what such
machines usually give is its prior's spread, as in `cost.hardware.calibration`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Literal

from shardwright.cost.hardware.calibration import most_probable
from shardwright.cost.hardware.chips import Machine
from shardwright.cost.hardware.runtimes import NAMES, Runtime, RuntimeConstants, rates_of
from shardwright.cost.offloading.policy import Policy
from shardwright.cost.offloading.sizes import Sizes
from shardwright.cost.offloading.times import BlockTimes, times_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Vector = npt.NDArray[np.float64]

ROW_SPREAD = 0.1
"""Relative: published rows of the same policy differ by as much among themselves (7.32 token/s and 559 s)."""

EXPECTED: Mapping[str, tuple[float, float]] = {
    "matmul": (0.85, 0.1),
    "link": (0.85, 0.1),
    "unpinned": (0.35, 0.3),
    "host_attention": (0.1, 0.3),
    "disk_read": (0.9, 0.1),
    "uncached_step_s": (0.05, 0.5),
    "quantization_bytes": (20.0, 0.3),
    "contention": (0.5, 0.5),
}
"""Of each constant the expected value and the spread of its logarithm."""

_NO_SHARES = {"quantization_bytes": 64.0, "uncached_step_s": 1.0}
LIMITS: Mapping[str, float] = {name: _NO_SHARES.get(name, 1.0) for name in NAMES}
"""The most that each constant may be: shares of a datasheet's rate are at most 1."""


@dataclass(frozen=True)
class Measurement:
    """A measured run, and the seconds that it took: of the whole block, or of one phase."""

    name: str
    sizes: Sizes
    policy: Policy
    machine: Machine
    seconds: float
    page_cache: bool = True
    overlapped: bool = True
    phase: Literal["both", "prefill", "decode"] = "both"

    def times(self, runtime: Runtime) -> BlockTimes:
        """The times that are predicted of it."""
        own = replace(runtime, overlapped=runtime.overlapped and self.overlapped)
        rates = rates_of(self.machine, own, page_cache=self.page_cache)
        return times_of(self.sizes, self.policy, own, rates)

    def predicted_s(self, runtime: Runtime) -> float:
        times = self.times(runtime)
        each = {"both": times.seconds, "prefill": times.prefill.seconds, "decode": times.decode.seconds}
        return each[self.phase]

    def error(self, runtime: Runtime) -> float:
        """The predicted throughput over the measured, less 1."""
        return self.seconds / self.predicted_s(runtime) - 1


def median_error(measurements: Sequence[Measurement], runtime: Runtime) -> float:
    """The median of the absolute relative errors of throughput."""
    return median(abs(row.error(runtime)) for row in measurements)


def calibrate(measurements: Sequence[Measurement], runtime: Runtime) -> RuntimeConstants:
    """The constants that explain the measurements best, by Levenberg and Marquardt's method on their logarithms.

    Raises ValueError without measurements.
    """
    import numpy as np

    if not measurements:
        raise ValueError("no measurements to calibrate on")

    def deviations(values: Vector) -> Vector:
        trial = runtime.with_constants(RuntimeConstants(*values.tolist()))
        logs = [math.log(row.predicted_s(trial) / row.seconds) for row in measurements]
        return np.array([_robust(log / ROW_SPREAD) for log in logs])

    return RuntimeConstants(**most_probable(deviations, EXPECTED, LIMITS, digits=3))


def _robust(deviation: float) -> float:
    """Pseudo-Huber's: beyond two spreads a deviation counts as its size, not its square, so that a row that nothing
    explains does not bend the rest."""
    return math.copysign(math.sqrt(8 * (math.sqrt(1 + deviation * deviation / 4) - 1)), deviation)


def as_text(constants: RuntimeConstants) -> str:
    """As lines of a runtime's file."""
    return "\n".join(f"{name} = {value:g}" for name, value in asdict(constants).items())
