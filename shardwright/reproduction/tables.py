"""A published table beside predictions, and beside what was measured here, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from shardwright.cost.movements.movement import duration_text
from shardwright.ir.text.table import bytes_text, counted, text_table
from shardwright.reproduction.checks import Check
from shardwright.reproduction.rows import PublishedRow

NOTHING = "-"
"""The sign that stands where there is no figure."""


@dataclass(frozen=True)
class RowComparison:
    """A row beside what was predicted of it, in seconds. `calibrated` says whether its group has fitted constants, and
    `how` which constants it has, in words."""

    row: PublishedRow
    predicted_s: float
    datasheet_s: float
    calibrated: bool
    how: str

    @property
    def relative_error(self) -> float:
        return self.predicted_s / self.row.measured_s - 1

    @property
    def datasheet_error(self) -> float:
        return self.datasheet_s / self.row.measured_s - 1


@dataclass(frozen=True)
class MeasuredHere:
    """A figure that this machine measured and nobody published, beside its prediction: `what` of the program or the run
    that `row` names, and by what it was measured. `measured` is None where that could not be, as `remark` says."""

    row: str
    what: str
    unit: Literal["B", "s", "token/s"]
    predicted: float
    measured: float | None
    remark: str = ""

    @property
    def relative_error(self) -> float | None:
        """The prediction's, to what was measured; None where that is nothing."""
        return self.predicted / self.measured - 1 if self.measured else None

    def figure(self, value: float | None) -> str:
        """A value of it with its unit."""
        if value is None:
            return NOTHING
        return {"B": bytes_text, "s": duration_text, "token/s": "{:.4g} token/s".format}[self.unit](value)


@dataclass(frozen=True)
class Measurements:
    """The measurements of this machine beside a table: figures for its statements by their rows; `here`, programs and
    runs of which nothing is published; and `notes` on how, and on why not."""

    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    here: tuple[MeasuredHere, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReproducedTable:
    """A published table beside predictions: rows of times, or checks of statements. `name` is what `reproduce` calls
    it; `measured` is None where nobody asked for measurements."""

    title: str
    rows: tuple[RowComparison, ...] = ()
    checks: tuple[Check, ...] = ()
    name: str = ""
    measured: Measurements | None = None

    def __repr__(self) -> str:
        lines = [self.title, "", *(self._rows_lines() if self.rows else self._checks_lines())]
        if self.measured is not None and self.measured.here:
            lines += ["", *_here_lines(self.measured.here)]
        if self.measured is not None and self.measured.notes:
            lines += ["", *self.measured.notes]
        return "\n".join(lines)

    def _figure_of(self, row: str) -> list[str]:
        """The cell of the third column, where there is one."""
        if self.measured is None:
            return []
        figure = self.measured.figures.get(row)
        return [NOTHING if figure is None else f"{figure:.4g}"]

    @property
    def _third(self) -> list[str]:
        return [] if self.measured is None else ["measured"]

    def _checks_lines(self) -> list[str]:
        lines = [
            (
                check.row,
                f"{check.published:.4g}",
                f"{check.predicted:.4g}",
                *self._figure_of(check.row),
                f"{100 * check.relative_error:+.1f} %",
                "" if check.tolerance is None else f"{100 * check.tolerance:.0f} %",
                "" if check.tolerance is None else "holds" if check.holds else "fails",
                check.statement + (f" ({check.remark})" if check.remark else ""),
            )
            for check in self.checks
        ]
        head = ("", "published", "predicted", *self._third, "error", "allowed", "", "")
        held = [check for check in self.checks if check.tolerance is not None]
        summary = f"{sum(check.holds for check in held)} of {len(held)} hold" if held else _errors_text(self.checks)
        return [*text_table(head, lines, "l" + "r" * (len(head) - 4) + "rll"), "", summary]

    def _rows_lines(self) -> list[str]:
        lines = [
            (
                made.row.name,
                duration_text(made.row.measured_s),
                duration_text(made.predicted_s),
                *self._figure_of(made.row.name),
                f"{100 * made.relative_error:+.1f} %",
                f"{100 * made.datasheet_error:+.1f} %",
            )
            for made in self.rows
        ]
        head = ("row", "published", "predicted", *self._third, "error", "datasheet only")
        groups = dict.fromkeys(made.row.group for made in self.rows)
        summary: list[str] = []
        for group in groups:
            own = [made for made in self.rows if made.row.group == group]
            errors, sheet = [made.relative_error for made in own], [made.datasheet_error for made in own]
            summary.append(
                f"{group}, {counted(len(own), 'row')}: median error {100 * median_error(errors):.1f} %, largest"
                f" {100 * max(map(abs, errors)):.1f} % ({own[0].how});"
                f" datasheet only median {100 * median_error(sheet):.1f} %"
            )
        return [*text_table(head, lines, "l" + "r" * (len(head) - 1)), "", *summary]


def _here_lines(here: Sequence[MeasuredHere]) -> list[str]:
    """The figures of what was measured here; their errors are the prediction's, to what was measured."""
    lines = [
        (
            made.row,
            NOTHING,
            made.figure(made.predicted),
            made.figure(made.measured),
            NOTHING if made.relative_error is None else f"{100 * made.relative_error:+.1f} %",
            made.what + (f" ({made.remark})" if made.remark else ""),
        )
        for made in here
    ]
    return text_table(("measured here", "published", "predicted", "measured", "error", ""), lines, "lrrrrl")


def _errors_text(checks: Sequence[Check]) -> str:
    """The line of checks that are only reported: those fitted on, and the others."""
    lines: list[str] = []
    for how, calibrated in (("fitted on", True), ("predicted", False)):
        errors = [check.relative_error for check in checks if check.calibrated == calibrated and check.published]
        if errors:
            middle, largest = 100 * median_error(errors), 100 * max(map(abs, errors))
            lines.append(f"{counted(len(errors), 'row')} {how}: median error {middle:.1f} %, largest {largest:.1f} %")
    return "\n".join(lines)


def median_error(errors: Sequence[float]) -> float:
    """The median of absolute values; 0 of none."""
    return median(map(abs, errors)) if errors else 0.0
