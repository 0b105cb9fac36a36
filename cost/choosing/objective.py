"""The objective that layouts are chosen for: the least predicted time on a chip, or the fewest bytes received per
chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardwright.cost.hardware.chips import REFERENCE, Chip, load_chip
from shardwright.cost.hardware.constants import DATASHEET, Constants
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.program import Program

SOLVERS = ("auto", "ortools")
"""All that there is, and HiGHS through OR-tools alone."""


@dataclass(frozen=True)
class Objective:
    """Time on `chip` under its memory, its kernels and links as `constants` say; functions count by `calls`, once where
    they are not named. `solver` is one of `SOLVERS`."""

    chip: Chip = REFERENCE
    constants: Constants = DATASHEET
    calls: Mapping[str, float] = field(default_factory=dict[str, float], hash=False)
    solver: str = "auto"

    @classmethod
    def on(cls, chip: Chip) -> Objective:
        """Time on a chip under its own constants."""
        return cls(chip, chip.constants)

    def count(self, func: str) -> float:
        """How often a function is called."""
        return self.calls.get(func, 1.0)


def chip_for(program: Program, named: str = "") -> Chip:
    """The chip that is named, by name or by the path of a chip file, else the one that the program names, else the
    reference chip. Raises where there is no such chip."""
    if named or not program.chip:
        return load_chip(named or REFERENCE.name)
    try:
        return load_chip(program.chip)
    except DiagnosticError as error:
        if error.source is not None:
            raise
        (said,) = error.diagnostics
        raise DiagnosticError([replace(said, span=program.chip_span)]) from None
