"""Published rows beside predictions, with the chip's constants calibrated on one table or taken from its datasheet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import median

from shardwright.cost.calibration import Fit, Sample, calibrate, predicted_s
from shardwright.cost.constants import DATASHEET, Constants
from shardwright.prediction.phases import demands
from shardwright.prediction.rows import Row, published


@dataclass(frozen=True)
class Compared:
    """A row beside what was predicted of it, in seconds; `calibrated` says whether its group has fitted constants."""

    row: Row
    predicted_s: float
    datasheet_s: float
    calibrated: bool

    @property
    def relative_error(self) -> float:
        return self.predicted_s / self.row.measured_s - 1

    @property
    def datasheet_error(self) -> float:
        return self.datasheet_s / self.row.measured_s - 1


def sample_of(row: Row) -> Sample:
    """The measured time with the kernels that ran in it."""
    made = [pair for phase in row.phases for pair in demands(row.deployment, row.chip, phase, row.workload, row.stages)]
    return Sample(row.measured_s, tuple(made))


def calibration_rows(group: str) -> list[Row]:
    """The rows of table D.2 that the constants of a group are fitted on: of Pope et al.'s system PaLM's alone."""
    rows = [row for row in published("d2") if row.group == group]
    return [row for row in rows if not group.startswith("pope2022") or row.model.name.startswith("palm")]


@cache
def fitted(group: str) -> Fit | None:
    """The constants of a group; None where table D.2 has none of its rows."""
    rows = calibration_rows(group)
    return calibrate([sample_of(row) for row in rows]) if rows else None


def compare(rows: Iterable[Row], constants: Mapping[str, Constants] | None = None) -> list[Compared]:
    """Predicts each row with the constants of its group."""
    made: list[Compared] = []
    for row in rows:
        sample = sample_of(row)
        own = (constants or {}).get(row.group)
        fit = fitted(row.group) if own is None else None
        chosen = own or (fit.constants if fit is not None else None)
        best = predicted_s(sample, chosen or row.chip.constants)
        made.append(Compared(row, best, predicted_s(sample, DATASHEET), chosen is not None))
    return made


def median_error(errors: Sequence[float]) -> float:
    """Of absolute values; 0 of none."""
    return median(map(abs, errors)) if errors else 0.0
