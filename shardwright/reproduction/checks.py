"""A statement of a source beside what the model gives for it."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "published"


@dataclass(frozen=True)
class Check:
    """A published and a predicted figure, in the statement's own unit; how far apart they may be, relatively,
    None where the two are only reported beside each other; and a remark. Which tolerances were set before the first
    prediction and which after stands in docs/concepts/cost.md."""

    table: str
    row: str
    statement: str
    published: float
    predicted: float
    tolerance: float | None
    remark: str = ""
    calibrated: bool = False

    @property
    def relative_error(self) -> float:
        return self.predicted / self.published - 1 if self.published else self.predicted

    @property
    def holds(self) -> bool:
        return self.tolerance is None or abs(self.relative_error) <= self.tolerance + 1e-12


@cache
def published_lines(file: str) -> tuple[dict[str, str], ...]:
    """The lines of a published file, by column; comments begin with #."""
    text = (FOLDER / file).read_text(encoding="utf-8")
    return tuple(csv.DictReader(line for line in text.splitlines() if line.strip() and not line.startswith("#")))
