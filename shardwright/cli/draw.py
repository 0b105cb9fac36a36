"""`shardwright draw`: a picture of the sharded graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import add_file, add_output, add_sizes, one_of

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers
    from shardwright.ir.diagnostics import Source
    from shardwright.ir.program import Program

FORMATS = ("svg", "png", "pdf", "dot", "html")


def add_parser(subparsers: Subparsers) -> None:
    """FILE -o OUT.{svg,png,pdf,dot,html} [--func NAME] [--passes 'a,b{k=v}'] [--mesh] [--dim]."""
    parser = subparsers.add_parser(
        "draw", description="Draw a program: its values with their layouts, its operations, and the collectives."
    )
    add_file(parser)
    add_output(parser, f"OUT.{{{','.join(FORMATS)}}}", required=True, kind=one_of("picture", *FORMATS))
    parser.add_argument("--func", metavar="NAME", help="draw this function alone")
    parser.add_argument(
        "--passes",
        metavar="'a,b{k=v}'",
        help="run these passes in place of the compiler's; '' draws the program as it is written",
    )
    add_sizes(parser)


def execute(args: argparse.Namespace) -> int:
    """Draws the program with every layout chosen and every movement a node, unless `--passes` says otherwise."""
    from pathlib import Path

    from shardwright.backends.graph import render, to_dot
    from shardwright.cli.output import read_program, write_output
    from shardwright.ir.diagnostics import located

    source = read_program(args.file)
    program = load_program(args, source)
    with located(source):
        dot = to_dot(program, source=source, func=args.func)
    write_output(args.output, render(dot, Path(args.output).suffix.removeprefix(".")))
    return 0


def load_program(args: argparse.Namespace, source: Source) -> Program:
    """The program of FILE after the passes that were asked for, or else the compiler's."""
    from shardwright.compiling import explicit, load
    from shardwright.ir.diagnostics import Source as SourceText
    from shardwright.ir.diagnostics import located

    with located(source):
        program = load(source, args.mesh, args.dim)
    if args.passes is None:
        with located(source):
            return explicit(program)
    if not args.passes.strip():
        return program
    from shardwright.passes.pipelines import parse_pipeline, run_passes

    with located(SourceText("--passes", args.passes)):
        passes = parse_pipeline(args.passes)
    with located(source):
        return run_passes(program, passes)
