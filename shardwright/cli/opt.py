"""`shardwright opt`: the program after some passes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import (
    add_choice,
    add_json,
    add_micro_batches,
    add_output,
    add_shardings,
    add_sizes,
    place_of,
    print_notes,
    stated_shardings,
    warn,
)

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """FILE [--shardings FILE.mlir] --passes 'a,b{k=v}' [--print-after-all] [--explain] [--timing] [--mesh] [--dim] [-o]
    [--json]."""
    parser = subparsers.add_parser(
        "opt",
        description="Run passes on a program and print the program that they leave, verified between passes. With "
        "--shardings its edges first get the types of a module in MLIR. Of a program with pipeline stages it is "
        "what these run.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--passes", metavar="'a,b{k=v}'", help="the passes in their order, with their options")
    what.add_argument("--list-passes", action="store_true", help="print every pass with its options, and end")
    parser.add_argument("file", metavar="FILE", nargs="?", help="a .shard program; - reads standard input")
    add_shardings(parser)
    parser.add_argument(
        "--print-after-all",
        action="store_true",
        help="print the program after each pass; with -o or --json on standard error",
    )
    parser.add_argument(
        "--explain", action="store_true", help="print why place chose each layout, and the next best, on standard error"
    )
    parser.add_argument("--timing", action="store_true", help="print the time that each pass took on standard error")
    add_choice(parser)
    add_sizes(parser)
    add_micro_batches(parser)
    add_output(parser, "OUT.shard")
    add_json(parser)
    parser.check(lambda args: None if args.list_passes or args.file else "the following arguments are required: FILE")
    parser.check(
        lambda args: (
            "FILE and --shardings would both read standard input" if args.file == args.shardings == "-" else None
        )
    )
    parser.check(
        lambda args: (
            None
            if args.passes is not None or args.list_passes or args.shardings or args.micro_batches > 1
            else "one of the arguments --passes --list-passes --shardings is required"
        )
    )


def execute(args: argparse.Namespace) -> int:
    """Prints the program after the passes, or after each of them."""
    import sys

    from shardwright.cli.output import passes_from, print_json, read_program, write_output
    from shardwright.compiling.compile_program import load, print_program
    from shardwright.ir.diagnostics import located
    from shardwright.passes.every_pass import PASSES
    from shardwright.passes.pipelines import (
        PassRecord,
        describe,
        options_from,
        proof_of,
        run_passes,
    )

    if args.list_passes:
        if args.json:
            print_json({"passes": [{"name": name, "description": describe(made)} for name, made in PASSES.items()]})
        else:
            print("\n".join(f"{name:<20} {describe(made)}" for name, made in PASSES.items()))
        return 0
    passes = passes_from(args)
    source = read_program(args.file)
    steps: list[dict[str, object]] = []
    traces: list[PassRecord] = []

    def observe(trace: PassRecord) -> None:
        step: dict[str, object] = {
            "pass": trace.applied.name,
            "seconds": trace.seconds,
            "program": print_program(trace.program),
        }
        traces.append(trace)
        steps.append(step | ({"placement": trace.proof.as_json()} if trace.proof else {}))

    shardings = stated_shardings(args)
    with located(source), options_from("--passes", args.passes or ""):
        program = load(source, args.mesh, args.dim, passes, micro_batches=args.micro_batches, place=place_of(args))
        if shardings is not None:
            from shardwright.tracing.demands import with_shardings

            program, notes = with_shardings(program, shardings)
            print_notes(shardings.name, notes)
        if args.explain:
            from shardwright.searching.next_best import explain

            print("\n".join(explain(program, place_of(args))), file=sys.stderr)
        program = run_passes(program, passes, observe)
    warn(proof_of(traces))
    text = print_program(program)
    if args.timing:
        for step in steps:
            print(f"{step['pass']:<20} {step['seconds']:.3f} s", file=sys.stderr)
    if args.print_after_all:
        after = "\n".join(f"# after {step['pass']}\n{step['program']}" for step in steps)
        if args.json or args.output not in {None, "-"}:
            print(after, end="", file=sys.stderr)
        else:
            text = after
    if args.output not in {None, "-"} or not args.json:
        write_output(args.output, text)
    if args.json:
        print_json({"program": text, "passes": steps})
    return 0
