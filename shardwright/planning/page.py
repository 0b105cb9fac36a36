"""The page of a plan: how the model is served, what each phase takes, and what comes next; the same as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from shardwright.cost.movements.movement import duration_text
from shardwright.ir.text.table import bytes_text, counted, text_table
from shardwright.models.description import positions_of
from shardwright.planning.serving import ServingChoice, ServingDemand, ServingPlan, limit
from shardwright.prediction.models import beyond_positions

if TYPE_CHECKING:
    from shardwright.ir.types import TensorType


def as_json(made: ServingPlan, text: str) -> dict[str, Any]:
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


def _served_json(served: ServingChoice) -> dict[str, Any]:
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


def _phase_json(served: ServingChoice, phase: str, batch: int) -> dict[str, Any]:

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


def page(made: ServingPlan, written: str | None = None, chip: str | None = None) -> str:
    """The page as text. It ends with the command that prices the program where one was `written`, for the chip as it
    was named."""
    best, demand = made.best, made.best.demand
    memory, room = best.costs["decode"].memory, demand.chip.memory_bytes
    peak = max(best.found.costs, key=lambda cost: cost.memory.peak)
    lines = [
        f"{demand.model.name} on {demand.n_chips} {demand.chip.name}, mesh {best.mesh}, {demand.weights} weights;"
        f" prompts of {counted(demand.prompt, 'token')}, {counted(demand.output, 'new one')}",
        "",
        *_figures(
            ("tokens per second", f"{best.tokens_per_s:.4g} in all, {best.tokens_per_s / demand.n_chips:.4g} a chip"),
            (
                "first token",
                f"{duration_text(best.ttft_s)}{_asked(demand.ttft_s)}, {counted(best.prompts, 'prompt')} a prefill",
            ),
            (
                "each further",
                f"{duration_text(best.tpot_s)}{_asked(demand.tpot_s)}, {counted(best.batch, 'sequence')} a step",
            ),
            (
                "memory",
                f"{bytes_text(peak.memory.peak)} of {bytes_text(room)} a chip in {peak.func}: weights"
                f" {bytes_text(memory.weights)}, caches {bytes_text(memory.state)},"
                f" values {bytes_text(peak.memory.activations)}",
            ),
            ("what limits", _BINDING.get(made.binding, f"{made.binding} in decode")),
            ("positions", _beyond(demand)),
            ("expected error", best.costs["decode"].error_in_words()),
        ),
        "",
        *text_table(("stored", "type", "in words"), [_row(*each) for each in best.kept("weights")], "lll"),
        *[line for phase in ("prefill", "decode") for line in _phase_lines(best, phase)],
    ]
    if made.next_best is not None:
        other = made.next_best
        lines += [
            "",
            f"next best: mesh {other.mesh}, {counted(other.batch, 'sequence')}, {counted(other.prompts, 'prompt')} a"
            f" prefill: {other.tokens_per_s:.4g} tokens/s, first token {duration_text(other.ttft_s)}, each further"
            f" {duration_text(other.tpot_s)}",
        ]
    if written and written != "-":
        lines += ["", f"program in {written}: `shardwright cost {written} --chip {chip or demand.chip.name}`"]
    return "\n".join(lines)


_BINDING = {
    "memory": "memory: more sequences do not fit",
    "memory-bandwidth": "reading memory in decode",
    "ttft": "time to first token: more at a time take longer than asked for",
    "tpot": "time per token: more sequences take longer than asked for",
    "batch": "the sequences were given",
}


def _beyond(demand: ServingDemand) -> str:
    """The positions of a sequence where they are more than the model's config has; nothing elsewhere."""
    needed = positions_of(demand.prompt, demand.output)
    return f"{needed}, {words}" if (words := beyond_positions(demand.model.model, needed)) else ""


def _figures(*rows: tuple[str, str]) -> Iterator[str]:
    width = max(len(name) for name, _ in rows)
    yield from (f"{name:<{width}}  {said}" for name, said in rows if said)


def _phase_lines(served: ServingChoice, phase: str) -> Iterator[str]:
    """A phase's time and where it goes, the layouts of its products, and what crosses the network."""

    cost = served.costs[phase]
    bound, share = limit(cost)
    least = served.bounds[phase]
    proof = f"at least {duration_text(least)}" if least else "no bound found in the time"
    proof = "proved least for these weights" if least >= 0.999 * cost.time_s else proof
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


def _asked(seconds: float | None) -> str:

    return "" if seconds is None else f" of {duration_text(seconds)}"
