"""`shardwright check`: the type of every value."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from shardwright.cli.options import add_choice, add_file, add_json, add_sizes, place_of, warn

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """FILE [--level surface|explicit] [--chip] [--objective] [--calls] [--mesh] [--dim] [--json]."""
    parser = subparsers.add_parser(
        "check",
        description="Type a program and print the type of every value; types that the compiler finds are marked :~.",
    )
    add_file(parser)
    parser.add_argument(
        "--level",
        choices=("surface", "explicit"),
        default="surface",
        help="explicit: every movement must be a statement, and nothing is inserted or chosen (default: surface)",
    )
    add_choice(parser)
    add_sizes(parser)
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    """Prints the types, and warnings on standard error; every fault is reported, with status 1."""
    from shardwright.cli.output import print_json, read_program
    from shardwright.compiling.checking import check_in_full, listing
    from shardwright.compiling.compile_program import load_stages
    from shardwright.ir.diagnostics import DiagnosticError, located

    try:
        source = read_program(args.file)
        with located(source):
            program, stages = load_stages(source, args.mesh, args.dim)
            checked = check_in_full(program, explicit=args.level == "explicit", place=place_of(args))
    except DiagnosticError as error:
        if not args.json:
            raise
        found = [diagnostic.as_json() for diagnostic in error.diagnostics]
        print_json({"ok": False, "functions": [], "diagnostics": found})
        return 1
    warn(checked.proof)
    if args.json:
        placement = checked.proof.as_json() if checked.proof else None
        warnings = [warning.as_json() for warning in checked.warnings]
        print_json({"ok": True, "functions": checked.functions, "diagnostics": warnings, "placement": placement})
    else:
        for warning in checked.warnings:
            print(warning.render(source), file=sys.stderr)
        print(listing(checked.functions, checked.proof))
        if stages is not None:
            print(f"types of one stage of {stages.count} over {', '.join(stages.axes)}, with the layers of all")
    return 0
