"""`shardwright pareto`: cost against latency, and the cheapest configuration within a latency."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardwright.cli.options import (
    ATTENTION,
    add_chip,
    add_experts,
    add_json,
    add_output,
    chip_and_constants,
    number,
    one_of,
    positive,
)

if TYPE_CHECKING:
    from shardwright.cli.options import Subparsers
    from shardwright.pareto.configurations import Sweep
    from shardwright.pareto.pricing import Point
    from shardwright.pareto.program import ChosenProgram

_RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})")
_LAYOUTS = ("megatron", "ws1d", "ws2d", "wg-x", "wg-xy", "wg-xyz")


def add_parser(subparsers: Subparsers) -> None:
    """MODEL --chip NAME --chips A..B --batch A..B --weights int8,bf16 and what stands below."""
    parser = subparsers.add_parser(
        "pareto",
        description="Prices a model under every layout, number of chips, batch and weight format, and shows which of "
        "these are best in latency and in chip-seconds per token.",
    )
    parser.add_argument("model", metavar="MODEL", help="a built-in model by name, a config.json, or a folder with one")
    add_chip(parser, required=True, datasheet=True)
    parser.add_argument(
        "--chips", metavar="A..B", type=_span, default=(8, 256), help="numbers of chips that exist (default: 8..256)"
    )
    parser.add_argument(
        "--batch",
        metavar="A..B|A,B",
        type=_batches,
        default=_powers(1, 1024),
        help="sequences: powers of 2 in a range, or those listed (default: 1..1024)",
    )
    parser.add_argument(
        "--weights",
        metavar="F,F",
        type=_some("int8", "bf16", "f8e4m3"),
        default=("int8", "bf16"),
        help="int8,bf16 (the default), f8e4m3",
    )
    parser.add_argument(
        "--layout", metavar="NAMES", type=_some(*_LAYOUTS), default=_LAYOUTS, help="presets (default: all)"
    )
    parser.add_argument(
        "--attention",
        metavar="head,batch",
        type=_some(*ATTENTION),
        default=("head", "batch"),
        help="of head, batch and positions (default: head,batch)",
    )
    parser.add_argument(
        "--phase",
        choices=("prefill", "decode", "both", "generation"),
        default="both",
        help="generation: prefill and all steps of decode as one (default: both, each by itself)",
    )
    parser.add_argument("--prompt-len", metavar="N", type=positive, default=1984, help="tokens in (default: 1984)")
    parser.add_argument("--gen-len", metavar="N", type=positive, default=64, help="tokens out (default: 64)")
    parser.add_argument(
        "--latency-bound",
        metavar="S",
        type=number(0.0, 1e9),
        help="seconds of a decode step, of prefill with --phase prefill, of all with --phase generation: print the"
        " cheapest program within it",
    )
    parser.add_argument(
        "--every-mesh", action="store_true", help="every shape of mesh, not one for each number of chips"
    )
    add_experts(parser, "routed")
    parser.add_argument("--looped", action="store_true", help="also with collectives as loops")
    parser.add_argument("--jobs", metavar="N", type=positive, help="processes (default: one for each core)")
    add_output(parser, "OUT.{svg,png,html,csv}", kind=one_of("picture or table", "svg", "png", "html", "csv"))
    parser.add_argument(
        "--program", metavar="OUT.shard", type=one_of("program", "shard"), help="write the chosen program here"
    )
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    """Print the frontier of each phase, or one JSON object with `--json`; write OUT."""
    from shardwright.cli.interrupts import one_interrupt
    from shardwright.cli.output import expect_place
    from shardwright.ir.diagnostics import Source, located

    with one_interrupt():
        sweep = _sweep(args)
        for path in (args.output, args.program):
            expect_place(path)
        with located(Source(args.model, "")):
            return _swept(args, sweep)


def _swept(args: argparse.Namespace, sweep: Sweep) -> int:
    from shardwright.cli.progress import CountProgress
    from shardwright.pareto.frontier import cheapest, frontier
    from shardwright.pareto.sweeping import SweepInterrupted, sweep_points

    try:
        with CountProgress("pricing") as progress:
            swept = sweep_points(sweep, progress, args.jobs)
    except SweepInterrupted as stopped:
        print(
            f"interrupted: {stopped.done} of {stopped.total} configurations are priced and kept;"
            " the same command goes on from there",
            file=sys.stderr,
        )
        raise
    points = swept.by_phase
    best = {phase: frontier(some) for phase, some in points.items()}
    if not any(best.values()):
        cheapest([point for some in points.values() for point in some])
    chosen = program = None
    if args.latency_bound is not None or args.program:
        from shardwright.pareto.program import chosen_program

        chosen = cheapest(points[next(iter(points))], args.latency_bound)
        program = chosen_program(sweep, chosen, swept.priced)
    if args.output:
        _write(args.output, sweep.title, points, best)
    if args.program and program is not None:
        from shardwright.cli.output import write_output

        write_output(args.program, program.text)
    if args.json:
        from shardwright.cli.output import print_json

        print_json(_as_json(sweep, swept.known, points, best, chosen, program))
    else:
        from shardwright.pareto.table import as_text

        print(as_text(sweep, points, best))
        if chosen is not None and program is not None:
            print(f"\n{_choice_text(chosen, args.latency_bound)}")
            print(_program_text(program, sweep.generated))
            file = args.program
            print(f"\nwritten to {file}" if file else f"\n{program.text}", end="\n" if file else "")
    return 0


def _sweep(args: argparse.Namespace) -> Sweep:
    from shardwright.pareto.configurations import Sweep
    from shardwright.prediction.models import model_of

    chip, constants = chip_and_constants(args)
    return Sweep(
        model_of(args.model),
        chip,
        constants,
        args.chips,
        args.batch,
        args.weights,
        args.layout,
        args.attention,
        (args.phase,) if args.phase in {"decode", "prefill"} else ("decode", "prefill"),
        args.prompt_len,
        args.gen_len,
        args.every_mesh,
        args.looped,
        together=args.phase == "generation",
        experts=args.experts,
        expert_capacity=args.expert_capacity,
    )


def _write(path: str, title: str, points: dict[str, list[Point]], best: dict[str, list[Point]]) -> None:
    from shardwright.cli.output import write_output

    kind = path.rpartition(".")[2]
    every = [point for some in points.values() for point in some]
    marked = [point for some in best.values() for point in some]
    if kind == "csv":
        from shardwright.pareto.table import csv_text

        write_output(path, csv_text(every, marked))
    elif kind == "html":
        from shardwright.pareto.page import page

        write_output(path, page(title, every, marked))
    else:
        from shardwright.pareto.picture import picture

        write_output(path, picture(title, {phase: (points[phase], best[phase]) for phase in points}, kind))


# ---------------------------------------------------------------- what is printed


def _choice_text(chosen: Point, bound: float | None) -> str:
    from shardwright.cost.movements.movement import duration_text
    from shardwright.pareto.frontier import described, token, what

    within = "" if bound is None else f" within {duration_text(bound)} for {what(chosen.phase)}"
    return (
        f"cheapest{within}: {described(chosen)}\n"
        f"{duration_text(chosen.latency_s)}, {1e3 * chosen.chip_seconds_per_token:.4g} chip-ms a {token(chosen.phase)},"
        f" MFU {100 * chosen.mfu:.1f} %, {chosen.peak_bytes / 1e9:.3g} GB a chip"
    )


def _program_text(program: ChosenProgram, tokens: int) -> str:
    return f"the program, after the passes that it names: {program.cost.text(tokens)}"


def _as_json(
    sweep: Sweep, known: int, points: dict[str, list[Point]], best: dict[str, list[Point]], chosen: Point | None,
    program: ChosenProgram | None,
) -> dict[str, Any]:  # fmt: skip
    from shardwright.cost.hardware.expected_errors import expected_error
    from shardwright.pareto.table import row_of

    every = [point for some in points.values() for point in some]
    made: dict[str, Any] = {
        "model": sweep.model.name,
        "chip": sweep.chip.name,
        "prompt_len": sweep.prompt,
        "gen_len": sweep.generated,
        "configurations": len(every),
        "fitting": sum(point.fits for point in every),
        "from_cache": known,
        "expected_error": expected_error(sweep.chip, sweep.priced_by),
        "frontier": {phase: [row_of(point, some) for point in some] for phase, some in best.items()},
        "points": [row_of(point, best[phase]) for phase, some in points.items() for point in some],
    }
    if sweep.beyond:
        made["beyond"] = sweep.beyond
    if chosen is not None and program is not None:
        made |= {"chosen": row_of(chosen, best[chosen.phase]), "program": program.text}
        made["generation"] = program.cost.as_json()
    return made


# ---------------------------------------------------------------- options


def _span(text: str) -> tuple[int, int]:
    """`8..256`, or one number."""
    found = _RANGE.fullmatch(text) or re.fullmatch(r"([0-9]{1,9})", text)
    ends = tuple(int(end) for end in found.groups()) if found else ()
    if not ends or not 1 <= ends[0] <= ends[-1]:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of whole numbers from 1 up, as in 8..256")
    return ends[0], ends[-1]


def _batches(text: str) -> tuple[int, ...]:
    """Powers of 2 in `1..1024`, or its ends where there are none; the numbers of `1,64,512`."""
    made: list[int] = []
    for part in text.split(","):
        try:
            least, most = _span(part)
        except argparse.ArgumentTypeError:
            wanted = "a range or a list of whole numbers from 1 up, as in 1..1024 or 1,64,512"
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}") from None
        made += [least] if least == most else _powers(least, most) or (least, most)
    return tuple(sorted(set(made)))


def _powers(least: int, most: int) -> tuple[int, ...]:
    return tuple(1 << i for i in range(most.bit_length()) if least <= 1 << i <= most)


def _some(*known: str) -> Callable[[str], tuple[str, ...]]:
    """A reader of a list of names out of `known`, each once."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(text.split(",")))
        for name in names:
            if name not in known:
                from shardwright.ir.diagnostics import did_you_mean

                near = did_you_mean(name, list(known))
                hint = f"; did you mean {near}?" if near else ""
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}{hint}")
        return names

    return read
