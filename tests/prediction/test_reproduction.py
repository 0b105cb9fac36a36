"""Published rows come out: calibrated on the PaLM rows of table D.2 alone, and from the datasheet."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from shardwright.cost.hardware.calibration import calibrate
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.hardware.expected_errors import INHERITED_RANGE, error_in_words
from shardwright.reproduction.reproduction import compare, fitted, sample_of
from shardwright.reproduction.rows import published
from shardwright.reproduction.tables import RowComparison, median_error


@pytest.fixture(scope="module")
def pope() -> list[RowComparison]:
    rows = [row for table in ("d2", "d3", "2") for row in published(table)]
    return compare(row for row in rows if row.group == "pope2022 tpu-v4")


def test_palm_and_mt_nlg_on_64_tpu_v4(pope: list[RowComparison]) -> None:
    errors = [made.relative_error for made in pope]
    assert len(errors) == 76
    assert median_error(errors) < 0.03
    assert max(map(abs, errors)) < 0.12


def test_mt_nlg_is_predicted_with_the_constants_of_palm(pope: list[RowComparison]) -> None:
    errors = [made.relative_error for made in pope if made.row.model.name == "mt-nlg-530b"]
    assert len(errors) == 18
    assert median_error(errors) < 0.045


def test_from_the_datasheet_alone(pope: list[RowComparison]) -> None:
    assert median_error([made.datasheet_error for made in pope]) < 0.13


def test_fastertransformer_on_a100s() -> None:
    rows = [row for row in published("d3") if row.group == "fastertransformer a100-80g"]
    errors = [made.relative_error for made in compare(rows)]
    assert len(errors) == 26  # one ran out of memory
    assert median_error(errors) < 0.045
    assert max(map(abs, errors)) < 0.1


@pytest.mark.parametrize(("group", "chip"), [("pope2022 tpu-v4", "tpu-v4"), ("fastertransformer a100-80g", "a100-80g")])
def test_the_chip_files_have_the_constants_that_table_d2_gives(group: str, chip: str) -> None:
    fit, written = fitted(group), load_chip(chip).calibrated
    assert fit is not None
    assert written is not None
    assert asdict(written) == pytest.approx(asdict(fit.constants), rel=2e-3)


@pytest.fixture(scope="module")
def tensorrt() -> dict[str, list[RowComparison]]:
    made = compare(published("tensorrt-llm"))
    return {chip: [each for each in made if each.row.chip.name == chip] for chip in ("a100-80g", "h100", "h200")}


def test_constants_of_another_system_hold_on_the_same_chip(tensorrt: dict[str, list[RowComparison]]) -> None:
    rows = tensorrt["a100-80g"]
    assert {made.how for made in rows} == {"constants of a100-80g"}
    assert median_error([made.relative_error for made in rows]) < 0.03
    assert median_error([made.datasheet_error for made in rows]) > 0.18
    most = max(made.row.measured_s / made.predicted_s for made in rows) - 1
    assert most == pytest.approx(load_chip("a100-80g").expected_error, abs=0.005)


def test_inherited_constants_are_nearer_than_the_datasheet(tensorrt: dict[str, list[RowComparison]]) -> None:
    for chip, inherited, datasheet in (("h100", 0.065, 0.23), ("h200", 0.08, 0.28)):
        rows = tensorrt[chip]
        assert {made.how for made in rows} == {"constants inherited from a100-80g"}
        assert len(rows) == 12
        assert median_error([made.relative_error for made in rows]) < inherited
        assert median_error([made.datasheet_error for made in rows]) > datasheet


def test_the_family_inherits_what_the_rows_of_its_a100_give(tensorrt: dict[str, list[RowComparison]]) -> None:
    family = load_chip("a100-80g").family
    assert family is not None
    fit = calibrate([sample_of(made.row) for made in tensorrt["a100-80g"]])
    assert asdict(family) == pytest.approx(asdict(fit.constants), rel=2e-3)


def test_the_range_to_expect_is_that_of_the_rows(tensorrt: dict[str, list[RowComparison]]) -> None:
    ratios = [made.row.measured_s / made.predicted_s for chip in ("h100", "h200") for made in tensorrt[chip]]
    assert (min(ratios), max(ratios)) == pytest.approx(INHERITED_RANGE, abs=0.005)
    assert error_in_words(load_chip("b200"), "inherited") == (
        "measured times 0.9 to 1.36 times these, as of H100 and H200 in published tables: constants inherited from"
        " a100-80g, not measured"
    )
