"""Figures of compiled modules beside published ones, of modules that stand in for a compiler's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from shardwright.backends.targets.names import Platform
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.kernels.work import work_of
from shardwright.cost.programs.memory import memory_of
from shardwright.explaining.reports import CollectiveReport, Explanation, FunctionReport
from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.program import Program
from shardwright.reproduction.feedforward import volume
from shardwright.reproduction.measuring import statements, target_modules
from shardwright.reproduction.measuring.limit import Limit, NotMeasuredError
from shardwright.reproduction.measuring.statements import compiled_volume
from shardwright.reproduction.measuring.target_modules import target_of
from shardwright.reproduction.reproduction import reproduce

Explain = Callable[..., Explanation]
FFN = (4, 4, 4), 512, 16384, 65536


def as_written(program: Program, target: str, *, functions: Sequence[str], time_limit_s: float) -> Explanation:
    """A compiler that makes every movement as it is written, gathers of weights with twice the bytes, and holds 1.5
    times the cache."""
    del time_limit_s
    func = program.func(functions[0])
    collectives = tuple(
        CollectiveReport("all_gather", ("x",), 1, received * (2 if name.startswith("u_") else 1), 0, (name,), None)
        for name, received in received_by_name(program, functions[0])
    )
    state = 3 * memory_of(program, func).state // 2
    report = FunctionReport(func.name, collectives, None, 10, 20, 3, state_bytes=state)
    return Explanation(target, (report,))


def received_by_name(program: Program, name: str) -> list[tuple[str, int]]:
    works = work_of(program, program.func(name))
    return [(work.name, work.collective.received * work.trips) for work in works if work.collective is not None]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Platform, "missing", property(lambda _: ()))
    monkeypatch.setattr(target_modules, "explain_program", as_written)


def test_without_a_compiler_it_is_said_once_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Platform, "missing", property(lambda platform: platform.modules))
    (table,) = reproduce("1", measure=True)
    assert table.measured is not None
    assert table.measured.figures == {}
    assert table.measured.notes == ("not measured: tpu-v4:4x4x4 needs libtpu: pip install 'shardwright[tpu]'",)
    assert "multihead batch 128                  1320       1332         -  +0.9 %      2 %  holds" in repr(table)


@pytest.mark.usefixtures("installed")
def test_volumes_are_in_the_elements_of_the_formulas() -> None:
    written, made = volume("wg-x", *FFN), compiled_volume(Limit(60.0), "wg-x", *FFN)
    assert made.activations == written.activations == 2 * 512 * 16384 / 4
    assert made.weights == 2 * written.weights == 2 * 2 * 16384 * 65536 * 4 / 64


@pytest.mark.usefixtures("installed")
def test_weights_are_told_apart_where_a_target_splits_their_gathers() -> None:
    made = compiled_volume(Limit(60.0), "wg-xyz", *FFN)
    assert made.weights == 2 * volume("wg-xyz", *FFN).weights
    assert made.activations == 0


@pytest.mark.usefixtures("installed")
def test_contexts_follow_from_the_bytes_of_the_compiled_cache() -> None:
    (table,) = reproduce("1", measure=True)
    assert table.measured is not None
    for check in table.checks:
        assert table.measured.figures[check.row] == pytest.approx(check.predicted / 1.5, rel=0.01)
    assert table.measured.notes == (
        "measured: bytes of the cache among the arguments of modules of libtpu for 64 TPU v4",
    )


@pytest.mark.usefixtures("installed")
def test_programs_of_rows_have_bytes_of_their_own_and_no_published_ones() -> None:
    told: list[str] = []
    (table,) = reproduce("2", measure=True, measuring=told.append)
    assert table.measured is not None
    assert len(table.measured.here) == 2 * len(table.rows)
    held, received = table.measured.here[:2]
    assert held.row == received.row == table.rows[0].row.name
    assert (held.what, held.measured) == ("held by a chip, by libtpu for tpu-v4:4x4x4", 33)
    assert received.predicted == received.measured
    assert told[0] == f"{held.row}, on tpu-v4:4x4x4"
    assert table.measured.notes == (
        "measured: bytes of a chip, in modules of the chips' own compilers",
        "not measured: times are of tpu-v4, and this machine has none",
    )
    text = repr(table).splitlines()
    assert text[2].split() == ["row", "published", "predicted", "measured", "error", "datasheet", "only"]
    assert any(line.startswith("measured here") for line in text)


@pytest.mark.usefixtures("installed")
def test_what_the_compiler_refuses_is_said_of_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: object, **__: object) -> Explanation:
        return Explanation("tpu-v4:4x4x4", (), (fault("target-memory", "prefill does not fit", NOWHERE),))

    monkeypatch.setattr(target_modules, "explain_program", refusing)
    (table,) = reproduce("2", measure=True)
    assert table.measured is not None
    first = table.measured.here[0]
    assert (first.measured, first.relative_error, first.remark) == (None, None, "prefill does not fit")
    assert first.figure(first.measured) == "-"


@pytest.mark.usefixtures("installed")
def test_the_limit_of_time_leaves_the_rest_for_the_next_run() -> None:
    (table,) = reproduce("claims", measure=True, time_limit_s=0.0)
    assert table.measured is not None
    assert table.measured.figures == {}
    assert table.measured.notes[0] == (
        "not measured: the 0 s of the time limit are over; what was compiled is kept, so the same command goes on"
    )


def test_tables_that_nothing_here_can_measure_say_so() -> None:
    (table,) = reproduce("flexgen-13", measure=True)
    assert table.measured is not None
    assert repr(table).endswith("\n\nnot measured: no compiler and no small model here gives such figures")


@pytest.mark.parametrize(
    ("chip", "chips", "target"),
    [
        ("tpu-v4", 64, "tpu-v4:4x4x4"),
        ("tpu-v5e", 8, "tpu-v5e:2x4"),
        ("a100-80g", 8, "a100-80g:8"),
        ("h100", 16, "h100:2x8"),
    ],
)
def test_targets_of_so_many_chips(chip: str, chips: int, target: str) -> None:
    assert target_of(load_chip(chip), chips).name == target


def test_a_chip_without_a_compiler() -> None:
    with pytest.raises(NotMeasuredError, match="no compiler for t4 runs on other machines"):
        target_of(load_chip("t4"), 1)


def test_statements_that_are_measured_are_published_ones() -> None:
    rows = {name: {row for row, _ in table[0](Limit(0.0))} for name, table in statements.TABLES.items()}
    for name, measured in rows.items():
        (table,) = reproduce(name)
        assert measured <= {check.row for check in table.checks}
