"""`shardwright check`: the type of every value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import add_file, add_json, add_sizes

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """FILE [--mesh] [--dim] [--json]."""
    parser = subparsers.add_parser("check", description="Type a program and print the type of every value.")
    add_file(parser)
    add_sizes(parser)
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    """TO CONNECT: args.file (text), args.mesh, args.dim (dict from name to size), args.json."""
    from shardwright.cli.pending import pending

    pending("check", args)
