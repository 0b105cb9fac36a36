"""`shardwright fit`: the fewest chips, the largest batch and the longest context that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.cli.options import add_attention, add_chip, add_experts, add_json, add_weights, chip_of, positive

if TYPE_CHECKING:
    import argparse

    from shardwright.cli.options import Subparsers


def add_parser(subparsers: Subparsers) -> None:
    """MODEL --chip NAME [--chips N] [--batch N] [--context N] [--layout NAME] [--attention] [--weights]
    [--experts] [--json]."""
    parser = subparsers.add_parser(
        "fit", description="The fewest chips that hold a model in decode, and the most sequences and positions there."
    )
    parser.add_argument("model", metavar="MODEL", help="a built-in model by name, a config.json, or a folder with one")
    add_chip(parser, required=True)
    parser.add_argument("--chips", metavar="N", type=positive, help="on this many chips rather than the fewest")
    parser.add_argument("--batch", metavar="N", type=positive, default=1, help="sequences (default: 1)")
    parser.add_argument(
        "--context", metavar="N", type=positive, default=2048, help="positions of a cache (default: 2048)"
    )
    parser.add_argument("--layout", metavar="NAME", help="a preset (default: ws2d on a torus, else megatron)")
    add_attention(parser.add_argument, "head", "head")
    add_weights(parser.add_argument)
    add_experts(parser, "routed")
    add_json(parser)


def execute(args: argparse.Namespace) -> int:
    """Print what fits, or one JSON object with `--json`."""
    from shardwright.ir.diagnostics import Source, located
    from shardwright.prediction.fitting import fitting
    from shardwright.prediction.models import model_of, preset_of

    chip = chip_of(args)
    layout = args.layout or preset_of(chip)
    with located(Source(args.model, "")):
        model = model_of(args.model)
        found = fitting(
            model,
            chip,
            layout,
            args.attention,
            args.weights,
            args.batch,
            args.context,
            args.chips,
            args.experts,
            args.expert_capacity,
        )
    mesh, memory = found.deployment.mesh, found.memory
    if args.json:
        from shardwright.cli.output import print_json

        print_json(
            {
                "model": model.name,
                "chip": chip.name,
                "n_chips": mesh.n_chips,
                "mesh": dict(mesh),
                "layout": layout,
                "fits": found.fits,
                "weight_bytes_per_chip": memory.weights,
                "kv_cache_bytes_per_chip": memory.state,
                "peak_bytes_per_chip": memory.peak,
                "memory_bytes_per_chip": chip.memory_bytes,
                "largest_batch": found.largest_batch,
                "longest_context": found.longest_context,
                "dropped": list(found.dropped),
                **({"beyond": found.beyond} if found.beyond else {}),
            }
        )
        return 0
    print(found)
    return 0
