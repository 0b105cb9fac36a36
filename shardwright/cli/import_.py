"""`shardwright import`: a program from a Hugging Face checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import add_json, add_output, add_sizes, json_needs_output

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """CHECKPOINT --mesh --layout NAME -o OUT.shard [--dim] [--json]."""
    parser = subparsers.add_parser(
        "import",
        description="Write the forward pass of a Hugging Face checkpoint as a program with the given layout. "
        "Its config.json is enough; `run --weights` loads the weights.",
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder with config.json, or that file")
    parser.add_argument("--layout", metavar="NAME", required=True, help="the layout of weights and activations")
    add_sizes(parser)
    add_output(parser, "OUT.shard")
    add_json(parser)
    parser.check(lambda args: None if args.mesh else "the following arguments are required: --mesh")
    parser.check(json_needs_output)


def execute(args: argparse.Namespace) -> int:
    """TO CONNECT: args.checkpoint, args.layout (text), args.mesh, args.dim, args.output (text or None), args.json."""
    from shardwright.cli.pending import pending

    pending("import", args)
