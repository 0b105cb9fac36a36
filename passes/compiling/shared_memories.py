"""The least time with weights and state shared between device and host, by integer programs with shares as columns.

Which values are fetched at all is given: then every share on the device saves its part of the copies, and takes its
part of the memory beside what is fetched, whatever the layouts. So one integer program has the layouts, their rows of
memory and the shares, and its bound is one of all shares; the least bound of all sets of fetched values is one of all
memories.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, combinations

from shardwright.cost.choosing.layout_problem import PlacementOptions
from shardwright.cost.choosing.layout_program.solver import Outcome, ProgramSolve
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.choosing.program_problems import ProgramProblems
from shardwright.cost.choosing.time_placement import NANOSECONDS
from shardwright.cost.choosing.work_limit import OutOfWorkError
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.program import Program
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.compiling.found import ENOUGH
from shardwright.passes.memory.offload import Offload
from shardwright.passes.pipelines import run_passes

_MOST = 4
"""Open values of which every set that may be fetched is looked at."""


def fetched_sets(names: Sequence[str]) -> list[tuple[str, ...]]:
    """The sets of values that may be fetched, small ones first; none where they are too many."""
    if len(names) > _MOST:
        return []
    return list(chain.from_iterable(combinations(names, count) for count in range(1, len(names) + 1)))


def least_shared(
    program: Program,
    fetched: Sequence[str],
    saved_s: Mapping[str, float],
    objective: Objective,
    upper_s: float,
    seconds: float,
) -> tuple[float, Mapping[str, float]]:
    """The least seconds of a program whose `fetched` values lie on the host, with shares of them on the device where
    each byte on a chip saves so many seconds, whatever shares and layouts, but no more than `upper_s`; and shares that
    take less, where any do. Shares are of whole bytes: each may take half a byte less than it should."""
    chip = replace(objective.chip, memory_bytes=objective.chip.memory_bytes + len(fetched) / 2)
    problems = ProgramProblems(run_passes(program, (Offload(), Decompose(), Cleanup())))
    outcome = Outcome()
    solve = ProgramSolve(
        chip, objective.constants, problems.structure, upper_s * NANOSECONDS, enough=ENOUGH,
        end=time.monotonic() + seconds, outcome=outcome,
        saved_ns={name: saved_s[name] * NANOSECONDS for name in fetched},
    )  # fmt: skip
    with suppress(DiagnosticError, OutOfWorkError):
        solve(problems.of(PlacementOptions(calls=objective.calls, is_limited=True)))
    return outcome.bound_ns / NANOSECONDS, outcome.shares
