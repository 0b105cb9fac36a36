"""Programs in which splits, merges and renames want digits in orders that do not agree: they compile all the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from oracles.reshaped_programs import reshaped_program
from program_text import program

from shardwright.backends.validation.validate import validate
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.hardware.chips import load_chip
from shardwright.ir.program import Program
from shardwright.passes.compiling import place
from shardwright.passes.compiling.choose_digit_order import DigitConflictError, require_room
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.found import ENOUGH
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import explicit


@pytest.mark.parametrize("objective", ["time", "bytes"])
def test_programs_of_many_reshapes_mean_what_they_meant(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conflicts: list[tuple[tuple[str, str], ...]] = []

    def watched(written: Program) -> None:
        try:
            require_room(written)
        except DigitConflictError as conflict:
            conflicts.append(conflict.statements)
            raise

    monkeypatch.setattr(place, "require_room", watched)
    for seed in range(50):
        surface = program(reshaped_program(seed))
        validate(surface, explicit(surface, place=Place(objective=objective)))
    assert {len(statements) for statements in conflicts} >= {1, 2}
    assert len(conflicts) > 12


@pytest.mark.parametrize("seed", [6, 25])
def test_the_bound_is_of_all_programs_whose_digits_agree(seed: int) -> None:
    """Less memory leads to other layouts of these programs, faster than what is found where there is more."""
    surface, chip = program(reshaped_program(seed)), load_chip("h100")
    first = search(surface, Objective.on(chip), 10.0)
    second = search(surface, Objective.on(replace(chip, memory_bytes=0.75 * first.peak)), 10.0)
    assert first.bound_s <= min(first.objective_s, second.objective_s)
    assert (first.status == "optimal") == (first.bound_s >= first.objective_s * (1 - ENOUGH))
