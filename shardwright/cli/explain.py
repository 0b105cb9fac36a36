"""`shardwright explain`: what a compiler made of a program, collective by collective."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from shardwright.cli.options import add_json, add_sizes, add_target

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers
    from shardwright.explaining.reports import Explanation


def add_parser(subparsers: Subparsers) -> None:
    """FILE [--target T] [--func NAME] [--mesh] [--dim] [--time-limit S] [--json]."""
    parser = subparsers.add_parser(
        "explain",
        description="Each collective of a compiled program: the mesh axes that it goes along, how often it runs, the "
        "bytes that a chip receives, the least that its movement needs, the statement that asked for it; the memory of "
        "the program; and, where the compiler says them, the times of kernels.",
    )
    parser.add_argument(
        "file",
        metavar="FILE.shard|MODULE.py|DUMP.txt|FILE.py:FUNCTION",
        help="a program, a module that `compile` wrote, the text of an optimized HLO module, or a function of JAX, for "
        "which the least is found and the constraints that lead there are tried. Imports FILE.py",
    )
    parser.add_argument(
        "--args",
        dest="arguments",
        metavar="FILE.py:ARGS",
        help="of a function: what returns the tuple of example arguments (default: example_args of FILE.py)",
    )
    add_target(parser, "whose own compiler is asked (default: cpu); of a dump, which has been compiled, none")
    parser.add_argument("--func", metavar="NAME", help="this function alone")
    add_sizes(parser)
    add_json(parser)
    parser.check(_dumps_are_compiled)


def _dumps_are_compiled(args: argparse.Namespace) -> str | None:
    if ".py:" in args.file:
        return "--func and --dim are of programs" if args.func or args.dim else None
    if args.arguments:
        return "--args goes with FILE.py:FUNCTION"
    if args.file.endswith(".py"):
        return f"{args.file} has been compiled for its sizes: it takes no --dim" if args.dim else None
    if args.file.endswith(".shard"):
        return None
    given = next((option for option in ("target", "func", "dim") if getattr(args, option)), None)
    return (
        f"{args.file} is read as a dump, one function that has been compiled: it takes no --{given}" if given else None
    )


def execute(args: argparse.Namespace) -> int:
    """Prints a table for each function, and the faults of each. `--json` as section 9 of the contract has it
    (docs/reference/commands.md)."""
    from shardwright.cli.output import print_json
    from shardwright.explaining.explain import explain

    if ".py:" in args.file:
        return _execute_function(args)
    explained = explain(
        args.file,
        args.target,
        args.mesh,
        args.dim,
        functions=[args.func] if args.func else None,
        time_limit_s=args.time_limit,
    )
    if not args.json:
        print(explained)
    explained.refuse()
    if args.json:
        print_json(explained.as_json())
    return _accused(explained)


def _accused(explained: Explanation) -> int:
    """Prints the faults of each function; returns the exit status."""
    for func in explained.functions:
        for found in func.faults:
            where = found.source or func.name
            print(
                f"{where}: error: {func.name}: %{found.instruction} {found.reason} [wrong-partition]", file=sys.stderr
            )
    return int(any(func.faults for func in explained.functions))


def _execute_function(args: argparse.Namespace) -> int:
    """Prints what was made of a function of JAX, and the verdict; with `--json` both as one object. Where there can be
    no verdict, the error comes after what there is."""
    from shardwright.backends.targets.names import parse_target
    from shardwright.cli.output import print_json
    from shardwright.cli.progress import CountProgress
    from shardwright.explaining.advising import advise
    from shardwright.explaining.explain import explain
    from shardwright.ir.diagnostics import DiagnosticError
    from shardwright.tracing.places import untraced
    from shardwright.tracing.trace import from_file

    path, _, name = args.file.rpartition(":")
    function, examples = from_file(name, path, args.arguments)
    target = args.target or "cpu"
    try:
        explained = explain(function, target, args.mesh or None, args=examples, time_limit_s=args.time_limit)
    except DiagnosticError:
        raise
    except Exception as error:  # the user's function may raise anything
        raise untraced(function, name, error) from error
    explained.refuse()
    chip = parse_target(target).chip
    try:
        with CountProgress("compiling with constraints") as progress:
            named = chip.name if chip is not None else ""
            verdict = advise(function, examples, args.mesh or None, named, target=target, observe=progress)
    except DiagnosticError:
        if not args.json:
            print(explained)
        _accused(explained)
        raise
    if args.json:
        print_json({**explained.as_json(), "verdict": verdict.as_json()})
    else:
        print(f"{explained}\n\n{verdict}")
    return _accused(explained)
