"""`calibrate`: the constants of a chip, from measured rows or from the machine at hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from shardwright.cost.hardware.calibration import Fit
from shardwright.cost.hardware.calibration import calibrate as fitted
from shardwright.cost.hardware.chips import Chip, chip_text, load_chip
from shardwright.ir.diagnostics import NOWHERE, Source, fault, located
from shardwright.ir.text.table import counted
from shardwright.ir.types import DType
from shardwright.prediction.chip_file import with_constants
from shardwright.prediction.machine import measure
from shardwright.reproduction.reproduction import calibration_rows, credible, rows_of
from shardwright.reproduction.rows import PublishedRow, file_source
from shardwright.serving.offloading.measuring import measure as measure_offloading


@dataclass(frozen=True)
class Calibration:
    """A chip file's `text`, or a machine file's; the `values` that were fitted or measured, as `calibrate --json` has
    them; and a `summary`."""

    text: str
    values: Mapping[str, Any]
    summary: str

    def __repr__(self) -> str:
        return self.summary


def calibrate(
    rows: str | None = None,
    chip: str | None = None,
    *,
    offloading: bool = False,
    device: str | None = None,
    dtype: str | None = None,
    spill_dir: str | None = None,
) -> Calibration:
    """The six constants of a chip: fitted to `rows`, a table of `reproduce` or a file in its columns, those of `chip`
    alone where one is named; without rows measured on the devices that JAX has here.

    With `serving.offloading` device, host and disk are measured as the offloading runtime uses them, in PyTorch, on
    `device`, for weights and activations in `dtype`, with the disk of `spill_dir`. Raises a `DiagnosticError` where
    rows are at fault.
    """
    if rows is not None:
        return _of_rows(rows, chip)
    if offloading:
        measured = measure_offloading(spill_dir, device, DType(dtype) if dtype else None)
        return Calibration(measured.text, measured.values, measured.summary)

    found = measure()
    return Calibration(found.text, found.values, found.summary)


def _of_rows(name: str, chip_name: str | None) -> Calibration:
    rows = _rows(name, chip_name)
    chip, file = rows[0].chip, chip_name or rows[0].chip_name
    with located(file_source(name) if name.endswith(".csv") else Source(name, "")):
        fit = fitted([credible(row) for row in rows])
    source = f"least squares on {counted(len(rows), 'row')}: shardwright calibrate --from {name} --chip {file}"
    values = {
        "chip": chip.name,
        "rows": len(rows),
        "constants": asdict(fit.constants),
        "median_abs_relative_error": fit.median_abs_error,
        "max_abs_relative_error": max(abs(error) for error in fit.errors),
    }
    text = with_constants(chip_text(file), fit.constants, source)
    return Calibration(text, values, _summary(chip.name, len(rows), fit))


def _rows(name: str, chip: str | None) -> list[PublishedRow]:
    """The rows to fit: of a published table those that its constants are fitted on, of a file all; of one chip."""
    wanted = None
    if chip is not None:
        with located(Source("--chip", "")):
            wanted = _datasheet(load_chip(chip))
    found = rows_of(name)
    rows = [row for row in found if wanted in (None, _datasheet(row.chip))]
    chips = sorted({_datasheet(row.chip): row.chip_name for row in rows or found}.values())
    with located(Source("--from", "")):
        if not rows:
            others = f" of {chip}; it has those of {' and '.join(chips)}" if chips else ""
            raise fault("no-rows", f"{name} has no measured times{others}", NOWHERE)
        if len(chips) > 1:
            raise fault("several-chips", f"{name} has rows of {' and '.join(chips)}", NOWHERE, f"add --chip {chips[0]}")
    if found and found[0].table == "d2":
        return calibration_rows(rows[0].group)
    return rows


def _datasheet(chip: Chip) -> Chip:
    """The chip as its data sheet has it: measurements of it before and after a calibration are of one chip."""
    return replace(chip, calibrated=None, inherited=None, expected_error=None, family=None, sources={})


def _summary(chip: str, count: int, fit: Fit) -> str:
    lines = [f"{chip}, {counted(count, 'row')}", ""]
    lines += [f"{name:<20} {value:.4g}" for name, value in asdict(fit.constants).items()]
    worst = max(abs(error) for error in fit.errors)
    if count < (number := len(asdict(fit.constants))):
        told = f"{counted(count, 'row')} cannot tell {number} constants apart"
        lines += ["", f"{told}: most are what such chips usually reach"]
    lines += ["", f"median error {100 * fit.median_abs_error:.1f} %, largest {100 * worst:.1f} %"]
    return "\n".join(lines)
