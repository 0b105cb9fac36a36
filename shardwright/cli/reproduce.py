"""`shardwright reproduce`: published measurements beside predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.cli.options import add_json, number

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers
    from shardwright.reproduction.checks import Check
    from shardwright.reproduction.tables import MeasuredHere, ReproducedTable, RowComparison


def add_parser(subparsers: Subparsers) -> None:
    """[TABLE|FILE.csv] [--measure] [--time-limit S] [--plots FOLDER] [--json]."""
    parser = subparsers.add_parser(
        "reproduce", description="Published measurements beside what is predicted of them, with the signed error."
    )
    parser.add_argument(
        "table",
        metavar="TABLE|FILE.csv",
        nargs="?",
        default="all",
        help="d2, d3, 2, 1, claims, tensorrt-llm, chen, or flexgen-2, -8, -13, -19, -21, -22 and -23, or a file with "
        "the columns of table D.2 or 2, or of FlexGen's table 2; all of these where not given; or flexgen-figure-1 or "
        "-4",
    )
    parser.add_argument(
        "--plots",
        metavar="FOLDER",
        help="also draw, as SVG, the figure that TABLE names, or figures of Pope et al., with our curves",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="beside them also what this machine can measure: bytes held and received in modules that the compilers of "
        "TPUs and GPUs make here, and the throughput of a small model under FlexGen's policies",
    )
    parser.add_argument(
        "--time-limit",
        type=number(0.0, 1e6),
        metavar="SECONDS",
        help="with --measure: begin nothing more after so long (default: 180); what was compiled is kept, so that the "
        "same command goes on",
    )
    add_json(parser)
    parser.check(lambda args: "--time-limit goes with --measure" if args.time_limit and not args.measure else None)


def execute(args: argparse.Namespace) -> int:
    """Print a table for each published one, or one JSON object with `--json`."""
    from shardwright.reproduction.reproduction import TIME_LIMIT_S, reproduce

    limit_s = args.time_limit or TIME_LIMIT_S
    tables = reproduce(args.table, _compiling, measure=args.measure, time_limit_s=limit_s, measuring=_measuring)
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


def _measuring(what: str) -> None:
    import sys

    print(f"measuring: {what}", file=sys.stderr, flush=True)


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
    from shardwright.reproduction.tables import median_error

    rows = [row for table in tables for row in table.rows]
    checks = [check for table in tables for check in table.checks]
    errors = [row.relative_error for row in rows] or [check.relative_error for check in checks]
    made: dict[str, Any] = {
        "rows": [row for table in tables for row in _rows_json(table)],
        "median_abs_relative_error": median_error(errors),
        "max_abs_relative_error": max(map(abs, errors), default=0.0),
    }
    if rows:
        sheet = [row.datasheet_error for row in rows]
        made["median_abs_relative_error_from_datasheet"] = median_error(sheet)
        made["max_abs_relative_error_from_datasheet"] = max(map(abs, sheet))
    return made | _measured_json(tables)


def _rows_json(table: ReproducedTable) -> list[dict[str, Any]]:
    """Rows of times, or statements; with what was measured where that was asked for."""
    made = [*map(_row_json, table.rows), *map(_check_json, table.checks)]
    if table.measured is None:
        return made
    return [{**row, "measured": table.measured.figures.get(row["row"])} for row in made]


def _measured_json(tables: list[ReproducedTable]) -> dict[str, Any]:
    """The figures of what was measured here and nobody published, and how, by table; empty where nobody asked."""
    made = [(table, table.measured) for table in tables if table.measured is not None]
    if not made:
        return {}
    return {
        "measured_here": [_here_json(table, each) for table, measured in made for each in measured.here],
        "measured_notes": [{"table": table.name or table.title, "notes": list(m.notes)} for table, m in made],
    }


def _here_json(table: ReproducedTable, made: MeasuredHere) -> dict[str, Any]:
    return {
        "table": table.name or table.title,
        "row": made.row,
        "what": made.what,
        "unit": made.unit,
        "published": None,
        "predicted": made.predicted,
        "measured": made.measured,
        "relative_error": made.relative_error,
        "remark": made.remark,
    }


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
