"""`shardwright trace`: a function of JAX, or a module of PyTorch, as a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import add_json, add_output, add_shardings, add_sizes, print_notes, stated_shardings

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """FILE.py:FUNCTION [--args FILE.py:ARGS] [--shardings FILE.mlir] [--mesh] -o OUT.shard [--json]."""
    parser = subparsers.add_parser(
        "trace",
        description="Write a function of JAX, or a module of PyTorch, as a program, and compare both on random inputs. "
        "Imports FILE.py.",
    )
    parser.add_argument(
        "function",
        metavar="FILE.py:FUNCTION",
        help="a callable of arrays and pytrees, or one without arguments that returns a torch.nn.Module",
    )
    parser.add_argument(
        "--args",
        dest="arguments",
        metavar="FILE.py:ARGS",
        help="what returns the tuple of example arguments (default: example_args of FILE.py)",
    )
    add_shardings(parser)
    add_sizes(parser)
    add_output(parser, "OUT.shard", required=True)
    add_json(parser)
    parser.check(
        lambda args: None if all(args.function.rpartition(":")) else "FILE.py:FUNCTION is as in model.py:forward"
    )
    parser.check(lambda args: "--dim: a traced program has its function's sizes" if args.dim else None)


def execute(args: argparse.Namespace) -> int:
    """Writes the program; prints what it was made of, as one JSON object with `--json`."""
    from shardwright.cli.output import print_json, write_output
    from shardwright.models.weight_map import map_path, to_json
    from shardwright.tracing.trace import from_file, trace

    path, _, name = args.function.rpartition(":")
    function, examples = from_file(name, path, args.arguments)
    shardings = stated_shardings(args)
    traced = trace(function, examples, mesh=args.mesh, name=name, shardings=shardings)
    traced.require_agreement()
    print_notes(shardings.name if shardings is not None else path, traced.notes)
    write_output(args.output, traced.text)
    if traced.paths:
        write_output(str(map_path(args.output)), to_json(traced.weight_map))
    if args.json:
        print_json(traced.as_json())
    else:
        operations = sum(traced.operations.values())
        print(f"{args.output}: {operations} operations, {len(traced.inputs)} inputs, {len(traced.results)} results")
        if traced.compared_at:
            sizes = " ".join(f"{dim}={size}" for dim, size in traced.compared_at.items())
            print(f"largest relative difference {traced.largest_relative_difference:.1e}, at {sizes}")
        elif traced.not_compared:
            print(f"not compared: {traced.not_compared}")
        else:
            where = ""
            if traced.at_examples:
                where = ", at the example's own arguments; at random ones it is larger"
            elif traced.at_smaller:
                where = ", at arguments drawn smaller; at others the function amplifies rounding"
            print(f"largest relative difference {traced.largest_relative_difference:.1e}{where}")
    return 0
