"""`shardwright compile`: a program that runs under another framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import (
    add_choice,
    add_file,
    add_json,
    add_micro_batches,
    add_output,
    add_sizes,
    add_target,
    choice_of,
    json_needs_output,
    place_of,
    warn,
)

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers
    from shardwright.explaining.reports import Explanation
    from shardwright.ir.program import Program


def add_parser(subparsers: Subparsers) -> None:
    """FILE [--to jax|torch] [-o OUT.py] [--edges global|digits] [--no-validate] [--target T] [--dim] [--json]."""
    parser = subparsers.add_parser(
        "compile",
        description="Compile a program to a Python module that stands alone. Before it is written, the compiled "
        "program runs in the simulator at reduced sizes against its unsharded meaning.",
    )
    add_file(parser)
    parser.add_argument(
        "--to",
        choices=("jax", "torch"),
        default="jax",
        help="the framework of the module (default: jax); torch: "
        "one chip, with the copies between memories that the program says",
    )
    parser.add_argument(
        "--edges",
        choices=("global", "digits"),
        default="global",
        help="global: functions take and return global arrays, strided ones by an exchange of blocks; digits: strided "
        "arrays have a dimension for each digit, and nothing is exchanged (default: global)",
    )
    parser.add_argument("--no-validate", dest="validate", action="store_false", help="write without that proof")
    add_target(parser, "compile the module also with the target's own compiler, and say what became of it")
    add_choice(parser)
    add_sizes(parser)
    add_micro_batches(parser)
    add_output(parser, "OUT.py")
    add_json(parser)
    parser.check(json_needs_output)
    parser.check(_jax_alone)


def _jax_alone(args: argparse.Namespace) -> str | None:
    """PyTorch modules have neither digits nor targets."""
    if args.to == "torch" and (args.edges != "global" or args.target is not None):
        return "--to torch goes with neither --edges digits nor --target: these are of JAX modules"
    return None


def execute(args: argparse.Namespace) -> int:
    """Writes the module, once it has proved itself; where it cannot, that is said, and why."""
    import sys

    from shardwright.cli.output import map_beside, print_json, read_program, write_output
    from shardwright.compiling.compile_program import compile_program, load
    from shardwright.ir.diagnostics import located

    source = read_program(args.file)
    with located(source):
        compiled = compile_program(
            load(source, args.mesh, args.dim, micro_batches=args.micro_batches, place=place_of(args)),
            validate=args.validate,
            edges=args.edges,
            target=args.target,
            **choice_of(args),
            to=args.to,
            weights=map_beside(args.file),
        )
    warn(compiled.layouts)
    if compiled.not_loaded is not None:
        print(f"note: the module has no load_weights: {compiled.not_loaded}", file=sys.stderr)
    explained = None if args.target is None else _explained(args, compiled.program)
    write_output(args.output, compiled.text)
    proof = compiled.validation
    if proof is not None and proof.skipped:
        print(
            f"{source.name}: warning: {proof} [not-validated]\nnote: with smaller sizes it can be: --dim",
            file=sys.stderr,
        )
    if args.json:
        print_json(
            {
                "output": args.output,
                "functions": [func.name for func in compiled.program.funcs],
                "validated": proof is not None and not proof.skipped,
                "largest_relative_difference": proof.largest_difference if proof else None,
                "seconds": proof.seconds if proof else None,
                "placement": compiled.layouts.as_json() if compiled.layouts else None,
                **({"target": explained.as_json()} if explained else {}),
            }
        )
    return 0


def _explained(args: argparse.Namespace, program: Program) -> Explanation:
    """The report of what the target's compiler made of the program, told on standard error: in short, and where it does
    other than what is written. Raises a `DiagnosticError` where it refuses a function."""
    import sys

    from shardwright.explaining.explain import explain_program

    explained = explain_program(
        program, args.target, args.file, time_limit_s=args.time_limit, in_digits=args.edges == "digits"
    )
    for func in explained.functions:
        print(func.as_text(explained.target), file=sys.stderr)
    explained.refuse()
    return explained
