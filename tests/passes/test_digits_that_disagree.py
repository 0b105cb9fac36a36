"""Programs in which splits, merges and renames want digits in orders that do not agree: they compile all the same."""

from __future__ import annotations

import pytest
from oracles.reshaped_programs import reshaped_program
from program_text import program

from shardwright.backends.validation.validate import validate
from shardwright.ir.program import Program
from shardwright.passes.compiling import place
from shardwright.passes.compiling.choose_digit_order import DigitConflictError, require_room
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
