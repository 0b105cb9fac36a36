"""Curves of the paper's figures, and their files."""

from __future__ import annotations

import pytest

from shardwright.prediction.figures import FIGURES, drawn, figure_3, figure_9


def test_the_cheapest_feedforward_layout_changes_as_tokens_grow() -> None:
    curves = {name: dict(points) for name, points in figure_3().curves.items()}
    cheapest = [min(curves, key=lambda name: curves[name][1 << exponent]) for exponent in (12, 17, 22)]
    assert cheapest[0] == "ws2d"
    assert cheapest[-1] == "wg-xyz"


def test_published_points_stand_beside_our_curves() -> None:
    curves = figure_9().curves
    assert len(curves) == 10
    ours, theirs = curves["pope2022 palm-540b-64-heads"], curves["published pope2022 palm-540b-64-heads"]
    assert [mfu for _, mfu in ours] == pytest.approx([mfu for _, mfu in theirs], rel=0.15)


def test_a_figure_is_a_file() -> None:
    assert set(FIGURES) == {"figure_3", "figure_7", "figure_8", "figure_9"}
    assert b"<svg" in drawn(figure_3(), "svg")
