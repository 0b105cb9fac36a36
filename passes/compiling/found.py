"""The layouts that were chosen for a program, and what is proved of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from shardwright.cost.movements.movement import duration_text
from shardwright.ir.diagnostics import NOWHERE, Diagnostic, DiagnosticError, Note
from shardwright.ir.ops import Permute
from shardwright.ir.text.table import bytes_text

if TYPE_CHECKING:
    from shardwright.cost.choosing.layout_solution import LayoutSolution
    from shardwright.cost.choosing.objective import Objective
    from shardwright.cost.programs.memory import MemoryUse
    from shardwright.cost.programs.program_cost import Cost
    from shardwright.ir.program import Program


ENOUGH = 1e-3
"""The share of the least time up to which a choice beyond it is called proved."""

ALIKE_S = 1e-9
"""Times so far apart are told as alike, but of what takes less than a thousand times as long."""


def explicit_of(placed: Program) -> Program:
    """The explicit program of one whose layouts are chosen."""
    from shardwright.passes.pipelines import MOVEMENTS

    for applied in MOVEMENTS:
        placed = applied.run(placed)
    return placed


class TooLargeError(DiagnosticError):
    """Raised where no layouts that were found fit into a chip's memory; `memory` is that of those that take least, and
    nothing that fits takes less than `bound_s`."""

    def __init__(self, memory: MemoryUse, message: str, notes: Sequence[str], bound_s: float) -> None:
        super().__init__([Diagnostic("does-not-fit", message, NOWHERE, tuple(map(Note, notes)))])
        self.memory, self.bound_s = memory, bound_s


@dataclass(frozen=True)
class TimeProof:
    """The proof of the layouts of a program that were chosen by time: the predicted seconds on a chip, how many
    there are at least, and the bytes of weights on each chip."""

    chip: str
    time_s: float
    bound_s: float
    weight_bytes: int

    @property
    def proved(self) -> bool:
        return self.bound_s >= self.time_s * (1 - ENOUGH)

    @property
    def warnings(self) -> tuple[str, ...]:
        """The lines to be said where no chip was named, whose memory would have counted."""
        if self.chip != "reference" or self.weight_bytes <= 8e10:
            return ()
        return (
            f"weights take {bytes_text(self.weight_bytes)} on each chip; --chip NAME chooses under a chip's memory",
        )

    def beyond(self, other: TimeProof) -> str:
        """The extra cost of these layouts over others."""
        more, alike = self.time_s - other.time_s, min(ALIKE_S, ENOUGH * other.time_s)
        return f"{duration_text(more)} more" if more > alike else "as fast, in more steps or more memory"

    def as_json(self) -> dict[str, Any]:
        """The same for `--json`."""
        return {
            "objective": "time", "chip": self.chip, "time_s": self.time_s, "bound_s": self.bound_s,
            "proved": self.proved,
        }  # fmt: skip

    def __str__(self) -> str:
        which = "the reference chip" if self.chip == "reference" else self.chip
        said = f"layouts for {which}, {duration_text(self.time_s)}"
        if self.proved:
            return f"{said}, proved least"
        if not self.bound_s:
            return f"{said}, not proved least"
        gap = 100 * (1 - self.bound_s / self.time_s)
        return f"{said}, not proved least: at most {gap:.3g} % above it"


@dataclass(frozen=True)
class SearchResult:
    """A surface program with its layouts chosen, `placed`, and what is proved of them.

    `model_s` is the predicted time as the chooser counts it, calls included, and `bound_s` a lower bound of every
    filling that fits. `status` is `optimal` where the choice is proved least, else `feasible`. `seconds` is how long it
    took. Passes that come after the choice leave what they made of it in `rewritten`.
    """

    objective: Objective
    status: str
    placed: Program
    placement: LayoutSolution
    model_s: float
    bound_s: float
    seconds: float
    rewritten: Program | None = None
    relaxed_s: float = math.inf
    """Where digits did not agree and `bound_s` is of the layouts that were looked at, a lower bound of all."""

    @cached_property
    def program(self) -> Program:
        """The explicit program."""
        if self.rewritten is not None:
            return self.rewritten
        return explicit_of(self.placed)

    @cached_property
    def costs(self) -> tuple[Cost, ...]:
        """The costs of one call of each function."""
        from shardwright.cost.programs.program_cost import cost_of

        wanted = self.objective
        return tuple(cost_of(self.program, func, wanted.chip, wanted.constants) for func in self.program.funcs)

    @property
    def objective_s(self) -> float:
        """The predicted time of all functions, as often as they are called."""
        return sum(self.objective.count(cost.func) * cost.time_s for cost in self.costs)

    def but(self, **changes: Any) -> SearchResult:
        """The same program with another proof, or called as often as another objective says; it is not priced anew."""
        made = replace(self, **changes)
        for name in {"program", "costs"} & vars(self).keys():
            vars(made)[name] = vars(self)[name]
        return made

    def bounded(self, bound_s: float, **changes: Any) -> SearchResult:
        """The same where nothing takes less than this, which proves it or does not."""
        closed = bound_s >= self.objective_s * (1 - ENOUGH)
        return self.but(status="optimal" if closed else "feasible", bound_s=bound_s, **changes)

    def edges_s(self, counted: Collection[str] = ()) -> float:
        """The seconds of what moves at the edges of functions, but along dimensions that are `counted`."""
        return sum(
            self.objective.count(cost.func) * kernel.total_s
            for cost in self.costs
            for kernel in cost.kernels
            if isinstance(permute := kernel.work.statement.operation, Permute)
            and permute.blocks
            and not set(permute.dims).issubset(counted)
        )

    @property
    def bounds_s(self) -> tuple[float, ...]:
        """The least that one call of each function takes with weights and state as they are chosen: what the bound of
        all leaves beside the others."""
        counts = [self.objective.count(cost.func) for cost in self.costs]
        over = self.objective_s - self.bound_s
        return tuple(max(0.0, cost.time_s - over / count) for cost, count in zip(self.costs, counts, strict=True))

    @property
    def gap(self) -> float:
        return max(0.0, 1 - self.bound_s / self.objective_s) if self.objective_s else 0.0

    @property
    def peak(self) -> int:
        """Bytes on one chip, of the function that needs most."""
        return max((cost.memory.peak for cost in self.costs), default=0)

    @property
    def fits(self) -> bool:
        room = self.objective.chip.memory_bytes
        return math.isinf(room) or self.peak <= room

    @property
    def kept(self) -> int:
        """Bytes of weights and state on one chip."""
        return self.costs[0].memory.weights + self.costs[0].memory.state if self.costs else 0

    @property
    def chip_seconds_per_token(self) -> float:
        """The chip-seconds of all functions together, for the tokens that their calls work on."""
        return sum(self.objective.count(cost.func) * cost.chip_seconds_per_token for cost in self.costs)

    @property
    def proof(self) -> TimeProof:
        from shardwright.cost.programs.memory import device_bytes

        weights = sum(device_bytes(value, self.placed.mesh) for value in self.placed.weights)
        return TimeProof(self.objective.chip.name, self.model_s, min(self.bound_s, self.model_s), weights)

    def in_words(self, unproved: str = "not proved least, no bound found") -> str:
        """The time and its proof, the memory, and the time of each function, in lines."""
        cost = self.costs[0]
        if self.status == "optimal":
            proof = "proved least"
        else:
            proof = f"at most {100 * self.gap:.3g} % above the least" if self.bound_s > 0 else unproved
        room = f" of {bytes_text(cost.chip.memory_bytes)}" if math.isfinite(cost.chip.memory_bytes) else ""
        chips = cost.chip.counted(cost.n_chips)
        lines = [
            f"{duration_text(self.objective_s)} on {chips}, mesh {self.program.mesh}; {proof}",
            f"{bytes_text(self.peak)}{room} on each chip, {self.chip_seconds_per_token:.4g} chip-seconds per token",
            f"bound {duration_text(self.bound_s)}, counted {duration_text(self.model_s)}, {self.seconds:.2f} s",
            *([error] if (error := cost.error_in_words()) else []),
        ]
        if len(self.costs) > 1:
            lines += [f"  {each.func}: {duration_text(each.time_s)}" for each in self.costs]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"{self.in_words()}\n\n{self.program!r}"

    def _repr_html_(self) -> str | None:
        return self.program.html()
