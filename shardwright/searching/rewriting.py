"""Searches among programs that mean the same: the given one, and what rewrites make of it, each with its layouts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ParamSpec, TypeVar

from shardwright.cost.choosing.objective import Objective
from shardwright.cost.programs.program_cost import cost_of
from shardwright.ir.diagnostics import DiagnosticError, Source, located
from shardwright.ir.program import Func, Program
from shardwright.passes.compiling.choosing import search
from shardwright.passes.compiling.found import SearchResult
from shardwright.passes.pipelines import options_from, parse_pipeline, run_passes
from shardwright.passes.rings.loop_collectives import LoopCollectives
from shardwright.passes.transformations.packing import packing
from shardwright.searching.mesh_shapes import Minimize, best_of, search_shapes

_P = ParamSpec("_P")
_T = TypeVar("_T")

AUTO = "auto"
NONE = "none"

_PATIENCE = 5.0
"""How much longer than the given program a rewritten one that nobody named may be searched."""

_LEAST_SECONDS = 15.0


@dataclass(frozen=True)
class TriedRewrite:
    """A rewrite as passes, none of them for the given program, and what was found; or why nothing was."""

    rewrite: str
    found: SearchResult | None
    error: DiagnosticError | None = None


@dataclass(frozen=True)
class RewriteSearchResult:
    """The best program found, the surface program whose layouts it has, the rewrites that led there, and all that was
    tried."""

    best: SearchResult
    program: Program
    rewrite: str
    tried: tuple[TriedRewrite, ...]


def search_rewrites(
    load: Callable[[Mapping[str, int]], Program],
    rewrites: Sequence[str],
    objective: Objective,
    seconds: float,
    minimize: Minimize = "latency",
    *,
    shapes: bool = False,
) -> RewriteSearchResult:
    """The best of a program and of what each of `rewrites`, a pipeline of passes, makes of it.

    `load` makes the program for a mesh, its own where that is empty; with `shapes` every shape of the mesh with as many
    chips is searched. `auto` among the rewrites stands for each way to pack projections that share an input or are
    added, and for loops in place of collectives that pay on the chip; `none` for nothing. Raises what the given program
    raises where no program has layouts that fit. What is proved holds of all programs together (`best_of`), and where
    loops were written, half of it: a loop hides no more than the shorter of what it overlaps.
    """
    began = time.monotonic()
    automatic = [text for text in fusings(load({})) if text not in rewrites] if AUTO in rewrites else []
    queue = [*dict.fromkeys(("", *(text for text in rewrites if text not in (AUTO, NONE)), *automatic))]
    tried: list[TriedRewrite] = []
    each_after = [_after(load, text) for text in queue]
    programs = [_unless_without_layouts(rewritten, {}) for rewritten in each_after]  # faults are said before any search
    for place, (text, rewritten, program) in enumerate(zip(queue, each_after, programs, strict=True)):
        left = max(0.0, seconds - (time.monotonic() - began))
        share = left / (len(queue) - place) if text or not automatic else left
        if text in automatic and tried[0].found is not None:
            share = min(share, max(_LEAST_SECONDS, _PATIENCE * tried[0].found.seconds))
        if isinstance(program, DiagnosticError):
            found = program
        elif shapes:
            found = _unless_without_layouts(search_shapes, program, rewritten, objective, share, minimize)
        else:
            found = _unless_without_layouts(search, program, objective, share)
        tried.append(
            TriedRewrite(text, None, found) if isinstance(found, DiagnosticError) else TriedRewrite(text, found)
        )
    results = [each.found for each in tried if each.found is not None]
    if not results:
        assert tried[0].error is not None
        raise tried[0].error
    best = best_of(results, minimize, complete=len(results) == len(tried))
    rewrite = next(t.rewrite for t in tried if t.found is not None and t.found.placed is best.placed)
    program = _after(load, rewrite)(dict(best.program.mesh) if shapes else {})
    if AUTO in rewrites:
        best, loops = with_loops(best)
        if loops:
            rewrite = ", then ".join(filter(None, (rewrite, loops)))
            tried.append(TriedRewrite(rewrite, best))
    return RewriteSearchResult(best.but(seconds=time.monotonic() - began), program, rewrite, tuple(tried))


def _unless_without_layouts(make: Callable[_P, _T], *args: _P.args, **options: _P.kwargs) -> _T | DiagnosticError:
    """The result of a call, or the fault of a program that has no layouts. Raises other faults."""
    try:
        return make(*args, **options)
    except DiagnosticError as error:
        if error.diagnostics[0].code not in WITHOUT_LAYOUTS:
            raise
        return error


def _after(load: Callable[[Mapping[str, int]], Program], text: str) -> Callable[[Mapping[str, int]], Program]:
    """The function that makes the program for a mesh, after the passes that a text names."""
    with located(Source("--rewrite", text)):
        passes = parse_pipeline(text) if text else ()

    def after(mesh: Mapping[str, int]) -> Program:
        with options_from("--rewrite", text):
            return run_passes(load(mesh), passes)

    return after


WITHOUT_LAYOUTS = ("does-not-fit", "out-of-time", "no-placement")
"""The codes of faults that say that a program has no layouts, or none in time; another may have some."""


def fusings(program: Program) -> list[str]:
    """`fuse-parallel-block` with each choice of axes by which other weights go together, most axes first."""
    found: dict[frozenset[tuple[str, ...]], str] = {}
    for axes in _subsets(program.mesh.axes):
        by = "+".join(axes) if any(len(axis) > 1 for axis in axes) else "".join(axes)
        together = frozenset(tuple(part.weight for part in packed.parts) for packed in packing(program, by))
        text = "fuse-parallel-block" if axes == program.mesh.axes else f"fuse-parallel-block{{by={by}}}"
        if together:
            found.setdefault(together, text)
    return list(found.values())


def _subsets(axes: Sequence[str]) -> Iterator[tuple[str, ...]]:
    for count in range(len(axes), 0, -1):
        yield from combinations(tuple(axes), count)


def with_loops(found: SearchResult) -> tuple[SearchResult, str]:
    """The program found with loops in place of collectives, where that lowers its time and still fits, and the passes.

    Sites are tried in the order of the program, one way round and two; no text where none pays.
    """

    def price(program: Program, func: Func) -> float:
        cost = cost_of(program, func, found.objective.chip, found.objective.constants)
        return cost.time_s if cost.memory.peak <= found.objective.chip.memory_bytes else math.inf

    made, texts = found.program, list[str]()
    for func in found.program.funcs:
        best: tuple[float, str, Program] = (price(made, made.func(func.name)), "", made)
        for ways in (1, 2):
            options = LoopCollectives(ways=ways, func=func.name)
            kept = options.paying(made, made.func(func.name), price)
            if kept:
                looped = replace(options, values="+".join(kept)).run(made)
                said = (
                    f"loop-collectives{{{f'ways={ways},' if ways > 1 else ''}func={func.name},values={'+'.join(kept)}}}"
                )
                best = min(best, (price(looped, looped.func(func.name)), said, looped), key=lambda each: each[0])
        made = best[2]
        texts += filter(None, [best[1]])
    if not texts:
        return found, ""
    looped = replace(found, status="feasible", rewritten=made)
    return looped.but(bound_s=min(found.bound_s / 2, looped.objective_s)), ",".join(texts)
