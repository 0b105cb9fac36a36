"""`shardwright run`: run a program on the devices at hand and compare it with the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import add_file, add_json, add_sizes

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """FILE [--weights FOLDER] [--seed N] [--mesh] [--dim] [--json]."""
    parser = subparsers.add_parser(
        "run",
        description="Run a program on the devices at hand, on random inputs, and say how far it is from the reference. "
        "Where the mesh is larger than the machine, it runs on virtual CPU devices and says so.",
    )
    add_file(parser)
    parser.add_argument("--weights", metavar="FOLDER", help="a checkpoint (config.json and safetensors) to load")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random inputs (default: 0)")
    add_sizes(parser)
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    """TO CONNECT: args.file, args.weights (text or None), args.seed, args.mesh, args.dim, args.json."""
    from shardwright.cli.pending import pending

    pending("run", args)
