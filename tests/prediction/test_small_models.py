"""A small model on a core of this machine beside FlexGen's tables: which policies run, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.cost.hardware.chips import load_machine
from shardwright.cost.offloading.policy import parse_policy
from shardwright.reproduction.measuring import small_models
from shardwright.reproduction.measuring.limit import Limit
from shardwright.reproduction.offload_rows import TABLES
from shardwright.reproduction.tables import Measurements


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_models, "this_machine", lambda *_: load_machine("t4"))


def figures(name: str, limit_s: float = 60.0) -> Measurements:
    return small_models.measured(TABLES[name][1](), Limit(limit_s))


def test_each_policy_of_a_table_runs_once_with_batches_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_models, "_tokens_per_s", lambda *_: 100.0)
    made = figures("flexgen-23")
    assert [each.row for each in made.here] == [
        "small OPT 8 x 2, 0, 100, 0, 100, 0, 100",
        "small OPT 8 x 2, 20, 80, 0, 100, 0, 100",
        "small OPT 8 x 1, 0, 100, 100, 0, 100, 0",
        "small OPT 8 x 1, 0, 50, 0, 0, 0, 100",
        "small OPT 8 x 2, 0, 50, 0, 0, 0, 100",
        "small OPT 8 x 1, 0, 0, 100, 0, 100, 0",
    ]
    assert {each.what for each in made.here} == {"throughput"}
    assert made.here[0].figure(made.here[0].measured) == "100 token/s"
    assert made.notes[:2] == (
        "measured: OPT of 4 layers, 512 wide, in f32 on a core of this machine, 32 tokens in and 8 out, by this"
        " project's runtime; predicted with this machine's measured rates",
        "not measured: the published rows, which are of larger models on a T4",
    )


def test_rows_without_overlap_are_not_what_this_runtime_does() -> None:
    assert figures("flexgen-8").here == ()


def test_four_bits_are_run_as_four_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    quantized: list[bool] = []
    monkeypatch.setattr(small_models, "_tokens_per_s", lambda _, policy, __: quantized.append(bool(policy.bits)) or 1.0)
    rows = [each.row for each in figures("flexgen-2").here]
    assert "small OPT 8 x 1, 100, 0, 100, 0, 100, 0" in rows
    assert "small OPT 8 x 1, 100, 0, 100, 0, 100, 0, in 4 bits" in rows


def test_no_time_is_said() -> None:
    made = figures("flexgen-22", 0.0)
    assert made.here == ()
    assert made.notes[0].startswith("not measured: the 0 s of the time limit are over")


def test_a_run(tmp_path: Path) -> None:
    """The small model itself, in one block."""
    from shardwright.ir.types import DType
    from shardwright.models.dummy_checkpoint import write_dummy

    write_dummy(tmp_path, small_models.CONFIG, DType.F32)
    assert small_models._tokens_per_s(tmp_path, parse_policy("2,1,0,100,0,100,0,100"), 8000) > 0
