"""Searches over the shapes of a mesh, and what several searches prove together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from shardwright.cost.hardware.topology import factorizations
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.passes.compiling.choosing import ENOUGH, search
from shardwright.passes.compiling.found import SearchResult

if TYPE_CHECKING:
    from shardwright.cost.choosing.objective import Objective
    from shardwright.ir.program import Program

Minimize = Literal["latency", "cost"]


def search_shapes(
    program: Program,
    load: Callable[[Mapping[str, int]], Program],
    objective: Objective,
    seconds: float,
    minimize: Minimize,
) -> SearchResult:
    """`search` over every shape of the mesh with as many chips; `load` makes the program for one.

    A shape that no slice of the chip has, or that a demanded type does not fit, is left out; raises what the program's
    own shape raises where nothing is left. The bound is that of all shapes that were searched.
    """
    began = time.monotonic()
    first: DiagnosticError | None = None
    found: list[SearchResult] = []
    complete = True
    for shape in mesh_shapes(program.mesh):
        left = seconds - (time.monotonic() - began)
        if left <= 0 and found:
            complete = False
            break
        try:
            found.append(search(load(shape), objective, max(left, 0.0)))
        except DiagnosticError as error:
            first = first or error
    if not found:
        assert first is not None
        raise first

    return best_of(found, minimize, complete=complete)


def best_of(found: Sequence[SearchResult], minimize: Minimize, *, complete: bool = True) -> SearchResult:
    """The best of several searches, the first of equals, with what they prove together: where all that there is to
    search was searched, the least of the bounds.
    """

    def worth(each: SearchResult) -> float:
        return each.objective_s if minimize == "latency" else each.chip_seconds_per_token

    best = min(found, key=worth)
    bound = min(each.bound_s for each in found) if complete else 0.0
    proved = complete and all(
        each.status == "optimal" or each.bound_s >= best.objective_s * (1 - ENOUGH) for each in found
    )
    return best.but(
        status="optimal" if proved else "feasible",
        bound_s=best.bound_s if proved else min(bound, best.objective_s),
        seconds=sum(each.seconds for each in found),
    )


def mesh_shapes(mesh: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Every way to give a mesh's axes sizes with the product that theirs have, its own first."""
    chips = math.prod(mesh.values())
    yield dict(mesh)
    for sizes in factorizations(chips, (chips,) * len(mesh)):
        made = dict(zip(mesh, sizes, strict=True))
        if made != dict(mesh):
            yield made
