"""`shardwright search`: what a program leaves open, filled so that it takes the least time, with a proof."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.cli.options import (
    add_chip,
    add_choice,
    add_json,
    add_output,
    add_sizes,
    chip_and_constants,
    json_apart,
    number,
    place_of,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from shardwright.cli.options import Subparsers
    from shardwright.cost.integer_program.problem import Problem
    from shardwright.cost.integer_program.solve import Solution
    from shardwright.cost.programs.program_cost import Cost
    from shardwright.ir.program import Program
    from shardwright.searching.rewriting import RewriteSearchResult, TriedRewrite

DEFAULT_SECONDS = 60.0
_LEAST_TO_EXPLAIN = 10.0
"""Seconds for the next best, where twice the search's time is less."""


def add_parser(subparsers: Subparsers) -> None:
    """FILE --chip NAME, or --problem FILE.json; or --diff A B; [--minimize] [--explain] [-o] [--json]."""
    parser = subparsers.add_parser(
        "search",
        description="Fill what a program leaves open so that its predicted time is least under a chip's memory, with a "
        "proof.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("file", metavar="FILE", nargs="?", help="a .shard program; - reads standard input")
    what.add_argument(
        "--problem", metavar="FILE.json", help="a problem of nodes and edges in the IOPDDL benchmark's JSON"
    )
    what.add_argument("--diff", metavar="FILE", nargs=2, help="what two programs cost, beside each other")
    add_chip(parser, datasheet=True)
    add_choice(parser, chip=False)
    parser.add_argument(
        "--minimize",
        choices=("latency", "cost"),
        default="latency",
        help="the seconds of all functions, or the chip-seconds per token (default: latency)",
    )
    parser.add_argument(
        "--mesh-shape",
        choices=("given", "search"),
        default="given",
        help="search: the sizes of the mesh's axes are chosen too, for as many chips (default: given)",
    )
    parser.add_argument(
        "--rewrite",
        metavar="auto|'a,b{k=v}'",
        action="append",
        default=[],
        help="also search the program after these passes, and take what is best; may be given more than once. auto: "
        "after each way to pack projections, and with loops in place of collectives, where it is faster",
    )
    parser.add_argument(
        "--explain", action="store_true", help="print why each layout was chosen, and the next best, on standard error"
    )
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=number(0.0),
        default=DEFAULT_SECONDS,
        help=f"stop with the best found so far, and how far it may be from the least (default: {DEFAULT_SECONDS:g})",
    )
    add_sizes(parser)
    add_output(parser, "OUT")
    add_json(parser)
    parser.check(lambda args: "search minimises time; check, opt and compile take --objective bytes"
                 if args.objective == "bytes" else None)  # fmt: skip
    parser.check(lambda args: "--problem takes no --chip" if args.problem and args.chip else None)
    parser.check(lambda args: "--explain needs FILE" if args.explain and not args.file else None)
    parser.check(json_apart())


def execute(args: argparse.Namespace) -> int:
    """Print what was found and what is proved of it, or one JSON object with `--json`."""
    from shardwright.cli.output import expect_place

    expect_place(args.output)
    if args.problem:
        return _solve_problem(args)
    return _compare(args) if args.diff else _search_program(args)


# ---------------------------------------------------------------- FILE


def _search_program(args: argparse.Namespace) -> int:
    """The filled program on standard output or in OUT; what was found on standard error, or output where free."""
    import sys
    from dataclasses import replace

    from shardwright.cli.output import print_json, read_program, write_output
    from shardwright.compiling.compile_program import load, print_program
    from shardwright.cost.hardware.constants import DATASHEET
    from shardwright.ir.diagnostics import located
    from shardwright.models.weight_map import map_path
    from shardwright.searching.next_best import explain
    from shardwright.searching.rewriting import search_rewrites

    source = read_program(args.file)

    def loaded(mesh: Mapping[str, int]) -> Program:
        return load(source, {**args.mesh, **mesh}, args.dim)

    with located(source):
        wanted = place_of(args).wanted(loaded({}))
        objective = replace(wanted, constants=DATASHEET) if args.datasheet else wanted
        searched = search_rewrites(
            loaded,
            args.rewrite,
            objective,
            args.time_limit,
            args.minimize,
            shapes=args.mesh_shape == "search",
        )
        found = searched.best
        seconds = min(args.time_limit, max(_LEAST_TO_EXPLAIN, 2 * found.seconds))
        lines = explain(searched.program, place_of(args), seconds, found) if args.explain else []
    if lines:
        print("\n".join(lines), file=sys.stderr)
    text = print_program(found.program)
    if args.output:
        write_output(args.output, text)
        beside = map_path(args.file)  # the mapping of its weights goes with it
        if args.file != "-" and args.output != "-" and beside.is_file() and beside != map_path(args.output):
            write_output(str(map_path(args.output)), beside.read_text(encoding="utf-8"))
    if args.json:
        print_json(_found_json(searched, text))
    else:
        print(_found_text(searched), file=sys.stdout if args.output not in (None, "-") else sys.stderr)
        if not args.output:
            write_output(None, text)
    return 0


def _found_json(searched: RewriteSearchResult, text: str) -> dict[str, Any]:
    found = searched.best
    return {
        "status": found.status,
        "objective_s": found.objective_s,
        "bound_s": found.bound_s,
        "expected_error": found.costs[0].expected_error,
        "gap": found.gap,
        "solve_s": found.seconds,
        "program": text,
        "counted_s": found.model_s,
        "rewrite": searched.rewrite or None,
        "tried": [
            {
                "rewrite": each.rewrite or None,
                "status": each.found.status
                if each.found
                else str(each.error.diagnostics[0].code if each.error else ""),
                "objective_s": each.found.objective_s if each.found else None,
                "bound_s": each.found.bound_s if each.found else None,
            }
            for each in searched.tried
        ],
        "chip_seconds_per_token": found.chip_seconds_per_token,
        "mesh": dict(found.program.mesh),
        "peak_bytes_per_chip": found.peak,
        "memory_bytes_per_chip": _finite(found.costs[0].chip.memory_bytes),
        "functions": [
            {
                "name": cost.func,
                "calls": found.objective.count(cost.func),
                "time_s": cost.time_s,
                "bound_s": bound,
                "peak_bytes_per_chip": cost.memory.peak,
            }
            for cost, bound in zip(found.costs, found.bounds_s, strict=True)
        ],
    }


def _found_text(searched: RewriteSearchResult) -> str:
    if any(each.found is None for each in searched.tried):
        first, *lines = searched.best.in_words("not proved, since a rewrite was not searched to its end").split("\n")
    else:
        first, *lines = searched.best.in_words().split("\n")
    made = [first, *lines[:2]]
    if searched.rewrite:
        made.append(f"after {searched.rewrite}")
    if len(searched.tried) > 1:
        made += [f"  {_tried_text(each)}" for each in searched.tried]
    return "\n".join(made + lines[2:])


def _tried_text(tried: TriedRewrite) -> str:
    from shardwright.cost.movements.movement import duration_text

    name = tried.rewrite or "as it is"
    if tried.found is None:
        return f"{name}: {tried.error.diagnostics[0].message if tried.error else 'nothing'}"
    proof = "proved least" if tried.found.status == "optimal" else f"at least {duration_text(tried.found.bound_s)}"
    return f"{name}: {duration_text(tried.found.objective_s)}, {proof}"


# ---------------------------------------------------------------- --diff


def _compare(args: argparse.Namespace) -> int:
    """Two programs' kernels beside each other, those of one name in one line."""
    from shardwright.cli.output import load_program, print_json, read_program
    from shardwright.cost.programs.program_cost import cost_of
    from shardwright.ir.diagnostics import located

    args.passes = None
    costs: list[dict[str, Cost]] = []
    for file in args.diff:
        source = read_program(file)
        program = load_program(args, source)
        with located(source):
            chip, constants = chip_and_constants(args, program)
            costs.append({func.name: cost_of(program, func, chip, constants) for func in program.funcs})
    rows = _difference(*costs)
    if args.json:
        print_json(
            {
                "a": {"time_s": sum(cost.time_s for cost in costs[0].values())},
                "b": {"time_s": sum(cost.time_s for cost in costs[1].values())},
                "kernels": [
                    {"func": func, "name": name, "operation": operation, "a_s": a, "b_s": b}
                    for func, name, operation, a, b in rows
                ],
            }
        )
    else:
        print(_difference_text(args.diff, costs, rows))
    return 0


def _difference(
    first: dict[str, Cost], second: dict[str, Cost]
) -> list[tuple[str, str, str, float | None, float | None]]:
    """For each kernel the function, its value, its operation, and its seconds in either program (None: not there)."""
    made: dict[tuple[str, str, str], list[float | None]] = {}
    for side, costs in enumerate((first, second)):
        for func, cost in costs.items():
            for kernel in cost.kernels:
                entry = made.setdefault((func, kernel.work.name, kernel.work.operation), [None, None])
                entry[side] = (entry[side] or 0.0) + kernel.total_s
    return [(*key, a, b) for key, (a, b) in made.items() if a != b]


def _difference_text(
    files: Sequence[str],
    costs: Sequence[dict[str, Cost]],
    rows: Sequence[tuple[str, str, str, float | None, float | None]],
) -> str:
    from shardwright.cost.movements.movement import duration_text
    from shardwright.ir.text.table import text_table

    def shown(seconds: float | None) -> str:
        return "" if seconds is None else duration_text(seconds)

    def more(a: float, b: float) -> str:
        return f"{'-' if b < a else '+'}{duration_text(abs(b - a))}"

    ordered = sorted(rows, key=lambda row: -abs((row[4] or 0.0) - (row[3] or 0.0)))
    lines = [
        (func, name, operation, shown(a), shown(b), more(a or 0.0, b or 0.0)) for func, name, operation, a, b in ordered
    ]
    a, b = (sum(cost.time_s for cost in each.values()) for each in costs)
    total = ("", "", "all", duration_text(a), duration_text(b), more(a, b))
    table = text_table(("function", "value", "operation", *files, "difference"), [*lines, total], "lllrrr")
    expected = {cost.error_in_words(): None for each in costs for cost in each.values() if cost.error_in_words()}
    return "\n".join([*table, *(f"expect {words}" for words in expected)])


# ---------------------------------------------------------------- --problem


def _solve_problem(args: argparse.Namespace) -> int:
    """The problem's best choice: a text, the JSON of the contract, and with `-o` the strategies as a JSON list."""
    import json
    import time

    from shardwright.cli.output import print_json, write_output
    from shardwright.cost.integer_program.highs import import_solver
    from shardwright.cost.integer_program.json_format import read_problem
    from shardwright.cost.integer_program.solve import solve

    import_solver()
    began = time.monotonic()
    problem = read_problem(args.problem)
    found = solve(problem, max(0.0, args.time_limit - (time.monotonic() - began)))
    if args.output and found.choice is not None:
        write_output(args.output, json.dumps(found.choice) + "\n")
    if args.json:
        print_json(solution_json(found))
    elif args.output != "-":
        print(_text(problem, found))
    return 0


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
    return int(value) if isinstance(value, int) or (value.is_integer() and abs(value) < 2**53) else value


def _number_text(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.15g}"


def _text(problem: Problem, found: Solution) -> str:
    import math

    size = f"nodes {len(problem)}, edges {len(problem.edges)}, columns {problem.columns}; {found.seconds:.2f} s"
    cost, bound = _number_text(found.cost), _number_text(found.bound)
    match found.status:
        case "optimal":
            answer = f"optimal: {cost}, proved least"
        case "feasible":
            proof = f"at most {100 * found.gap:.3g} % of it too much (bound {bound})"
            answer = f"feasible: {cost}, {proof}"
        case "infeasible":
            answer = "infeasible: no choice is allowed and fits the usage limit"
        case "unknown" if found.bound == math.inf:
            answer = "unknown: what fits costs 2^52 or more above the least of some row, which is not compared exactly"
        case _:
            answer = "unknown: the time ran out before a choice that fits was found; --time-limit gives more"
    return f"{answer}\n{size}"
