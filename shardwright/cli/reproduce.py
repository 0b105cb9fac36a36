"""`shardwright reproduce`: published measurements beside predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.cli.options import add_json

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers
    from shardwright.reproduction.checks import Check
    from shardwright.reproduction.reproduction import ReproducedTable, RowComparison


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
    from shardwright.reproduction.reproduction import reproduce

    tables = reproduce(args.table, _compiling)
    if args.plots:
        _plot(args.plots, tables)
    if args.json:
        from shardwright.cli.output import print_json

        print_json(_as_json(tables))
    else:
        print("\n\n".join(map(repr, tables)))
    return 0


def _compiling(number: int, count: int, name: str) -> None:
    import sys

    once = "; kept for the next time" if number == 1 else ""
    print(f"compiling program {number} of {count}, {name}{once}", file=sys.stderr, flush=True)


def _plot(folder: str, tables: list[ReproducedTable]) -> None:
    from pathlib import Path

    from shardwright.cli.output import write_output
    from shardwright.reproduction import figure_drawing, figures, offload_figures

    Path(folder).mkdir(parents=True, exist_ok=True)
    own = {check.table for table in tables for check in table.checks} & set(offload_figures.FIGURES)
    made = {name: offload_figures.FIGURES[name][2] for name in sorted(own)} or figures.FIGURES
    for name, figure in made.items():
        drawn = figure_drawing.drawn(figure(), "svg")
        write_output(str(Path(folder) / f"{name.replace('-', '_')}.svg"), drawn)


def _as_json(tables: list[ReproducedTable]) -> dict[str, Any]:
    """Errors are summed up over rows of times, or over checks where there are none."""
    from shardwright.reproduction.reproduction import median_error

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


def _row_json(made: RowComparison) -> dict[str, Any]:
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
