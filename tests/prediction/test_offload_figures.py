"""Figures 1 and 4 of FlexGen: their published points, their files, and what the curves say."""

from __future__ import annotations

import pytest

from shardwright.reproduction.offload_figures import FIGURES, NETWORKS, figure_4_checks, petals_tokens_per_s, seconds_of
from shardwright.reproduction.offload_rows import table_2, table_19


def test_a_published_time_of_a_block_is_given_or_follows_from_its_tokens() -> None:
    (block,) = [row for row in table_19() if row.name == "flexgen block 64"]
    assert seconds_of(block) == 4864
    (row,) = [row for row in table_2() if row.name == "opt-30b flexgen 512"]
    assert seconds_of(row) == pytest.approx(48 * 3 * 32 / 7.32)


def test_the_network_tells_most_where_little_is_generated() -> None:
    """Section 6.3: activations of the prompt are larger by its length than those of a token."""
    near, far = ("5", "1000"), ("5", "100")
    assert {near, far} < set(NETWORKS)
    one, many = (petals_tokens_per_s(n, *near) / petals_tokens_per_s(n, *far) for n in (1, 32))
    assert one > 1.9
    assert many < 0.8 * one


@pytest.mark.slow
def test_flexgen_is_ahead_of_petals_under_every_network() -> None:
    made = {check.row: check for check in figure_4_checks()}
    assert made["FlexGen's throughput is above Petals' under every network"].predicted == 1
    assert len(made) == 7


def test_the_figures_have_names() -> None:
    assert set(FIGURES) == {"flexgen-figure-1", "flexgen-figure-4"}
