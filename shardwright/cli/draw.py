"""`shardwright draw`: a picture of the sharded graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import add_file, add_output, add_sizes, one_of

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers

FORMATS = ("svg", "png", "pdf", "dot", "html")


def add_parser(subparsers: Subparsers) -> None:
    """FILE -o OUT.{svg,png,pdf,dot,html} [--mesh] [--dim]."""
    parser = subparsers.add_parser(
        "draw", description="Draw a program: its values with their layouts, its operations, and the collectives."
    )
    add_file(parser)
    add_output(parser, f"OUT.{{{','.join(FORMATS)}}}", required=True, kind=one_of("picture", *FORMATS))
    add_sizes(parser)


def execute(args: argparse.Namespace) -> int:
    """TO CONNECT: args.file, args.output (ends in one of `FORMATS`), args.mesh, args.dim."""
    from shardwright.cli.pending import pending

    pending("draw", args)
