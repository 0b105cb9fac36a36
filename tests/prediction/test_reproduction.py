"""Published rows come out: calibrated on the PaLM rows of table D.2 alone, and from the datasheet."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from shardwright.cost.hardware.chips import load_chip
from shardwright.reproduction.reproduction import compare, fitted
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
