"""`shardwright compile`: a program that runs under another framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import add_file, add_json, add_output, add_sizes, json_needs_output

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """FILE [--to jax] [-o OUT.py] [--no-validate] [--mesh] [--dim] [--json]."""
    parser = subparsers.add_parser(
        "compile",
        description="Compile a program to a Python module that stands alone. Before it is written, the compiled "
        "program runs in the simulator at reduced sizes against its unsharded meaning.",
    )
    add_file(parser)
    parser.add_argument("--to", choices=("jax",), default="jax", help="the framework of the module (default: jax)")
    parser.add_argument("--no-validate", dest="validate", action="store_false", help="write without that proof")
    add_sizes(parser)
    add_output(parser, "OUT.py")
    add_json(parser)
    parser.check(json_needs_output)


def execute(args: argparse.Namespace) -> int:
    """TO CONNECT: args.file, args.to, args.validate, args.mesh, args.dim, args.output (text or None), args.json."""
    from shardwright.cli.pending import pending

    pending("compile", args)
