"""Layouts for a program within a limit of work: proved least where the limit allows the proof, valid in any case.

Where the tables of all choices would be beyond the limit, the axes choose one after the other
(`cost.choosing.axis_descent`), which takes little, and a bound says how far the choice may be from the least: that of
the program on parts of its mesh.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from shardwright.cost.choosing.layout_problem import PlacementOptions
from shardwright.cost.choosing.layout_solution import Effort, LayoutSolution
from shardwright.cost.choosing.placement import Solver
from shardwright.cost.choosing.program_problems import ProgramProblems, on_axes
from shardwright.cost.choosing.work_limit import OutOfWorkError, WorkLimit
from shardwright.ir.diagnostics import fault
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Let, Program

LEAST_ENTRIES = 3e8
ENTRIES_PER_CUBE = 1.5e4
MOST_ENTRIES = 6e9
"""The limit for a program is the first and the second for each cube of statements, but not more than the third, which
takes some seconds: more than the proof of any preset of a model takes. It is the third where nothing else finds a
choice."""

FOR_BOUNDS = 0.2
"""Of the limit, for the bound of what the axes chose."""


@dataclass(frozen=True)
class PlacementProof:
    """The proof of the layouts of a program: bytes received per chip, and how many there are at least."""

    bytes_received: int
    bound_bytes: int

    @property
    def proved(self) -> bool:
        return self.bound_bytes >= self.bytes_received

    @property
    def warnings(self) -> tuple[str, ...]:
        """Nothing: bytes are counted alike on every chip."""
        return ()

    def beyond(self, other: PlacementProof) -> str:
        """The extra cost of these layouts over others."""
        more = self.bytes_received - other.bytes_received
        return f"{more:,} bytes more" if more > 0 else "as many bytes, and more steps or repeated work"

    def as_json(self) -> dict[str, int | bool | str]:
        """The same for `--json`."""
        return {
            "objective": "bytes", "bytes_received": self.bytes_received, "bound_bytes": self.bound_bytes,
            "proved": self.proved,
        }  # fmt: skip

    def __str__(self) -> str:
        said = f"layouts for the fewest bytes, {self.bytes_received:,} received per chip"
        if self.proved:
            return f"{said}, proved least"
        return f"{said}, not proved least: at most {self.bytes_received - self.bound_bytes:,} above it"


class LimitedPlacement:
    """Chooses layouts by bytes for one program, again and again under other options, within one limit for all, and one
    as large for those that bar some splits, which are many."""

    def __init__(self, program: Program, limit: WorkLimit | None = None, *, proof: bool = True) -> None:
        self.program, self.problems = program, ProgramProblems(program)
        self.limit = limit or WorkLimit(most_entries(program))
        self.limit_of_barred = WorkLimit(self.limit.most)
        self.proof_wanted = proof

    def __call__(self, options: PlacementOptions, cutoff: float = math.inf) -> LayoutSolution:
        """The layouts; those that receive the `cutoff` or more are not told apart. Raises a `DiagnosticError` where the
        demands cannot be met together."""
        is_barred = any(splits is not None for *_, splits in options.barred_reshapes)
        for limit in (self.limit_of_barred,) if is_barred else (self.limit, WorkLimit(MOST_ENTRIES)):
            with suppress(OutOfWorkError):
                effort = Effort(limit, proof=self.proof_wanted, cutoff=cutoff)
                return Solver(self.problems.of(options), effort).solve()
        raise fault(
            "no-placement",
            "no layouts were found that meet the demanded types together, nor proved not to be there",
            self.program.funcs[0].span,
            "leave some of them to the compiler: end the layout with ?",
        )

    def proof(self, placement: LayoutSolution) -> PlacementProof:
        """How far the layouts are from the least at most."""
        received = round(placement.bytes_received)
        bound = placement.bound_bytes
        return PlacementProof(received, min(received, math.ceil((self.bound if bound is None else bound) - 1e-6)))

    @cached_property
    def bound(self) -> float:
        """Bytes received per chip at least, whatever the layouts.

        On a part of the mesh nothing has to move that has not to on the whole, and the other axes leave a chip at least
        its share of what moves.
        """
        limit = WorkLimit(FOR_BOUNDS * self.limit.most)
        axes = [axis for axis, size in self.program.mesh.items() if size > 1]
        best = 0.0
        for count in range(1, len(axes)):
            for chosen in combinations(axes, count):
                part = self.on_part(chosen)
                others = self.program.mesh.n_chips / part.mesh.n_chips
                try:
                    least = Solver(ProgramProblems(part).of(PlacementOptions()), Effort(limit)).least_bytes()
                except OutOfWorkError:
                    return best
                best = max(best, least / others)
        return best

    def on_part(self, axes: Sequence[str]) -> Program:
        """The program on these axes of its mesh."""
        mesh = Mesh(tuple((axis, size) for axis, size in self.program.mesh.items() if axis in axes))
        return on_axes(self.program, mesh)


def most_entries(program: Program) -> float:
    """The limit for a program."""
    lets = sum(isinstance(statement, Let) for func in program.funcs for statement, _ in func.walk())
    return min(LEAST_ENTRIES + ENTRIES_PER_CUBE * lets**3, MOST_ENTRIES)
