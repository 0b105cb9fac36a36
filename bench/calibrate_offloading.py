"""Fits the constants of FlexGen's runtime on its published rows, and prints them as its description has them.

Bounded least squares on logarithms, held near what is expected: every share is at most 1, so that no fitted rate is
above the datasheet's, and how far a constant may be from what such machines usually give is its prior's spread.

python bench/calibrate_offloading.py
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Literal

import numpy as np
import numpy.typing as npt

from shardwright.cost.hardware.calibration import most_probable
from shardwright.cost.hardware.chips import Machine
from shardwright.cost.hardware.runtimes import NAMES, Runtime, RuntimeConstants, load_runtime, rates_of
from shardwright.cost.offloading.policy import Policy
from shardwright.cost.offloading.sizes import Sizes
from shardwright.cost.offloading.times import times_of
from shardwright.reproduction.offload_rows import OffloadRow, table_2, table_8, table_19, table_21

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
"""The expected value of each constant, and the spread of its logarithm."""

_NO_SHARES = {"quantization_bytes": 64.0, "uncached_step_s": 1.0}
LIMITS: Mapping[str, float] = {name: _NO_SHARES.get(name, 1.0) for name in NAMES}
"""The most that each constant may be: shares of a datasheet's rate are at most 1."""


@dataclass(frozen=True)
class Measurement:
    """A measured run, and the seconds that it took: of the whole block, or of one phase."""

    sizes: Sizes
    policy: Policy
    machine: Machine
    seconds: float
    page_cache: bool = True
    overlapped: bool = True
    phase: Literal["both", "prefill", "decode"] = "both"

    def predicted_s(self, runtime: Runtime) -> float:
        own = replace(runtime, overlapped=runtime.overlapped and self.overlapped)
        times = times_of(self.sizes, self.policy, own, rates_of(self.machine, own, page_cache=self.page_cache))
        each = {"both": times.seconds, "prefill": times.prefill.seconds, "decode": times.decode.seconds}
        return each[self.phase]


def calibrate(measurements: Sequence[Measurement], runtime: Runtime) -> RuntimeConstants:
    """The constants that explain the measurements best, by Levenberg and Marquardt's method on their logarithms.

    Raises ValueError without measurements.
    """
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


def calibration_rows() -> list[Measurement]:
    """The measurements that FlexGen's constants are fitted on: its rows of tables 2 (prompt 512), 8, 19 and 21 that
    ran. Table 22 gives the times of the same runs as table 21, and table 2 one of them again."""
    rows = [*table_2(), *table_8(), *table_19(), *table_21()]
    return [_measurement(row) for row in rows if row.calibrated and row.system.startswith("flexgen") and row.value]


def _measurement(row: OffloadRow) -> Measurement:
    plan, setting = row.plan(), row.setting()
    if plan is None:
        raise ValueError(f"{row.name} does not fit")
    seconds = row.value if row.unit == "s" else row.policy.block * row.generated / row.value
    return Measurement(
        setting.stage_of(plan.policy), plan.policy, setting.machine, seconds, row.page_cache, row.overlapped, row.phase
    )


def main() -> None:
    rows, runtime = calibration_rows(), load_runtime("flexgen")
    constants = calibrate(rows, runtime)
    for name, value in asdict(constants).items():
        print(f"{name} = {value:g}")
    fitted = runtime.with_constants(constants)
    error = median(abs(row.seconds / row.predicted_s(fitted) - 1) for row in rows)
    print(f"# {len(rows)} rows, median error {100 * error:.1f} %")


if __name__ == "__main__":
    main()
