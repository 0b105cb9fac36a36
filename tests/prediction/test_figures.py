"""Curves of the paper's figures, what the paper says of them, and their files."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from shardwright.reproduction.figure_drawing import drawn
from shardwright.reproduction.figures import (
    FIGURES,
    Panel,
    figure_1,
    figure_3,
    figure_6,
    figure_9,
    figure_b_1,
    figure_c_1,
)
from shardwright.reproduction.palm_frontiers import Ran, frontier, sweep


def points(panel: Panel, label: str) -> Sequence[tuple[float, float]]:
    return next(curve.points for curve in panel.curves if curve.label == label)


def latencies(panel: Panel, label: str) -> list[float]:
    return [seconds for seconds, _ in points(panel, label)]


def values(panel: Panel, label: str) -> list[float]:
    return [value for _, value in points(panel, label)]


def test_the_cheapest_feedforward_layout_changes_as_tokens_grow() -> None:
    (panel,) = figure_3().panels
    curves = {curve.label: dict(curve.points) for curve in panel.curves}
    cheapest = [min(curves, key=lambda name: curves[name][1 << exponent]) for exponent in (12, 17, 22)]
    assert cheapest[0] == "2D weight-stationary"
    assert cheapest[-1] == "XYZ weight-gathered"


def test_2d_weight_stationary_scales_better_than_1d() -> None:
    """Section 4.1: both become communication-limited, 2D later. On 64 chips the two are close."""
    (panel,) = figure_6().panels
    one, two = (dict(points(panel, f"{n}D weight-stationary")) for n in (1, 2))
    ratios = [one[n] / two[n] for n in (64, 128, 256)]
    assert ratios[0] == pytest.approx(1, abs=0.1)
    assert ratios[1] > 1
    assert ratios == sorted(ratios)
    assert two[256] > two[64] / 4


@pytest.mark.slow
def test_published_points_stand_beside_our_curves() -> None:
    (panel,) = figure_9().panels
    assert len(panel.curves) == 10
    ours, theirs = values(panel, "PaLM 540B, 64 TPU v4"), values(panel, "table D.3: PaLM 540B, 64 TPU v4")
    assert ours == pytest.approx(theirs, rel=0.15)


def test_cost_against_latency_of_decode() -> None:
    """Section 4.4: int8 has the least latency; large batches cost least, where the two formats come close; smaller
    models are faster and cheaper."""
    decode, _ = figure_1().panels
    for size in ("8B", "62B", "540B"):
        int8, bf16 = f"PaLM {size}, int8", f"PaLM {size}, bf16"
        assert min(latencies(decode, int8)) < min(latencies(decode, bf16))
        assert 0.8 < min(values(decode, int8)) / min(values(decode, bf16)) < 1.25
    least = [min(values(decode, f"PaLM {size}, int8")) for size in ("8B", "62B", "540B")]
    assert least == sorted(least)
    assert [curve.source for curve in decode.curves if curve.source] == ["table 2", "section 4.4"]


def test_prefill_costs_less_than_decode_and_less_the_larger_the_batch() -> None:
    decode, prefill = figure_1().panels
    assert min(values(prefill, "PaLM 540B, bf16")) < 0.6 * min(values(decode, "PaLM 540B, bf16"))
    costs = values(prefill, "PaLM 540B, bf16")
    assert costs == sorted(costs, reverse=True)


def test_utilization_jumps_where_weights_are_gathered() -> None:
    """Appendix C: in prefill, from 2D weight-stationary to XYZ weight-gathered."""
    _, prefill = figure_c_1().panels
    gathered = [ran.layout for ran in frontier(sweep("540B", "prefill", "bf16"))]
    at = gathered.index("wg-xyz")
    assert set(gathered[:at]) == {"ws2d"}
    shares = values(prefill, "PaLM 540B, bf16")
    assert shares[at] > shares[at - 1]
    assert max(max(values(panel, curve.label)) for panel in figure_c_1().panels for curve in panel.curves) < 1


def test_short_prompts_are_faster_and_cost_more_per_token() -> None:
    (panel,) = figure_b_1().panels
    for curve in panel.curves:
        assert [seconds for seconds, _ in curve.points] == sorted(seconds for seconds, _ in curve.points)
        assert curve.points[0][1] > curve.points[-1][1]


def test_nothing_on_a_frontier_is_beaten() -> None:
    points = [Ran(1, 1, 10, "", 1.0, 1.0), Ran(2, 1, 10, "", 1.5, 1.0), Ran(1, 1, 20, "", 1.5, 1.0)]
    assert frontier(points) == [points[0], points[2]]


@pytest.mark.parametrize("name", ["figure_1", "figure_3"])
def test_a_figure_is_a_file(name: str) -> None:
    made = drawn(FIGURES[name](), "svg")
    assert b"<svg" in made
    assert drawn(FIGURES[name](), "svg") == made
    assert b"CreationDate" not in drawn(FIGURES[name](), "pdf")


def test_every_figure_of_the_paper_with_times_is_there() -> None:
    names = ["figure_1", "figure_3", "figure_6", "figure_7", "figure_8", "figure_9", "figure_b_1", "figure_c_1"]
    assert list(FIGURES) == names
