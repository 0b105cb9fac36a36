"""Constants come back from times that were made with them."""

from __future__ import annotations

import pytest

from shardwright.cost.hardware.calibration import EXPECTED, Sample, calibrate, predicted_s
from shardwright.cost.hardware.constants import NAMES, Constants, KernelDemand

TRUE = Constants(0.7, 0.9, 0.8, 1.5, 2e-6, 0.2)


def samples(constants: Constants) -> list[Sample]:
    """Kernels that tell all six apart."""
    demands = [
        [(1000.0, KernelDemand(compute_s=1e-3, memory_s=1e-6))],
        [(1000.0, KernelDemand(compute_s=1e-6, memory_s=1e-3))],
        [(1000.0, KernelDemand(compute_s=1e-3, memory_s=1e-3))],
        [(1000.0, KernelDemand(transfer_s=1e-3, kernels=0))],
        [(1000.0, KernelDemand(latency_s=1e-5, kernels=0))],
        [(1000.0, KernelDemand())],
    ]
    return [Sample(predicted_s(Sample(1.0, made), constants), made) for made in demands for _ in range(25)]


def test_known_constants_are_found() -> None:
    fit = calibrate(samples(TRUE))
    for name in NAMES:
        assert getattr(fit.constants, name) == pytest.approx(getattr(TRUE, name), rel=0.02)
    assert fit.median_abs_error < 0.002


def test_constants_that_no_row_tells_stay_as_expected() -> None:
    fit = calibrate(samples(TRUE)[:25])
    assert fit.constants.compute_efficiency == pytest.approx(0.7, rel=0.02)
    assert fit.constants.link_efficiency == EXPECTED["link_efficiency"][0]


def test_shares_stay_at_most_1() -> None:
    fast = [Sample(sample.measured_s / 3, sample.demands) for sample in samples(Constants(1, 1, 1, 1, 1e-6, 0.3))]
    assert calibrate(fast).constants.compute_efficiency == 1.0


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="no samples to calibrate on"):
        calibrate([])
    with pytest.raises(ValueError, match="measured times are above 0"):
        calibrate([Sample(0.0, [(1.0, KernelDemand())])])
