"""`shardwright export`: the layouts of a program in the form that another tool reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import add_choice, add_file, add_output, add_sizes, choice_of

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """FILE.shard --as jax|dtensor|hf-tp-plan|vllm|shardy|model-explorer [-o OUT] [--chip] [--mesh] [--dim]."""
    from shardwright.exporting.export import FORMATS

    parser = subparsers.add_parser(
        "export",
        description="Write the layouts of a program for another tool. Weights go by the names of their checkpoint "
        "where FILE.weights.json lies beside the program.",
    )
    add_file(parser)
    parser.add_argument(
        "--as",
        dest="to",
        choices=FORMATS,
        required=True,
        help="jax: PartitionSpecs by name, and lines to paste; dtensor: placements, and a plan for parallelize_module; "
        "hf-tp-plan, vllm: the nearest setting of transformers or of vLLM, with what it costs on standard error; "
        "shardy: MLIR; model-explorer: a graph as JSON",
    )
    add_choice(parser)
    add_sizes(parser)
    add_output(parser, "OUT")


def execute(args: argparse.Namespace) -> int:
    """Writes the export; says of an engine's setting how far it is from the program."""
    import sys

    from shardwright.cli.output import map_beside, read_program, write_output
    from shardwright.compiling.compile_program import load, load_stages
    from shardwright.exporting.export import export
    from shardwright.ir.diagnostics import located

    source = read_program(args.file)
    with located(source):
        given = source, args.mesh, args.dim
        program, stages = load_stages(*given) if args.to == "vllm" else (load(*given), None)
        exported = export(
            program,
            args.to,
            weights=map_beside(args.file),
            stages=stages,
            **choice_of(args),
        )
    write_output(args.output, exported.text)
    if exported.nearest is not None:
        print(f"{source.name}: note: {exported.nearest}", file=sys.stderr)
    return 0
