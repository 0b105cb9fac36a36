"""`shardwright plan`: how to serve a model on chips, on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardwright.cli.options import add_json, number, positive

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from shardwright.cli.options import Subparsers
    from shardwright.ir.types import TensorType
    from shardwright.planning import Plan, Served

DEFAULT_SECONDS = 120.0


def add_parser(subparsers: Subparsers) -> None:
    """MODEL --chip NAME --chips N --prompt P --output G [--ttft S] [--tpot S] [--weights] [--batch] [-o] [--json]."""
    parser = subparsers.add_parser(
        "plan",
        description="How to serve a model with the most tokens a second: layouts searched for prefill and decode, how "
        "many sequences together, what they take, and what limits.",
    )
    parser.add_argument("model", metavar="MODEL", help="a built-in model by name, a config.json, or a folder with one")
    parser.add_argument("--chip", metavar="NAME", required=True, help="a chip by name, or the path of a chip file")
    parser.add_argument("--chips", metavar="N", required=True, type=positive, help="how many chips")
    parser.add_argument("--prompt", metavar="P", required=True, type=positive, help="tokens of a prompt")
    parser.add_argument("--output", metavar="G", required=True, type=positive, help="new tokens of each")
    parser.add_argument("--ttft", metavar="S", type=number(0.0), help="at most so many seconds to the first token")
    parser.add_argument("--tpot", metavar="S", type=number(0.0), help="at most so many seconds to each further token")
    parser.add_argument("--weights", choices=("bf16", "int8"), default="bf16", help="default: bf16")
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


def execute(args: argparse.Namespace) -> int:
    """Print the page, or one JSON object with `--json`; with `-o` write the program."""
    from shardwright.cli.cost import load_named_chip
    from shardwright.cli.output import print_json, write_output
    from shardwright.compiling import print_program
    from shardwright.ir.diagnostics import Source, located
    from shardwright.planning import plan

    chip = load_named_chip(args.chip)
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
        )
    text = print_program(made.best.found.program)
    if args.write:
        write_output(args.write, text)
    if args.json:
        print_json(_as_json(made, text))
    else:
        print(_page(made, args.write))
    return 0


# ---------------------------------------------------------------- JSON


def _as_json(made: Plan, text: str) -> dict[str, Any]:
    """The keys of the contract."""
    best = made.best
    return {
        "model": best.demand.model.name,
        "chip": best.demand.chip.name,
        **_served_json(best),
        "expected_error": made.expected_error,
        "binding": made.binding,
        "next_best": _served_json(made.next_best) if made.next_best else None,
        "program": text,
    }


def _served_json(served: Served) -> dict[str, Any]:
    return {
        "n_chips": served.demand.n_chips,
        "mesh": dict(served.mesh),
        "prefill": _phase_json(served, "prefill", served.prompts),
        "decode": _phase_json(served, "decode", served.batch),
        "batch": served.batch,
        "adopt_s": served.costs["adopt"].time_s,
        "ttft_s": served.ttft_s,
        "tpot_s": served.tpot_s,
        "tokens_per_s": served.tokens_per_s,
        "tokens_per_s_per_chip": served.tokens_per_s / served.demand.n_chips,
        "peak_bytes_per_chip": served.found.peak,
        "memory_bytes_per_chip": served.demand.chip.memory_bytes,
        "weights": [_layout_json(*row) for row in served.kept("weights")],
        "state": [_layout_json(*row) for row in served.kept("state")],
    }


def _layout_json(name: str, found: TensorType) -> dict[str, str]:
    return {"value": name, "type": str(found), "words": in_words(found)}


def _phase_json(served: Served, phase: str, batch: int) -> dict[str, Any]:
    from shardwright.planning import limit

    cost = served.costs[phase]
    return {
        "batch": batch,
        "time_s": cost.time_s,
        "bound_s": served.bounds[phase],
        "compute_s": cost.compute_s,
        "memory_s": cost.memory_s,
        "communication_s": cost.communication_s,
        "exposed_communication_s": cost.exposed_communication_s,
        "mfu": cost.mfu,
        "peak_bytes_per_chip": cost.memory.peak,
        "limited_by": limit(cost)[0],
        "traffic": [
            {"over": over, "bytes_received_per_chip": nbytes, "time_s": seconds}
            for over, (nbytes, seconds) in served.traffic(phase).items()
        ],
        "layouts": [_layout_json(*row) for row in served.products(phase)],
    }


# ---------------------------------------------------------------- the page


_NAMES = {
    "B": "sequences", "L": "tokens", "T": "positions", "E": "embedding", "F": "feedforward", "K": "heads of keys",
    "H": "heads", "G": "queries of a head", "D": "features of a head", "V": "vocabulary", "N": "layers", "X": "experts",
}  # fmt: skip


def in_words(found: TensorType) -> str:
    """A layout as one says it: `feedforward over x, sums over y`."""
    parts = [f"{_NAMES.get(dim[0], dim)} over {' '.join(found.split(dim))}" for dim in found.names if found.split(dim)]
    parts += [f"partial sums over {' '.join(found.partial_axes)}"] if found.partial else []
    return ", ".join(parts) or "whole on every chip"


def _page(made: Plan, written: str | None) -> str:
    from shardwright.cost.movements import duration_text
    from shardwright.ir.text_table import bytes_text, text_table

    best, demand = made.best, made.best.demand
    memory, room = best.costs["decode"].memory, demand.chip.memory_bytes
    peak = max(best.found.costs, key=lambda cost: cost.memory.peak)
    lines = [
        f"{demand.model.name} on {demand.n_chips} {demand.chip.name}, mesh {best.mesh}, {demand.weights} weights;"
        f" prompts of {demand.prompt} tokens, {demand.output} new ones",
        "",
        *_figures(
            ("tokens per second", f"{best.tokens_per_s:.4g} in all, {best.tokens_per_s / demand.n_chips:.4g} a chip"),
            (
                "first token",
                f"{duration_text(best.ttft_s)}{_asked(demand.ttft_s)}, {_count(best.prompts, 'prompt')} a prefill",
            ),
            (
                "each further",
                f"{duration_text(best.tpot_s)}{_asked(demand.tpot_s)}, {_count(best.batch, 'sequence')} a step",
            ),
            (
                "memory",
                f"{bytes_text(peak.memory.peak)} of {bytes_text(room)} a chip in {peak.func}: weights"
                f" {bytes_text(memory.weights)}, caches {bytes_text(memory.state)},"
                f" values {bytes_text(peak.memory.activations)}",
            ),
            ("what limits", _BINDING.get(made.binding, f"{made.binding} in decode")),
            ("expected error", _error_text(made)),
        ),
        "",
        *text_table(("stored", "type", "in words"), [_row(*each) for each in best.kept("weights")], "lll"),
        *[line for phase in ("prefill", "decode") for line in _phase_lines(best, phase)],
    ]
    if made.next_best is not None:
        other = made.next_best
        lines += [
            "",
            f"next best: mesh {other.mesh}, {_count(other.batch, 'sequence')}, {_count(other.prompts, 'prompt')} a"
            f" prefill: {other.tokens_per_s:.4g} tokens/s, first token {duration_text(other.ttft_s)}, each further"
            f" {duration_text(other.tpot_s)}",
        ]
    if written:
        lines += ["", f"program in {written}: `shardwright cost {written} --chip {demand.chip.name}`"]
    return "\n".join(lines)


_BINDING = {
    "memory": "memory: more sequences do not fit",
    "ttft": "time to first token: more at a time take longer than asked for",
    "tpot": "time per token: more sequences take longer than asked for",
    "batch": "the sequences were given",
}


def _figures(*rows: tuple[str, str]) -> Iterator[str]:
    width = max(len(name) for name, _ in rows)
    yield from (f"{name:<{width}}  {said}" for name, said in rows)


def _phase_lines(served: Served, phase: str) -> Iterator[str]:
    """A phase's time and where it goes, the layouts of its products, and what crosses the network."""
    from shardwright.cost.movements import duration_text
    from shardwright.ir.text_table import bytes_text, text_table
    from shardwright.planning import limit

    cost = served.costs[phase]
    bound, share = limit(cost)
    least = served.bounds[phase]
    proof = "proved least for these weights" if least >= 0.999 * cost.time_s else f"at least {duration_text(least)}"
    yield ""
    yield f"{phase}: {duration_text(cost.time_s)}, {proof}; {share:.0%} bound by {bound}; MFU {cost.mfu:.1%}"
    yield ""
    yield from text_table(("product", "type", "in words"), [_row(*each) for each in served.products(phase)], "lll")
    rows = [
        (over, bytes_text(nbytes), duration_text(seconds)) for over, (nbytes, seconds) in served.traffic(phase).items()
    ]
    if rows:
        yield ""
        yield from text_table(("over", "received a chip", "time"), rows, "lrr")


def _row(name: str, found: TensorType) -> tuple[str, str, str]:
    return name, str(found), in_words(found)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _asked(seconds: float | None) -> str:
    from shardwright.cost.movements import duration_text

    return "" if seconds is None else f" of {duration_text(seconds)}"


def _error_text(made: Plan) -> str:
    chip = made.best.demand.chip
    if chip.calibrated:
        return f"{made.expected_error:.0%} at most, as on the published tables that {chip.name} was not calibrated with"
    times = 1 + made.expected_error
    return f"measured times up to {times:g} times these: {chip.name} is priced by its datasheet"
