"""The program with every hole filled so that its predicted time is least under a chip's memory, with a proof."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from shardwright.ir.diagnostics import DiagnosticError

if TYPE_CHECKING:
    from shardwright.cost.chips import Chip
    from shardwright.cost.constants import Constants
    from shardwright.cost.kernel_shares import Structure
    from shardwright.cost.layout_problem import LayoutProblem, PlacementOptions
    from shardwright.cost.placement import Placement
    from shardwright.cost.program_cost import Cost
    from shardwright.cost.time_placement import Prices
    from shardwright.ir.program import Program

ENOUGH = 1e-3
"""Of the least time: what the search counts may differ from the price of the finished program by so much."""

_SHARE = 0.2
"""Of the time that is left, for the layouts at one set of prices."""

_ROUNDS = 4
"""Of prices for memory, each half as far from the best as the one before."""

_LIVE = 2
"""How often activations are made dearer before that is left to the integer program."""

_FOR_PRICES = 0.3
"""Of the time, for looking for prices."""

_DETAIL = 0.01
"""Of a chip's memory: moments with less alive get no row in the integer program, unless that was too little."""


@dataclass(frozen=True)
class Found:
    """What a search found: the explicit program, and what is proved of it.

    `objective_s` is the program's predicted time (`cost_of`, all functions together), `bound_s` a lower bound of every
    filling that fits, `model_s` what the search itself counted for this one. `status` is `optimal` where the search
    proved its choice least, else `feasible`. `seconds` is how long it took.
    """

    status: str
    program: Program
    placement: Placement
    costs: tuple[Cost, ...]
    model_s: float
    bound_s: float
    seconds: float

    @property
    def objective_s(self) -> float:
        return sum(cost.time_s for cost in self.costs)

    @property
    def gap(self) -> float:
        return max(0.0, 1 - self.bound_s / self.objective_s) if self.objective_s else 0.0

    @property
    def peak(self) -> int:
        """Bytes on one chip, of the function that needs most."""
        return max((cost.memory.peak for cost in self.costs), default=0)

    @property
    def kept(self) -> int:
        """Bytes of weights and state on one chip."""
        return self.costs[0].memory.weights + self.costs[0].memory.state if self.costs else 0

    @property
    def chip_seconds_per_token(self) -> float:
        """Of all functions together, for the tokens that one call of each works on."""
        return sum(cost.chip_seconds_per_token for cost in self.costs)


def search(
    program: Program,
    chip: Chip,
    constants: Constants | None = None,
    seconds: float = 60.0,
    options: PlacementOptions | None = None,
) -> Found:
    """Fills a surface program's holes. Raises a `DiagnosticError` where demands cannot be met, or nothing fits.

    After `seconds` no further prices are tried, and what was found so far is returned with the bound so far.
    """
    return _Search(program, chip, constants or chip.constants, seconds, options).run()


class OutOfTimeError(Exception):
    """Nothing was found for some prices in the time that there was for them, though for others."""


class _Search:
    def __init__(
        self, program: Program, chip: Chip, constants: Constants, seconds: float, options: PlacementOptions | None
    ) -> None:
        from shardwright.cost.kernel_shares import structure_of
        from shardwright.cost.layout_problem import PlacementOptions as Options
        from shardwright.ir.placements import off_device
        from shardwright.passes.cleanup import Cleanup
        from shardwright.passes.decompose import Decompose
        from shardwright.passes.offload import Offload
        from shardwright.passes.pipelines import run_passes

        self.began = time.monotonic()
        self.end = self.began + seconds
        self.chip, self.constants = chip, constants
        copies = (Offload(),) if off_device(program) else ()
        self.program = run_passes(program, (*copies, Decompose(), Cleanup()))
        self.structure: Structure = structure_of(self.program)
        self.options = options or Options()
        self.found: list[Found] = []
        self.known: dict[str, Found] = {}
        self.bound_ns = -math.inf

    def run(self) -> Found:
        from shardwright.cost.time_placement import Prices

        self.root = Prices()
        found = self.attempt(self.root)
        self.bound_ns = found.placement.solution.bound
        if found.peak > self.chip.memory_bytes:
            with suppress(OutOfTimeError):
                self.price_memory()
        if self.open():
            self.prove()
        if not self.fitting():
            raise self.too_much(min(self.found, key=lambda found: found.peak))
        best = min(self.fitting(), key=lambda found: found.objective_s)
        return self.proved(best)

    def prove(self) -> None:
        """Closes the gap: with a bound under the best prices, then with integer programs."""
        with suppress(OutOfTimeError):
            bound = self.attempt(self.root).placement.solution.bound
            self.bound_ns = max(self.bound_ns, bound - self.root.byte_ns * self.chip.memory_bytes)
            if self.open():
                self.exact()

    def open(self) -> bool:
        """Whether there may be something better than what was found."""
        return self.bound_ns < self.incumbent() * (1 - ENOUGH)

    def exact(self) -> None:
        """By integer programs, as far as the time goes.

        What exceeds the limit though its rows of memory do not is excluded, and the limit is lowered by as much for
        once, to find something that fits.
        """
        from shardwright.cost.layout_program.solver import Excluded, Outcome, ProgramSolve

        if find_spec("ortools") is None:  # without the extra `search` the gap stays
            return
        excluded: list[Excluded] = []
        detail = _DETAIL
        less: dict[str, float] = {}
        lowered = False
        while self.open() and time.monotonic() < self.end:
            outcome = Outcome()
            solve = ProgramSolve(
                self.chip, self.constants, self.structure, self.incumbent(), self.root.byte_ns, self.bound_ns, ENOUGH,
                tuple(excluded), less if lowered else {}, detail, self.end, outcome,
            )  # fmt: skip
            found: Found | None = None
            with suppress(DiagnosticError):
                found = self.placed(solve)
            if lowered:
                lowered = False
                continue
            self.bound_ns = max(self.bound_ns, outcome.bound_ns)
            if found is None or found.peak <= self.chip.memory_bytes:
                return
            if outcome.excluded is not None:
                excluded.append(outcome.excluded)
            if detail:
                detail = 0.0
                continue
            for cost in found.costs:
                over = cost.memory.peak - self.chip.memory_bytes
                if over > 0:
                    less[cost.func] = less.get(cost.func, 0.0) + over
            lowered = True

    def incumbent(self) -> float:
        from shardwright.cost.time_placement import NANOSECONDS

        return min((found.objective_s for found in self.fitting()), default=math.inf) * NANOSECONDS

    def fitting(self) -> list[Found]:
        return [found for found in self.found if found.peak <= self.chip.memory_bytes]

    def attempt(self, prices: Prices) -> Found:
        """What takes the least time at these prices."""
        from shardwright.cost.placement import OUT_OF_TIME
        from shardwright.cost.time_placement import TimeSolve

        known = repr(prices)
        if known in self.known:
            return self.known[known]
        now = time.monotonic()
        share = _SHARE if self.found else 1.0
        end = now + max(1.0, (self.end - now) * share)
        solve = TimeSolve(self.chip, self.constants, self.structure, prices, end)
        try:
            found = self.placed(solve, prices.byte_ns)
        except DiagnosticError as error:
            if self.found and error.diagnostics[0].code == OUT_OF_TIME:
                raise OutOfTimeError from error
            raise
        self.known[known] = found
        return found

    def placed(self, solve: Callable[[LayoutProblem], Placement], byte_ns: float = 0.0) -> Found:
        """The program with the layouts that `solve` chooses; of what these cost, weights and state have their price."""
        from shardwright.cost.program_cost import cost_of
        from shardwright.cost.time_placement import NANOSECONDS
        from shardwright.passes.place import place

        placed, placement = place(self.program, self.options, solve)
        made = _explicit(placed)
        costs = tuple(cost_of(made, func, self.chip, self.constants) for func in made.funcs)
        found = Found("feasible", made, placement, costs, 0.0, 0.0, 0.0)
        found = replace(found, model_s=(placement.solution.cost - byte_ns * found.kept) / NANOSECONDS)
        self.found.append(found)
        return found

    def price_memory(self) -> None:
        """Prices for the bytes of weights and state: dearer until everything fits, then those at which what fits costs
        as much as what does not, as long as there is something cheaper in between.

        Where weights and state are not enough, all other values are priced too, as little as makes everything fit.
        """
        from shardwright.cost.time_placement import NANOSECONDS, Prices

        limit = self.chip.memory_bytes
        large = self.attempt(Prices())
        scale = large.objective_s * NANOSECONDS / limit
        low, high, live = 0.0, scale, False
        tries = _LIVE
        while True:
            found = self.attempt(Prices(high, high if live else 0.0))
            if found.peak <= limit:
                break
            if found.kept <= limit and not live:
                live = True
                continue
            tries -= live
            if not tries or high > 1e6 * scale or self.late():
                return
            low, high, large = high, high * 8, found
        small = found
        for _ in range(_ROUNDS):
            if self.late():
                break
            if live:
                middle = math.sqrt(low * high) if low else high / 8
                found = self.attempt(Prices(middle, middle))
                low, high = (low, middle) if found.peak <= limit else (middle, high)
                continue
            if small.kept >= large.kept:
                break
            high = (small.model_s - large.model_s) / (large.kept - small.kept) * NANOSECONDS
            found = self.attempt(Prices(high))
            saved = small.model_s - found.model_s + high * (small.kept - found.kept) / NANOSECONDS
            if saved < ENOUGH * found.model_s:
                break
            small, large = (found, large) if found.peak <= limit else (small, found)
        self.root = replace(self.root, byte_ns=0.0 if live else max(0.0, high))

    def late(self) -> bool:
        """Whether the time for looking for prices is over; the rest is for proofs."""
        return time.monotonic() > self.began + _FOR_PRICES * (self.end - self.began)

    def proved(self, best: Found) -> Found:
        from shardwright.cost.time_placement import NANOSECONDS

        bound = min(self.bound_ns / NANOSECONDS, best.objective_s)
        closed = bound >= best.objective_s * (1 - ENOUGH)
        return replace(
            best,
            status="optimal" if closed else "feasible",
            bound_s=bound,
            seconds=time.monotonic() - self.began,
        )

    def too_much(self, found: Found) -> DiagnosticError:
        """Which memory does not fit, by how much, and what would make it fit."""
        from shardwright.ir.diagnostics import NOWHERE, fault

        cost = max(found.costs, key=lambda cost: cost.memory.peak)
        memory, room = cost.memory, self.chip.memory_bytes
        parts = {"weights": memory.weights, "state": memory.state, "activations": memory.activations}
        listed = ", ".join(f"{_bytes(size)} of {part}" for part, size in parts.items() if size)
        notes = [f"a chip would hold {listed}"]
        if memory.live:
            notes.append(f"the largest activation is {memory.live[0].name}, {_bytes(memory.live[0].bytes)}")
        least = min(found.costs[0].memory.weights + found.costs[0].memory.state for found in self.found)
        which = "whatever the layouts" if least > room else "in the layouts that take least of those tried"
        chips = cost.n_chips * math.ceil(memory.peak / room)
        notes.append(f"about {chips} chips would hold it, split as far as it is now")
        wide = sum(
            value.concrete.local_bytes(found.program.mesh)
            for value in found.program.weights
            if value.shape.dtype.bits == 16
        )
        if wide and memory.peak - wide // 2 <= room:
            notes.append("int8 weights would fit: run quantize-weights first")
        largest = max(parts, key=lambda part: parts[part])
        if largest != "weights":
            notes.append("a smaller batch or a shorter context makes it smaller")
        return fault(
            "does-not-fit",
            f"{cost.func} needs {_bytes(memory.peak)} on each chip, {_bytes(memory.peak - room)} more than the"
            f" {_bytes(room)} of {self.chip.name}, {which}",
            NOWHERE,
            *notes,
        )


def _explicit(placed: Program) -> Program:
    """A placed program with its movements written down."""
    from shardwright.passes.pipelines import MOVEMENTS

    for applied in MOVEMENTS:
        placed = applied.run(placed)
    return placed


def _bytes(nbytes: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} B"
