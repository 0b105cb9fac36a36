"""`shardwright explore`: change a program in the browser and see what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import natural

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """[FILE.shard] [--port N] [--no-browser]."""
    parser = subparsers.add_parser(
        "explore",
        description="Change a program in the browser, and see beside it as you type its types, the explicit program, "
        "its picture, collectives, memory, timeline and the reason for each layout. Served to this machine alone.",
    )
    parser.add_argument("file", metavar="FILE.shard", nargs="?", help="the program to begin with (default: an example)")
    parser.add_argument("--port", type=natural, default=0, metavar="N", help="the port (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="print the address and open nothing")
    parser.check(lambda args: f"--port {args.port} is not a port" if args.port > 65535 else None)


def execute(args: argparse.Namespace) -> int:
    """Prints the address first, then serves until it is interrupted."""
    from shardwright.workbench.explorer import explore

    explore(args.file, args.port, show=not args.no_browser)
    return 0
