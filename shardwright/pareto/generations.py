"""Whole generations: a prefill and the steps of decode after it, in layouts of their own on the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.cost.programs.program_cost import mfu
from shardwright.models.description import decode_steps, positions_of
from shardwright.pareto.configurations import Configuration, Sweep, stores_alike
from shardwright.pareto.pricing import Point, identity
from shardwright.prediction.models import active_parameters

_SHARED = ("mesh", "attention", "weights", "batch", "looped")
"""What prefill and decode of one program have in common, beside how weights are stored."""


def generations(sweep: Sweep, priced: Sequence[tuple[Configuration, Point]]) -> list[Point]:
    """For each point of decode the generation that it belongs to, with the fastest prefill that fits beside it.

    Prefill reads the weights as decode stores them, and fills the cache that decode reads. Its latency and that of all
    the steps of decode add up, one for each token but the first, which comes out of prefill; a step is priced with the
    cache as full as in the middle. Tokens are those put out; MFU counts all that are read. What has no prefill beside
    it has no price.
    """
    prefills: dict[tuple[object, ...], list[Point]] = {}
    for _, point in priced:
        if point.phase == "prefill":
            prefills.setdefault(_shared(point), []).append(point)
    return [
        _generation(sweep, one, point, prefills.get(_shared(point), []))
        for one, point in priced
        if point.phase == "decode"
    ]


def _shared(point: Point) -> tuple[object, ...]:
    return tuple(getattr(point, name) for name in _SHARED)


def _generation(sweep: Sweep, one: Configuration, decode: Point, prefills: Sequence[Point]) -> Point:
    if decode.trouble:
        return replace(decode, phase="generation")
    # The fastest of those that fit; where none does, of those that miss it by least.
    ranked = sorted((p for p in prefills if not p.trouble), key=lambda p: (p.too_many_bytes, p.latency_s))
    prefill = next((p for p in ranked if stores_alike(sweep, one, p.layout)), None)
    if prefill is None:
        trouble = "no layout of prefill in the sweep stores the weights as decode does"
        return replace(identity(one), phase="generation", trouble=trouble)
    time_s = prefill.latency_s + decode_steps(sweep.generated) * decode.latency_s
    tokens = decode.batch * positions_of(sweep.prompt, sweep.generated)
    return replace(
        decode,
        phase="generation",
        prefill_layout=prefill.layout,
        latency_s=time_s,
        chip_seconds_per_token=decode.chips * time_s / (decode.batch * sweep.generated),
        mfu=mfu(sweep.chip, decode.chips, active_parameters(sweep.model), tokens, time_s),
        activation_bytes=max(decode.activation_bytes, prefill.activation_bytes),
        too_many_bytes=max(decode.too_many_bytes, prefill.too_many_bytes),
    )
