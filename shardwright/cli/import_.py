"""`shardwright import`: a program from a Hugging Face checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from shardwright.cli.options import (
    add_attention,
    add_dtype,
    add_experts,
    add_json,
    add_output,
    add_pages,
    add_sizes,
    json_needs_output,
    positive,
)

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers

BATCH, LENGTH = 4, 32
"""Sequences and tokens of each, where nothing is said."""


def add_parser(subparsers: Subparsers) -> None:
    """CHECKPOINT --mesh --layout NAME -o OUT.shard [--batch B] [--length L] [--attention OVER] [--cache T
    [--prefill-layout NAME] [--phase prefill|decode] [--page-size S [--pages P]]] [--dtype] [--dim] [--json]."""
    from shardwright.ir.types import StoredFormat

    parser = subparsers.add_parser(
        "import",
        description="Write the forward pass of a Hugging Face checkpoint as a program with the given layout, or with "
        "--cache its prefill and decode. "
        "Its config.json is enough; `run --weights` loads the weights, by OUT.weights.json beside the program.",
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder with config.json, or that file")
    parser.add_argument(
        "--layout",
        metavar="NAME",
        required=True,
        help="the layout of weights and activations: megatron; ws1d or ws2d, weight-stationary over one dimension or "
        "two; wg-x, wg-xy or wg-xyz, weights stored as in ws2d and gathered; open, left to the compiler or to search; "
        "or PLAN.json, a tensor-parallel plan of transformers",
    )
    add_attention(parser.add_argument, None, "heads with --cache, else the compiler's choice")
    parser.add_argument(
        "--cache", type=positive, metavar="T", help="write prefill and decode with a KV cache of T positions"
    )
    parser.add_argument(
        "--prefill-layout", metavar="NAME", help="with --cache, the layout of prefill (default: that of decode)"
    )
    parser.add_argument("--phase", choices=("prefill", "decode"), help="with --cache, write this function alone")
    parser.add_argument("--batch", type=positive, metavar="B", help=f"sequences (default: {BATCH})")
    parser.add_argument("--length", type=positive, metavar="L", help=f"tokens of each (default: {LENGTH})")
    add_dtype(parser)
    parser.add_argument(
        "--cache-format",
        choices=get_args(StoredFormat),
        help="with --cache, quantize keys and values in it, a scale for each row",
    )
    add_pages(parser)
    add_experts(parser, "replicated")
    add_sizes(parser)
    add_output(parser, "OUT.shard")
    add_json(parser)
    parser.check(lambda args: None if args.mesh else "the following arguments are required: --mesh")
    parser.check(_only_batch_and_length)
    parser.check(_phases_need_a_cache)
    parser.check(lambda args: "--pages needs --page-size S" if args.pages and not args.page_size else None)
    parser.check(json_needs_output)


def _only_batch_and_length(args: argparse.Namespace) -> str | None:
    others = [name for name in args.dim if name not in {"B", "L"}]
    if others:
        return f"--dim {others[0]}: the checkpoint gives the sizes of all dimensions but B and L"
    for name, option in (("B", "batch"), ("L", "length")):
        if name in args.dim and getattr(args, option) is not None:
            return f"--dim {name} and --{option} both give the size of {name}"
    return None


def _phases_need_a_cache(args: argparse.Namespace) -> str | None:
    options = ("prefill_layout", "phase", "cache_format", "page_size")
    given = next((f"--{name.replace('_', '-')}" for name in options if getattr(args, name)), None)
    return f"{given} needs --cache T" if given and args.cache is None else None


def execute(args: argparse.Namespace) -> int:
    """Writes the program to OUT.shard and the mapping of its weights to OUT.weights.json, or the program to
    standard output alone. `--json`: `{"ok", "program", "weights", "architecture", "layout", "mesh", "dropped"}`,
    `dropped` being sentences about what the sizes did not let the layout split.
    """
    from shardwright.cli.output import print_json, write_output
    from shardwright.commands import import_checkpoint
    from shardwright.models.weight_map import map_path, to_json

    imported = import_checkpoint(
        args.checkpoint,
        args.layout,
        args.mesh,
        batch=args.batch or args.dim.get("B", BATCH),
        length=args.length or args.dim.get("L", LENGTH),
        dtype=args.dtype,
        attention=args.attention,
        cache=args.cache,
        prefill_layout=args.prefill_layout,
        phase=args.phase,
        experts=args.experts,
        expert_capacity=args.expert_capacity,
        cache_format=args.cache_format,
        page_size=args.page_size,
        pages=args.pages,
    )
    write_output(args.output, imported.text)
    if args.output in {None, "-"}:
        return 0
    beside = str(map_path(args.output))
    write_output(beside, to_json(imported.mapping))
    if args.json:
        print_json(
            {
                "ok": True,
                "program": args.output,
                "weights": beside,
                "architecture": imported.model.architecture,
                "layout": args.layout,
                "mesh": args.mesh,
                "dropped": list(imported.dropped),
            }
        )
    return 0
