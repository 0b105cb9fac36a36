"""`shardwright fmt`: write programs the canonical way, in place."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from shardwright.cli.options import add_json

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """FILE... [--check] [--json]."""
    parser = subparsers.add_parser(
        "fmt",
        description="Rewrite programs in the canonical format, in place. Comments stay. A file that does not parse "
        "is left as it is. With - the program comes from standard input and goes to standard output.",
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="a .shard program; - reads standard input")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; print what would change, exit status 1 if anything"
    )
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    """0 unless `--check` finds a file that would change. Every file is tried before faults are reported."""
    from shardwright.cli.output import print_json
    from shardwright.ir.diagnostics import DiagnosticError

    files: list[str] = args.files
    changed: list[str] = []
    errors = 0
    reported: list[dict[str, object]] = []
    for file in files:
        try:
            if _format(file, check=args.check, quiet=args.json):
                changed.append(file)
        except DiagnosticError as error:
            print(error.render(), file=sys.stderr)
            reported.extend(diagnostic.as_json() for diagnostic in error.diagnostics)
            errors += 1
    ok = not errors and not (args.check and changed)
    if args.json:
        print_json({"ok": ok, "changed": changed, "diagnostics": reported})
    return 0 if ok else 1


def _format(file: str, *, check: bool, quiet: bool) -> bool:
    """Format one file; whether it was, or with `check` would be, changed. `quiet` keeps standard output clear."""
    from shardwright.cli.output import read_program, write_output
    from shardwright.commands import fmt
    from shardwright.ir.diagnostics import located

    source = read_program(file)
    with located(source):
        formatted = fmt(source.text, source.name)
    changed = formatted != source.text
    if check:
        if changed:
            print(f"would reformat {source.name}", file=sys.stderr)
            if not quiet:
                _print_difference(source.name, source.text, formatted)
    elif file == "-":
        if not quiet:
            write_output(None, formatted)
    elif changed:
        write_output(file, formatted)
        print(f"reformatted {source.name}", file=sys.stderr)
    return changed


def _print_difference(name: str, before: str, after: str) -> None:
    from difflib import unified_diff

    lines = unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), name, f"{name} (formatted)")
    for line in lines:
        sys.stdout.write(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
