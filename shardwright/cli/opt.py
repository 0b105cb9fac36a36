"""`shardwright opt`: the program after some passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import add_json, add_output, add_sizes

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """FILE --passes 'a,b{k=v}' [--print-after-all] [--timing] [--mesh] [--dim] [-o] [--json], or --list-passes."""
    parser = subparsers.add_parser(
        "opt", description="Run passes on a program and print the program that they leave, verified between passes."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--passes", metavar="'a,b{k=v}'", help="the passes in their order, with their options")
    what.add_argument("--list-passes", action="store_true", help="print every pass with its options, and end")
    parser.add_argument("file", metavar="FILE", nargs="?", help="a .shard program; - reads standard input")
    parser.add_argument("--print-after-all", action="store_true", help="print the program after each pass")
    parser.add_argument("--timing", action="store_true", help="print the time that each pass took on standard error")
    add_sizes(parser)
    add_output(parser, "OUT.shard")
    add_json(parser)
    parser.check(lambda args: None if args.list_passes or args.file else "the following arguments are required: FILE")


def execute(args: argparse.Namespace) -> int:
    """TO CONNECT: args.file, args.passes (text or None), args.list_passes, args.print_after_all, args.timing,
    args.mesh, args.dim, args.output, args.json."""
    from shardwright.cli.pending import pending

    pending("opt", args)
