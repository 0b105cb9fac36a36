"""Fits the constants of FlexGen's runtime on its published rows, and prints them as its description has them.

python bench/calibrate_offloading.py
"""

from __future__ import annotations

from shardwright.cost.hardware.runtimes import load_runtime
from shardwright.cost.offloading.calibration import as_text, calibrate, median_error
from shardwright.reproduction.offload_rows import calibration_rows


def main() -> None:
    rows, runtime = calibration_rows(), load_runtime("flexgen")
    constants = calibrate(rows, runtime)
    print(as_text(constants))
    print(f"# {len(rows)} rows, median error {100 * median_error(rows, runtime.with_constants(constants)):.1f} %")


if __name__ == "__main__":
    main()
