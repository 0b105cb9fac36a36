"""`shardwright lsp`: a language server on standard input and output."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """No arguments."""
    subparsers.add_parser(
        "lsp",
        description="A language server for .shard files on standard input and output, for editors to start: faults as "
        "one types, types and costs at the pointer, the types found as hints, completion, definitions, formatting and "
        "quick fixes. The folder editors/ of the project says how each editor starts it.",
    )


def execute(_args: argparse.Namespace) -> int:
    """Serves until the client ends it."""
    from shardwright.workbench.language_server import start

    return start()
