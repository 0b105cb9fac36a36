"""`shardwright reproduce`: published measurements beside predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.cli.options import add_json

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers
    from shardwright.prediction.reproduction import Compared

_NAMES = ("d2", "d3", "2")


def add_parser(subparsers: Subparsers) -> None:
    """[TABLE|FILE.csv] [--json]."""
    parser = subparsers.add_parser(
        "reproduce", description="Published measurements beside what is predicted of them, with the signed error."
    )
    parser.add_argument(
        "table",
        metavar="TABLE|FILE.csv",
        nargs="?",
        default="all",
        help=f"one of {', '.join(_NAMES)}, or a file with the columns of table D.2 or 2; all tables where not given",
    )
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    """Print a table for each published one, or one JSON object with `--json`."""
    from shardwright.prediction.reproduction import compare
    from shardwright.prediction.rows import named_rows

    tables = {title: compare(rows) for _, title, rows in named_rows(args.table)}
    if args.json:
        from shardwright.cli.output import print_json

        print_json(_as_json([row for rows in tables.values() for row in rows]))
    else:
        print("\n\n".join(_table(title, rows) for title, rows in tables.items()))
    return 0


def _as_json(rows: list[Compared]) -> dict[str, Any]:
    from shardwright.prediction.reproduction import median_error

    errors = [row.relative_error for row in rows]
    sheet = [row.datasheet_error for row in rows]
    return {
        "rows": [
            {
                "table": made.row.table,
                "row": made.row.name,
                "published": made.row.measured_s,
                "predicted": made.predicted_s,
                "relative_error": made.relative_error,
                "calibrated": made.calibrated,
                "predicted_from_datasheet": made.datasheet_s,
                "relative_error_from_datasheet": made.datasheet_error,
            }
            for made in rows
        ],
        "median_abs_relative_error": median_error(errors),
        "max_abs_relative_error": max(map(abs, errors), default=0.0),
        "median_abs_relative_error_from_datasheet": median_error(sheet),
        "max_abs_relative_error_from_datasheet": max(map(abs, sheet), default=0.0),
    }


def _table(title: str, rows: list[Compared]) -> str:
    from shardwright.cli.text_table import text_table
    from shardwright.cost.movements import duration_text
    from shardwright.prediction.reproduction import median_error

    lines = [
        (
            made.row.name,
            duration_text(made.row.measured_s),
            duration_text(made.predicted_s),
            f"{100 * made.relative_error:+.1f} %",
            f"{100 * made.datasheet_error:+.1f} %",
        )
        for made in rows
    ]
    head = ("row", "published", "predicted", "error", "datasheet only")
    groups = dict.fromkeys(made.row.group for made in rows)
    summary: list[str] = []
    for group in groups:
        own = [made for made in rows if made.row.group == group]
        errors, sheet = [made.relative_error for made in own], [made.datasheet_error for made in own]
        how = "calibrated" if own[0].calibrated else "datasheet"
        summary.append(
            f"{group}, {len(own)} rows: median error {100 * median_error(errors):.1f} %, largest"
            f" {100 * max(map(abs, errors)):.1f} % ({how}); datasheet only median {100 * median_error(sheet):.1f} %"
        )
    return "\n".join([title, "", *text_table(head, lines, "lrrrr"), "", *summary])
