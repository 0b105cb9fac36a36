"""`shardwright reshard`: the cheapest way from one layout to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import add_json, add_sizes

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """FROM TO --mesh --dim [--chip NAME] [--minimize bytes|time] [--json]."""
    parser = subparsers.add_parser(
        "reshard",
        description="Plan the movement of data from one layout to another, and say how far it is from the lower bound.",
    )
    parser.add_argument("source", metavar="FROM", help="a type, such as 'bf16 E_xyF'")
    parser.add_argument("target", metavar="TO", help="a type of the same dimensions, such as E_yF_x")
    add_sizes(parser)
    parser.add_argument("--chip", metavar="NAME", help="also predict times on this chip, by name or by file")
    parser.add_argument(
        "--minimize",
        choices=("bytes", "time"),
        default="bytes",
        help="bytes received per chip, then communicating steps (default), or time on the chip",
    )
    add_json(parser)
    parser.check(lambda args: None if args.mesh else "the following arguments are required: --mesh")
    parser.check(lambda args: None if args.dim else "the following arguments are required: --dim")
    parser.check(lambda args: "--minimize time needs --chip" if args.minimize == "time" and not args.chip else None)


def execute(args: argparse.Namespace) -> int:
    """TO CONNECT: args.source, args.target (text), args.mesh, args.dim, args.chip (text or None),
    args.minimize ("bytes" or "time"), args.json."""
    from shardwright.cli.pending import pending

    pending("reshard", args)
