"""`shardwright plan`: how to serve a model on chips, on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import (
    add_chip,
    add_experts,
    add_json,
    add_weights,
    chip_of,
    json_apart,
    number,
    positive,
)

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers

DEFAULT_SECONDS = 120.0


def add_parser(subparsers: Subparsers) -> None:
    """MODEL --chip NAME --chips N --prompt P --output G [--ttft S] [--tpot S] [--weights] [--batch] [-o] [--json]."""
    parser = subparsers.add_parser(
        "plan",
        description="How to serve a model with the most tokens a second: layouts searched for prefill and decode, how "
        "many sequences together, what they take, and what limits.",
    )
    parser.add_argument("model", metavar="MODEL", help="a built-in model by name, a config.json, or a folder with one")
    add_chip(parser, required=True)
    parser.add_argument("--chips", metavar="N", required=True, type=positive, help="how many chips")
    parser.add_argument("--prompt", metavar="P", required=True, type=positive, help="tokens of a prompt")
    parser.add_argument("--output", metavar="G", required=True, type=positive, help="new tokens of each")
    parser.add_argument("--ttft", metavar="S", type=number(0.0), help="at most so many seconds to the first token")
    parser.add_argument("--tpot", metavar="S", type=number(0.0), help="at most so many seconds to each further token")
    add_weights(parser.add_argument)
    add_experts(parser, "routed")
    parser.add_argument("--batch", metavar="N", type=positive, help="sequences in decode (default: the best)")
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        type=number(0.0),
        default=DEFAULT_SECONDS,
        help=f"end each search early after about so long in all (default: {DEFAULT_SECONDS:g})",
    )
    parser.add_argument("-o", dest="write", metavar="PLAN.shard", help="write the program here")
    add_json(parser)
    parser.check(json_apart("write"))


def execute(args: argparse.Namespace) -> int:
    """Print the page, or one JSON object with `--json`; with `-o` write the program, and the mapping of its weights
    where checkpoints of the model are known."""
    import sys

    from shardwright.cli.output import expect_place, print_json, write_output
    from shardwright.compiling.compile_program import print_program
    from shardwright.ir.diagnostics import Source, located
    from shardwright.models.weight_map import map_path, to_json, weight_map
    from shardwright.planning import plan
    from shardwright.planning.page import as_json, page

    chip = chip_of(args)
    expect_place(args.write)
    with located(Source(args.model, "")):
        made = plan(
            args.model,
            chip,
            args.chips,
            args.prompt,
            args.output,
            ttft=args.ttft,
            tpot=args.tpot,
            weights=args.weights,
            batch=args.batch,
            seconds=args.time_limit,
            experts=args.experts,
            expert_capacity=args.expert_capacity,
        )
    text = print_program(made.best.found.program)
    if args.write:
        write_output(args.write, text)
        model = made.best.demand.model.model
        if args.write != "-" and model.has_checkpoints:
            write_output(str(map_path(args.write)), to_json(weight_map(model)))
    if args.json:
        print_json(as_json(made, text))
    else:
        print(page(made, args.write, args.chip), file=sys.stderr if args.write == "-" else sys.stdout)
    return 0
