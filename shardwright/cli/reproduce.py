"""`shardwright reproduce`: published measurements beside predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.cli.options import add_json

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from shardwright.cli.options import Subparsers
    from shardwright.prediction.checks import Check
    from shardwright.prediction.reproduction import Compared, Reproduced


def add_parser(subparsers: Subparsers) -> None:
    """[TABLE|FILE.csv] [--plots FOLDER] [--json]."""
    parser = subparsers.add_parser(
        "reproduce", description="Published measurements beside what is predicted of them, with the signed error."
    )
    parser.add_argument(
        "table",
        metavar="TABLE|FILE.csv",
        nargs="?",
        default="all",
        help="d2, d3, 2, 1, claims, chen, or flexgen-2, -8, -13, -19, -21, -22 and -23, or a file with the columns of "
        "table D.2 or 2, or of FlexGen's table 2; all of these where not given; or flexgen-figure-1 or -4",
    )
    parser.add_argument(
        "--plots",
        metavar="FOLDER",
        help="also draw, as SVG, the figure that TABLE names, or figures of Pope et al., with our curves",
    )
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    """Print a table for each published one, or one JSON object with `--json`."""
    from shardwright.prediction.reproduction import reproduce

    tables = reproduce(args.table, _compiling)
    if args.plots:
        _plot(args.plots, tables)
    if args.json:
        from shardwright.cli.output import print_json

        print_json(_as_json(tables))
    else:
        print("\n\n".join(_rows_text(table) if table.rows else _checks_text(table) for table in tables))
    return 0


def _compiling(number: int, count: int, name: str) -> None:
    import sys

    once = "; kept for the next time" if number == 1 else ""
    print(f"compiling program {number} of {count}, {name}{once}", file=sys.stderr, flush=True)


def _plot(folder: str, tables: list[Reproduced]) -> None:
    from pathlib import Path

    from shardwright.cli.output import write_output
    from shardwright.prediction import figure_drawing, figures, offload_figures

    Path(folder).mkdir(parents=True, exist_ok=True)
    own = {check.table for table in tables for check in table.checks} & set(offload_figures.FIGURES)
    for name in sorted(own):
        drawn = offload_figures.drawn(offload_figures.FIGURES[name][2](), "svg")
        write_output(str(Path(folder) / f"{name.replace('-', '_')}.svg"), drawn)
    if not own:
        for name, figure in figures.FIGURES.items():
            write_output(str(Path(folder) / f"{name}.svg"), figure_drawing.drawn(figure(), "svg"))


def _as_json(tables: list[Reproduced]) -> dict[str, Any]:
    """Errors are summed up over rows of times, or over checks where there are none."""
    from shardwright.prediction.reproduction import median_error

    rows = [row for table in tables for row in table.rows]
    checks = [check for table in tables for check in table.checks]
    errors = [row.relative_error for row in rows] or [check.relative_error for check in checks]
    made: dict[str, Any] = {
        "rows": [*map(_row_json, rows), *map(_check_json, checks)],
        "median_abs_relative_error": median_error(errors),
        "max_abs_relative_error": max(map(abs, errors), default=0.0),
    }
    if rows:
        sheet = [row.datasheet_error for row in rows]
        made["median_abs_relative_error_from_datasheet"] = median_error(sheet)
        made["max_abs_relative_error_from_datasheet"] = max(map(abs, sheet))
    return made


def _row_json(made: Compared) -> dict[str, Any]:
    return {
        "table": made.row.table,
        "row": made.row.name,
        "published": made.row.measured_s,
        "predicted": made.predicted_s,
        "relative_error": made.relative_error,
        "calibrated": made.calibrated,
        "unit": "s",
        "predicted_from_datasheet": made.datasheet_s,
        "relative_error_from_datasheet": made.datasheet_error,
    }


def _check_json(check: Check) -> dict[str, Any]:
    return {
        "table": check.table,
        "row": check.row,
        "published": check.published,
        "predicted": check.predicted,
        "relative_error": check.relative_error,
        "calibrated": check.calibrated,
        "statement": check.statement,
        "tolerance": check.tolerance,
        "holds": check.holds,
        "remark": check.remark,
    }


def _checks_text(table: Reproduced) -> str:
    from shardwright.ir.text_table import text_table

    lines = [
        (
            check.row,
            f"{check.published:.4g}",
            f"{check.predicted:.4g}",
            f"{100 * check.relative_error:+.1f} %",
            "" if check.tolerance is None else f"{100 * check.tolerance:.0f} %",
            "" if check.tolerance is None else "holds" if check.holds else "fails",
            check.statement + (f" ({check.remark})" if check.remark else ""),
        )
        for check in table.checks
    ]
    head = ("", "published", "predicted", "error", "allowed", "", "")
    held = [check for check in table.checks if check.tolerance is not None]
    summary = f"{sum(check.holds for check in held)} of {len(held)} hold" if held else _errors_text(table.checks)
    return "\n".join([table.title, "", *text_table(head, lines, "lrrrrll"), "", summary])


def _errors_text(checks: Sequence[Check]) -> str:
    """The line of checks that are only reported: those fitted on, and the others."""
    from shardwright.prediction.reproduction import median_error

    lines: list[str] = []
    for how, calibrated in (("fitted on", True), ("predicted", False)):
        errors = [check.relative_error for check in checks if check.calibrated == calibrated and check.published]
        if errors:
            middle, largest = 100 * median_error(errors), 100 * max(map(abs, errors))
            rows = "1 row" if len(errors) == 1 else f"{len(errors)} rows"
            lines.append(f"{rows} {how}: median error {middle:.1f} %, largest {largest:.1f} %")
    return "\n".join(lines)


def _rows_text(table: Reproduced) -> str:
    from shardwright.cost.movements import duration_text
    from shardwright.ir.text_table import text_table
    from shardwright.prediction.reproduction import median_error

    lines = [
        (
            made.row.name,
            duration_text(made.row.measured_s),
            duration_text(made.predicted_s),
            f"{100 * made.relative_error:+.1f} %",
            f"{100 * made.datasheet_error:+.1f} %",
        )
        for made in table.rows
    ]
    head = ("row", "published", "predicted", "error", "datasheet only")
    groups = dict.fromkeys(made.row.group for made in table.rows)
    summary: list[str] = []
    for group in groups:
        own = [made for made in table.rows if made.row.group == group]
        errors, sheet = [made.relative_error for made in own], [made.datasheet_error for made in own]
        how = "calibrated" if own[0].calibrated else "datasheet"
        summary.append(
            f"{group}, {len(own)} rows: median error {100 * median_error(errors):.1f} %, largest"
            f" {100 * max(map(abs, errors)):.1f} % ({how}); datasheet only median {100 * median_error(sheet):.1f} %"
        )
    return "\n".join([table.title, "", *text_table(head, lines, "lrrrr"), "", *summary])
