"""The `.shard` program of a chosen configuration, with both functions of generation."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.ir.types import DType
from shardwright.models.forward import Request, model_program
from shardwright.pareto.configurations import Configuration, Sweep, stores_alike
from shardwright.pareto.frontier import described
from shardwright.pareto.pricing import Point, identity, passes_of


def chosen_program(sweep: Sweep, chosen: Configuration, points: Sequence[Point]) -> str:
    """The program with `prefill` and `decode`, as `import` writes it: `compile` and `generate` take it.

    The chosen configuration's phase has its layout. The other phase has the fastest layout among the points on the
    same mesh with the same batch, attention and weights that stores the weights alike, the same layout where there is
    none.
    """
    where = chosen.deployment
    own = identity(chosen)
    names = ("mesh", "attention", "weights", "batch")
    others = [
        point
        for point in points
        if point.phase != chosen.phase
        and point.fits
        and all(getattr(point, name) == getattr(own, name) for name in names)
        and stores_alike(sweep, chosen, point.layout)
    ]
    other = min(others, key=lambda point: point.latency_s).layout if others else where.layout
    decode, prefill = (where.layout, other) if chosen.phase == "decode" else (other, where.layout)
    request = Request(
        decode, where.mesh, chosen.batch, sweep.prompt, DType.BF16, where.attention, sweep.context, prefill
    )
    lines = [f"# Chosen for {sweep.chip.name}: {described(own)}."]
    if where.weights == "int8":
        lines.append(f"# Weights are stored in int8: shardwright opt FILE --passes {passes_of(chosen)}")
        lines.append(
            "# shows them, and shardwright generate CHECKPOINT --decode-layout FILE --weights int8 loads them so."
        )
    return "\n".join(lines) + "\n\n" + model_program(where.model, request)[0]
