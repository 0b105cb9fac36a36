"""Programs in which splits, merges and renames want digits in orders that do not agree: they compile all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from oracles.renamed_programs import orders_agree, renamed_program
from oracles.reshaped_programs import reshaped_program
from program_text import program

from shardwright.backends.validation.validate import validate
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.hardware.chips import load_chip
from shardwright.ir.program import Program
from shardwright.passes.compiling import place
from shardwright.passes.compiling.choose_digit_order import ChooseDigitOrder, DigitConflictError, require_room
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.found import ENOUGH
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import explicit


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seeds", [range(25), pytest.param(range(25, 50), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("objective", ["time", "bytes"])
def test_programs_of_many_reshapes_mean_what_they_meant(
    objective: str, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    conflicts: list[tuple[object, ...]] = []

    def watched(written: Program) -> None:
        try:
            require_room(written)
        except DigitConflictError as conflict:
            conflicts.append(conflict.statements)
            raise

    monkeypatch.setattr(place, "require_room", watched)
    for seed in seeds:
        surface = program(reshaped_program(seed))
        validate(surface, explicit(surface, place=Place(objective=objective)))
    assert {len(statements) for statements in conflicts} >= {1, 2}
    assert len(conflicts) > 12


def test_a_conflict_is_where_no_orders_agree() -> None:
    conflicts = 0
    for seed in range(200):
        made = program(renamed_program(seed))
        try:
            ChooseDigitOrder(tied=True).run(made)
        except DigitConflictError:
            conflicts += 1
            assert not orders_agree(made), seed
        else:
            assert orders_agree(made), seed
    assert 20 < conflicts < 100


def test_the_bound_is_of_all_programs_whose_digits_agree() -> None:
    """Less memory leads to other layouts of this program, no faster than what is found where there is more."""
    surface, chip = program(reshaped_program(74)), load_chip("h100")
    first = search(surface, Objective.on(chip), 10.0)
    second = search(surface, Objective.on(replace(chip, memory_bytes=0.9 * first.peak)), 10.0)
    assert first.bound_s <= first.objective_s <= second.objective_s
    assert first.status == "optimal"
    assert first.bound_s >= first.objective_s * (1 - ENOUGH)


@pytest.mark.parametrize(("seed", "written"), [(6, "f32 A_xyz = tanh("), (25, "p1: f32 BH_yD)")])
def test_other_splits_are_tried_where_digits_conflict(seed: int, written: str) -> None:
    """The first splits of these dimensions conflict; with whole ones the programs take 6 and 1.2 times as long."""
    found = search(program(reshaped_program(seed)), Objective.on(load_chip("h100")), 10.0)
    assert found.status == "optimal"
    assert written in str(found.program)
