"""`shardwright targets`: what can be compiled for here, and what to install for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import add_json

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """[--json]."""
    parser = subparsers.add_parser(
        "targets",
        description="The chips whose own compilers can be asked, without such a chip, what becomes of a program: "
        "compile FILE --target CHIP:SHAPE, explain FILE --target CHIP:SHAPE.",
    )
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    """Lists chips, their compilers and what is missing. `--json`: `{"targets": [{"chip", "example", "compiler",
    "installed", "install"}]}`, where "install" is null for what is here."""
    from dataclasses import asdict

    from shardwright.backends.targets.names import targets
    from shardwright.cli.output import print_json
    from shardwright.ir.text.table import text_table

    rows = targets()
    if args.json:
        print_json({"targets": [asdict(row) for row in rows]})
        return 0
    cells = [(row.chip, row.example, row.compiler, "here" if row.installed else "missing") for row in rows]
    print("\n".join(text_table(("chip", "a target of it", "compiler", ""), cells, "llll")))
    for command in dict.fromkeys(f"{row.compiler}: {row.install}" for row in rows if row.install):
        print(command)
    return 0
