"""The `.shard` program of a chosen configuration, with both functions of generation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.ir.types import DType
from shardwright.models.forward import ProgramRequest, model_program
from shardwright.pareto.configurations import Configuration, Sweep, stores_alike
from shardwright.pareto.frontier import described
from shardwright.pareto.pricing import Point
from shardwright.pareto.store import identity_of
from shardwright.prediction.programs import UNCHANGED, positions, wanted_program


def chosen_program(sweep: Sweep, chosen: Point, priced: Sequence[tuple[Configuration, Point]]) -> str:
    """The program with `prefill` and `decode`, as `import` writes it: `compile` and `generate` take it.

    A chosen generation has its two layouts. Else the chosen phase has its layout, and the other one the fastest layout
    among the points on the same mesh with the same batch, attention and weights that stores the weights alike, or the
    same layout where there is none.
    """
    phase = "decode" if chosen.phase == "generation" else chosen.phase
    wanted = replace(chosen, phase=phase, prefill_layout="")
    one = next(one for one, point in priced if identity_of(point) == identity_of(wanted))
    where = one.deployment
    if chosen.phase == "generation":
        decode, prefill = where.layout, chosen.prefill_layout
    else:
        other = _other_layout(sweep, one, chosen, [point for _, point in priced])
        decode, prefill = (where.layout, other) if phase == "decode" else (other, where.layout)
    cache = positions(where, one.batch, sweep.context)
    request = ProgramRequest(
        decode,
        where.mesh,
        one.batch,
        sweep.prompt,
        DType.BF16,
        where.attention,
        cache,
        prefill,
        experts=where.experts,
        expert_capacity=where.expert_capacity,
    )
    lines = [f"# Chosen for {sweep.chip.name}: {described(chosen)}."]
    if not one.looped and any(layout.startswith("wg") for layout in (decode, prefill)):
        lines.append("# Weights are gathered a layer ahead: opt --passes gather-ahead, after all others.")
    passes = wanted_program(where, one.phase, one.batch, sweep.length(one.phase)).passes
    if where.weights != "bf16":
        lines.append(f"# Weights are stored in {where.weights}: shardwright opt FILE --passes {passes}")
        loading = f"shardwright generate CHECKPOINT --decode-layout FILE --weights {where.weights}"
        lines.append(f"# shows them, and {loading} loads them so.")
    elif passes != UNCHANGED:
        lines.append(
            f"# Projections of one input are priced as one: shardwright opt FILE --passes {passes} packs them."
        )
    return "\n".join(lines) + "\n\n" + model_program(where.model, request)[0]


def _other_layout(sweep: Sweep, one: Configuration, chosen: Point, points: Sequence[Point]) -> str:
    names = ("mesh", "attention", "weights", "batch")
    others = [
        point
        for point in points
        if point.phase != chosen.phase
        and point.fits
        and all(getattr(point, name) == getattr(chosen, name) for name in names)
        and stores_alike(sweep, one, point.layout)
    ]
    return min(others, key=lambda point: point.latency_s).layout if others else chosen.layout
