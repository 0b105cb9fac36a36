"""`shardwright search`: what a program leaves open, filled so that it takes the least time, with a proof."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.cli.options import add_json, add_output, number

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers
    from shardwright.cost.integer_program.problem import Problem
    from shardwright.cost.integer_program.solve import Solution

DEFAULT_SECONDS = 60.0


def add_parser(subparsers: Subparsers) -> None:
    """--problem FILE.json [--time-limit S] [-o OUT] [--json]."""
    parser = subparsers.add_parser("search", description="Choose the best layouts, with a proof that they are.")
    parser.add_argument(
        "--problem",
        metavar="FILE.json",
        required=True,
        help="a problem of nodes and edges in the JSON of the IOPDDL benchmark",
    )
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=number(0.0),
        default=DEFAULT_SECONDS,
        help=f"stop with the best found so far, and how far it may be from the least (default: {DEFAULT_SECONDS:g})",
    )
    add_output(parser, "OUT")
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    """Print what was found and what is proved of it, or one JSON object with `--json`."""
    return _solve_problem(args)


# ---------------------------------------------------------------- --problem


def _solve_problem(args: argparse.Namespace) -> int:
    """The problem's best choice: a text, the JSON of the contract, and with `-o` the strategies as a JSON list."""
    import json

    from shardwright.cli.output import print_json, write_output
    from shardwright.cost.integer_program.json_format import read_problem
    from shardwright.cost.integer_program.solve import solve

    import_solver()
    problem = read_problem(args.problem)
    found = solve(problem, args.time_limit)
    if args.output and found.choice is not None:
        write_output(args.output, json.dumps(found.choice) + "\n")
    if args.json:
        print_json(solution_json(found))
    elif args.output != "-":
        print(_text(problem, found))
    return 0


def import_solver() -> None:
    """Raises ModuleNotFoundError before any work is done where the solver's library is missing."""
    from importlib import import_module

    import_module("ortools.math_opt.python.mathopt")


def solution_json(found: Solution) -> dict[str, Any]:
    """The keys of the contract; null where a number is infinite, `choice` the strategy of each node."""
    return {
        "status": found.status,
        "objective": _finite(found.cost),
        "bound": _finite(found.bound),
        "gap": _finite(found.gap),
        "solve_s": found.seconds,
        "choice": None if found.choice is None else list(found.choice),
    }


def _finite(value: float) -> int | float | None:
    import math

    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _text(problem: Problem, found: Solution) -> str:
    size = f"nodes {len(problem)}, edges {len(problem.edges)}, columns {problem.columns}; {found.seconds:.2f} s"
    match found.status:
        case "optimal":
            answer = f"optimal: {found.cost:.15g}, proved least"
        case "feasible":
            answer = f"feasible: {found.cost:.15g}, of which at most {100 * found.gap:.3g} % too much (bound {found.bound:.15g})"
        case "infeasible":
            answer = "infeasible: no choice is allowed and fits the usage limit"
        case _:
            answer = "unknown: the time ran out before a choice that fits was found; --time-limit gives more"
    return f"{answer}\n{size}"
