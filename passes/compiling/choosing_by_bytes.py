"""Layouts with the fewest bytes received, with a proof."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from shardwright.cost.choosing.crowded_moves import CrowdedMoves
from shardwright.cost.choosing.layout_problem import PlacementOptions
from shardwright.cost.choosing.layout_solution import Effort, LayoutSolution
from shardwright.cost.choosing.limited_placement import MOST_ENTRIES, LimitedPlacement, PlacementProof
from shardwright.cost.choosing.program_problems import ProgramProblems
from shardwright.cost.choosing.work_limit import WorkLimit
from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.program import Program
from shardwright.passes.compiling.found import explicit_of
from shardwright.passes.compiling.order_branching import (
    Orders,
    PricedChoice,
    best_over_orders,
    in_cheaper_orders,
    moves_at_edges,
)
from shardwright.passes.compiling.place import place
from shardwright.passes.compiling.topk_stages import best_over_stages


@dataclass(frozen=True)
class Chosen:
    """A choice by bytes."""

    placed: Program
    placement: LayoutSolution
    proof: PlacementProof


def choose_by_bytes(program: Program, options: PlacementOptions, seconds: float, *, alone: bool, edges: str) -> Chosen:
    """The layouts of a program after `decompose` with the fewest bytes, by HiGHS alone where it is wanted."""
    end = time.monotonic() + seconds

    def chosen(each: Program, best: Chosen | None) -> Chosen:
        most = math.inf if best is None else best.proof.bytes_received
        return _choose(each, options, end, most, alone=alone, edges=edges)

    def reached(found: Chosen) -> tuple[Program, float, float]:
        return found.placed, found.proof.bytes_received, found.proof.bound_bytes

    best, bound = best_over_stages(program, chosen, reached, partial(_total, options=options))
    return replace(best, proof=replace(best.proof, bound_bytes=math.ceil(bound - 1e-6)))


def _choose(program: Program, options: PlacementOptions, end: float, most: float, *, alone: bool, edges: str) -> Chosen:
    """The layouts of a program with each operation as it stands, where they receive less than `most`."""
    choose = LimitedPlacement(program)
    crowd = CrowdedMoves(program)

    def under(orders: Orders, apart: bool = False, cutoff: float = math.inf) -> Chosen:
        wanted = replace(options, orders=orders, edges_apart=apart, moves=crowd.under(orders))
        if alone:
            chosen = _chosen_alone(program, wanted, end, total_of)
        else:
            placed, placement = place(program, wanted, partial(choose, cutoff=min(cutoff, most)), total_of)
            chosen = Chosen(placed, placement, choose.proof(placement))
        return replace(chosen, placed=in_cheaper_orders(chosen.placed, orders, total_of))

    total_of = partial(_total, options=options)

    def bound(placement: LayoutSolution | None) -> float:
        """With edges; the proof is of what is received without."""
        if placement is None:
            return math.inf
        if placement.bound_bytes is None:
            return choose.proof(placement).bound_bytes
        return math.ceil(placement.bound_bytes - 1e-6)

    def priced(chosen: Chosen) -> PricedChoice[Chosen]:
        made = explicit_of(chosen.placed)
        least, relaxed = bound(chosen.placement), bound(chosen.placement.relaxed)
        shared, learned = chosen.placement.shared_edges, crowd.learn(chosen.placement, made)
        return PricedChoice(
            chosen, chosen.placed, made, round(_received(made, options)), least, shared, *learned, relaxed
        )

    first = under({})
    uneven = first.placement.moves_unevenly(program.mesh)
    if edges == "digits" or not (uneven or moves_at_edges(first.placed)):
        total = priced(first).total if uneven else first.proof.bytes_received
        least = min(first.proof.bound_bytes, bound(first.placement.relaxed))
        return replace(first, proof=PlacementProof(int(total), int(least)))
    best = best_over_orders(
        priced(first),
        lambda orders, apart, cutoff: priced(under(orders, apart, cutoff)),
        late=lambda: choose.limit.exhausted or time.monotonic() > end,
    )
    return replace(best.choice, proof=PlacementProof(int(best.total), math.ceil(best.bound)))


def _total(placed: Program, options: PlacementOptions) -> float:
    """The bytes of a program whose layouts are chosen, in all calls."""
    return _received(explicit_of(placed), options)


def _received(made: Program, options: PlacementOptions) -> float:
    return sum(options.calls.get(func.name, 1.0) * bytes_received(made, func).bytes for func in made.funcs)


def _chosen_alone(program: Program, options: PlacementOptions, end: float, total: Callable[[Program], float]) -> Chosen:
    """The layouts with the fewest bytes, by HiGHS alone."""
    from shardwright.cost.choosing.layout_program.solver import BytesProgram
    from shardwright.cost.integer_program.highs import import_solver

    import_solver()
    effort, problems = Effort(WorkLimit(MOST_ENTRIES), end), ProgramProblems(program)
    placed, placement = place(program, options, lambda each: BytesProgram(problems.of(each), effort).solve(), total)
    least = (placement.relaxed or placement).bound_bytes
    received, bound = round(placement.bytes_received), math.ceil((least or 0.0) - 1e-6)
    return Chosen(placed, placement, PlacementProof(received, min(received, bound)))
