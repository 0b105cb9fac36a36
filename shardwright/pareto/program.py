"""The `.shard` program of a chosen configuration, with both functions of generation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from shardwright.cost.choosing.objective import Objective
from shardwright.cost.programs.program_cost import cost_of
from shardwright.ir.program import Program
from shardwright.ir.types import DType
from shardwright.models.forward import ProgramRequest, model_program
from shardwright.pareto.configurations import Configuration, Sweep, stores_alike
from shardwright.pareto.frontier import described
from shardwright.pareto.pricing import Point
from shardwright.pareto.store import identity_of
from shardwright.passes.base import Pass
from shardwright.passes.compiling.choosing import search
from shardwright.passes.pipelines import parse_pipeline, run_passes
from shardwright.passes.rings.loop_collectives import LoopCollectives
from shardwright.passes.transformations.gather_ahead import GatherAhead
from shardwright.prediction.generation import GenerationCost, generation_cost
from shardwright.prediction.programs import UNCHANGED, Weights, loaded, positions, wanted_program


@dataclass(frozen=True)
class ChosenProgram:
    """A program as `import` writes it, and what a generation by it takes under the chip's constants of the sweep, after
    the passes that its first lines name, with what its presets leave open chosen for the chip by time."""

    text: str
    cost: GenerationCost


def chosen_program(sweep: Sweep, chosen: Point, priced: Sequence[tuple[Configuration, Point]]) -> ChosenProgram:
    """The program with `prefill` and `decode`: `compile` and `generate` take it.

    A chosen generation has its two layouts. Else the chosen phase has its layout, and the other one the fastest layout
    among the points on the same mesh with the same batch, attention and weights that stores the weights alike, or the
    same layout where there is none. Raises where no layouts of the program fit.
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
    written, _ = model_program(where.model, request)
    passes = wanted_program(where, one.phase, one.batch, sweep.length(one.phase)).passes
    gathered = any(layout.startswith("wg") for layout in (decode, prefill))
    last = LoopCollectives() if one.looped else GatherAhead() if gathered else None
    lines = [f"# Chosen for {sweep.chip.name}: {described(chosen)}.", *_passes_in_words(where.weights, passes, last)]
    made = run_passes(loaded(written), parse_pipeline(passes))
    return ChosenProgram("\n".join(lines) + "\n\n" + written, _cost(sweep, made, last))


def _passes_in_words(weights: Weights, passes: str, last: Pass | None) -> Iterator[str]:
    """Lines that name the passes of a priced program, and the `last` one after layouts are chosen."""
    if isinstance(last, LoopCollectives):
        yield f"# Collectives are loops: opt --passes {last.name}, after all others."
    elif last is not None:
        yield f"# Weights are gathered a layer ahead: opt --passes {last.name}, after all others."
    if weights != "bf16":
        yield f"# Weights are stored in {weights}: shardwright opt FILE --passes {passes}"
        loading = f"shardwright generate CHECKPOINT --decode-layout FILE --weights {weights}"
        yield f"# shows them, and {loading} loads them so."
    elif passes != UNCHANGED:
        yield f"# Projections of one input are priced as one: shardwright opt FILE --passes {passes} packs them."


def _cost(sweep: Sweep, program: Program, last: Pass | None) -> GenerationCost:
    """The cost of a generation, with layouts chosen as all commands do, and the `last` pass after that."""
    chip, constants = sweep.chip, sweep.constants
    found = search(program, Objective(chip, constants)).program
    price = partial(cost_of, chip=chip, constants=constants)
    return generation_cost(found if last is None else last.run(found), price, sweep.generated)


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
