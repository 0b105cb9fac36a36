"""The cheapest layouts whose axes divide each dimension: what a choice splits too finely is chosen among anew."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from itertools import combinations

from shardwright.cost.choosing.layout_problem import (
    LayoutProblem,
    PlacementOptions,
    ValueNode,
)
from shardwright.cost.choosing.layout_solution import Effort, LayoutSolution
from shardwright.cost.choosing.placement import Solver
from shardwright.cost.choosing.program_problems import ProgramProblems
from shardwright.cost.choosing.work_limit import OutOfWorkError
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.digit_orders import splitting_axes
from shardwright.ir.program import Program
from shardwright.ir.types import TensorType


class _BeatenError(Exception):
    """Tells that no layouts that divide can be better than what was found elsewhere; `bounded` are these without."""

    def __init__(self, bounded: LayoutSolution) -> None:
        super().__init__()
        self.bounded = bounded


def place_layouts(
    of: Program | ProgramProblems,
    options: PlacementOptions | None = None,
    solve: Callable[[LayoutProblem], LayoutSolution] | None = None,
    effort: Effort | None = None,
    enough: float = 0.0,
    incumbent: float = math.inf,
) -> LayoutSolution:
    """The cheapest layouts for a whole program. Raises a `DiagnosticError` where demands cannot be met, and an
    `OutOfWorkError` where nothing is found with the effort.

    `solve` chooses them, by bytes received where it is None.

    Exact but for the share `enough` of the cost: the digits that a dimension's size cannot hold together are found in
    the solution and branched on, and the solution of the rest is proved by its bound. Branches that cannot cost less
    than the `incumbent` of another are left (Land and Doig 1960). Of a program's `ProgramProblems`
    those that were looked at before are not made again.
    """
    options = options or PlacementOptions()
    problems = of if isinstance(of, ProgramProblems) else ProgramProblems(of)
    program, problem = problems.program, problems.of(options)
    best = solve(problem) if solve is not None else Solver(problem, effort).solve()
    violated = indivisible(program, best, options.digit_sets)
    if violated is None:
        return best
    if best.solution.bound >= incumbent * (1 - enough):
        raise _BeatenError(best)
    key, choices = violated
    found: list[LayoutSolution] = []
    beaten: list[LayoutSolution] = []
    late: OutOfWorkError | None = None
    as_cheap = False
    for axes in choices:
        narrowed = replace(options, digit_sets={**options.digit_sets, key: axes})
        try:
            found.append(place_layouts(problems, narrowed, solve, effort, enough, incumbent))
            incumbent = min(incumbent, found[-1].solution.cost)
            as_cheap = found[-1].solution.cost <= max(best.solution.cost, best.solution.bound * (1 + enough))
            if as_cheap:
                break  # nothing is cheaper by more than what the bound of `best` leaves open
        except _BeatenError as error:
            beaten.append(error.bounded)
        except OutOfWorkError as error:
            late = error
        except DiagnosticError:
            continue
    if beaten and not found:
        raise _BeatenError(best if late is not None else min(beaten, key=lambda made: made.solution.bound))
    if late is not None and not found:
        raise late
    if not found:  # movements that are written split it over more axes, and there is a way between them as well
        everything = replace(options, digit_sets={**options.digit_sets, key: frozenset(program.mesh)})
        return place_layouts(problems, everything, solve, effort, enough, incumbent)
    cheapest = min(found, key=lambda placement: placement.solution.cost)
    is_partial = as_cheap or late is not None
    bound = best.solution.bound if is_partial else min(placement.solution.bound for placement in (*found, *beaten))
    proved = [best] if is_partial else [*found, *beaten]
    least = [placement.bound_bytes for placement in proved if placement.bound_bytes is not None]
    return replace(
        cheapest,
        solution=replace(cheapest.solution, bound=min(bound, cheapest.solution.cost)),
        bound_bytes=min(least, default=None),
        shared_edges=best.shared_edges,
    )


def indivisible(
    program: Program, placement: LayoutSolution, settled: Collection[tuple[str, str | None]]
) -> tuple[tuple[str, str | None], list[frozenset[str]]] | None:
    """A dimension that the solution splits over more axes than divide it, with the largest sets that do.

    Demands may be as many as they are; nothing is then added to them. Dimensions whose axes are settled are left out.
    """
    used: dict[tuple[str, str | None], set[str]] = {}
    overrides = {func.name: dict(func.overrides) for func in program.funcs}
    for key, uses in splitting_axes(program).items():
        used.setdefault(key, set()).update(uses)
    demanded = {key: frozenset(axes) for key, axes in used.items()}
    for node in placement.nodes:
        func = node.func
        for kind in _kinds_of(placement, node):
            for dim, axes in zip(kind.dims, kind.splits, strict=True):
                key = (dim.name, func if func and dim.name in overrides[func] else None)
                used.setdefault(key, set()).update(axes)
    for key, axes in sorted(used.items(), key=lambda item: (item[0][0], item[0][1] or "")):
        name, func = key
        size = program.dim(name).size if func is None else overrides[func][name]
        fixed = demanded.get(key, frozenset())
        if key in settled or size % program.mesh.product(axes) == 0:
            continue
        if axes <= fixed:  # between demands there is a way in any case
            continue
        free = [axis for axis in program.mesh if axis in axes and axis not in fixed]
        sets: list[frozenset[str]] = []
        for count in range(len(free), -1, -1):
            for extra in combinations(free, count):
                candidate = fixed | set(extra)
                divides = size % program.mesh.product(candidate) == 0 or not extra
                if divides and not any(candidate < s for s in sets):
                    sets.append(candidate)
        return key, sets
    return None


def _kinds_of(placement: LayoutSolution, node: ValueNode) -> list[TensorType]:
    variables = [node.home, node.made, *(variable for _, variable, _ in node.uses)]
    kinds = [placement.kinds[v] for v in variables if v >= 0]
    return kinds + [kind for edge in placement.trees.get(node, []) for kind in edge]
