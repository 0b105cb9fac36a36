"""One chooser of layouts: every hole filled so that the predicted time is least under a chip's memory, with a proof."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter

from shardwright.cost.choosing.crowded_moves import CrowdedMoves
from shardwright.cost.choosing.layout_problem import LayoutProblem, PlacementOptions
from shardwright.cost.choosing.layout_program.exclusions import ExcludedChoice
from shardwright.cost.choosing.layout_program.solver import Outcome, ProgramSolve
from shardwright.cost.choosing.layout_solution import Effort, LayoutSolution
from shardwright.cost.choosing.limited_placement import most_entries
from shardwright.cost.choosing.memory_prices import MemoryPrices
from shardwright.cost.choosing.objective import Objective
from shardwright.cost.choosing.program_problems import ProgramProblems
from shardwright.cost.choosing.time_placement import NANOSECONDS, TimeSolver
from shardwright.cost.choosing.work_limit import OutOfWorkError, WorkLimit
from shardwright.cost.integer_program.highs import import_solver
from shardwright.cost.programs.memory import device_bytes
from shardwright.cost.programs.program_cost import Cost, cost_of
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.placements import off_device
from shardwright.ir.program import Program
from shardwright.passes.compiling.choose_memories import memories_chosen
from shardwright.passes.compiling.cleanup import Cleanup
from shardwright.passes.compiling.decompose import Decompose
from shardwright.passes.compiling.found import ENOUGH, SearchResult, explicit_of
from shardwright.passes.compiling.nothing_found import nothing_by_highs, nothing_meets_demands, too_large
from shardwright.passes.compiling.order_branching import (
    Orders,
    PricedChoice,
    best_over_orders,
    in_cheaper_orders,
    moves_at_edges,
)
from shardwright.passes.compiling.place import place
from shardwright.passes.compiling.topk_stages import best_over_stages
from shardwright.passes.memory.offload import Offload
from shardwright.passes.pipelines import run_passes

_FOR_PROOF = 0.9
"""Of the time that is left, for a bound at the best prices."""

_ROUNDS = 4
"""Of prices for memory, each half as far from the best as the one before."""

_DEAREST = 1e7
"""The price of memory beyond which nothing takes less: so many times the time of the fastest, for all of a chip's."""

_LIVE = 2
"""How often activations are made dearer before that is left to the integer program."""

_FOR_PRICES = 0.8
"""Of the time, for looking for prices."""

_DEAR = 4.0
"""Times the price at which everything fits: of weights that are to be small at any cost."""

_DETAIL = 0.01
"""Of a chip's memory: moments with less alive get no row in the integer program, unless that was too little."""


def search(
    program: Program,
    objective: Objective,
    seconds: float = 60.0,
    options: PlacementOptions | None = None,
    known: SearchResult | None = None,
) -> SearchResult:
    """Fills a surface program's holes. Raises a `DiagnosticError` where demands cannot be met, or nothing fits.

    After `seconds` no further prices are tried, and what was found so far is returned with the bound so far: a first
    choice may take longer, save where one that fits is `known`, which is returned where nothing better is found.
    """
    began = time.monotonic()
    filled = memories_chosen(program, objective, seconds)
    before = filled.found and filled.found.but(objective=objective)
    left = max(0.0, seconds - (time.monotonic() - began))
    if before is not None and options is None:
        before = before.bounded(before.bound_s, seconds=time.monotonic() - began)
        if before.status == "optimal" or not left:
            return before
    copies = (Offload(),) if off_device(filled.program) else ()
    found = choose(
        run_passes(filled.program, (*copies, Decompose(), Cleanup())), objective, left, options, known or before
    )
    bound = found.bound_s if before is None else min(found.bound_s, before.bound_s)
    closed = found.status == "optimal" and bound >= found.objective_s * (1 - ENOUGH)
    return found.but(status="optimal" if closed else "feasible", bound_s=bound, seconds=time.monotonic() - began)


def choose(
    program: Program,
    objective: Objective,
    seconds: float = 60.0,
    options: PlacementOptions | None = None,
    known: SearchResult | None = None,
    *,
    proof: bool = True,
    edges: str = "global",
) -> SearchResult:
    """The layouts of a program after `decompose`, as all commands choose them; without `proof` those that a few axes at
    a time find. Where something moves at the edges of functions that counts, unless `edges` are "digits". The
    stages of a `topk` are chosen with them. Raises as `search`."""
    end = time.monotonic() + seconds

    def chosen(program: Program, before: SearchResult | None) -> SearchResult:
        left = end - time.monotonic() if before else seconds
        return _choose(program, objective, left, options, before or known, proof=proof, edges=edges)

    def price(placed: Program) -> float:
        func = (made := explicit_of(placed)).funcs[0]
        return objective.count(func.name) * cost_of(made, func, objective.chip, objective.constants).time_s

    best, bound = best_over_stages(program, chosen, attrgetter("placed", "objective_s", "bound_s"), price, ENOUGH)
    return best if bound == best.bound_s else best.bounded(bound)


def _choose(
    program: Program,
    objective: Objective,
    seconds: float,
    options: PlacementOptions | None,
    known: SearchResult | None,
    *,
    proof: bool,
    edges: str,
) -> SearchResult:
    """The layouts of a program with each operation as it stands."""
    end = (began := time.monotonic()) + seconds
    options, problems = options or PlacementOptions(), ProgramProblems(program)
    first_limit, others_limit = WorkLimit(most_entries(program)), WorkLimit(most_entries(program))
    crowd = CrowdedMoves(program, objective)

    def under(orders: Orders, apart: bool = False, cutoff: float = math.inf) -> SearchResult:
        wanted = replace(options, orders=orders, edges_apart=apart, moves=crowd.under(orders))
        again = bool(orders or crowd.pairs)
        left = end - time.monotonic() if again else seconds
        given, limit, needed = (None, others_limit, False) if again else (known, first_limit, known is None)
        return _Chooser(
            problems, objective, left, wanted, given, limit, needed=needed, proof=proof, cutoff_s=cutoff
        ).run()

    def bounded(best: SearchResult) -> SearchResult:
        if best.placement.moves_unevenly(program.mesh):
            best = best.but(model_s=best.objective_s)
        bound = min(best.bound_s, best.relaxed_s)
        proved = best.status == "optimal" and bound >= min(best.model_s, best.objective_s) * (1 - ENOUGH)
        return best.but(status="optimal" if proved else "feasible", bound_s=bound)

    def priced(found: SearchResult) -> PricedChoice[SearchResult]:
        shared, learned = found.placement.shared_edges, crowd.learn(found.placement, found.program)
        return PricedChoice(
            found, found.placed, found.program, found.objective_s, found.bound_s, shared, *learned, found.relaxed_s
        )

    first = under({})
    chosen_at = time.monotonic()
    uneven = first.placement.moves_unevenly(program.mesh)
    if edges == "digits" or not (uneven or moves_at_edges(first.placed)):
        return bounded(first)
    start = priced(first)
    end -= time.monotonic() - chosen_at  # kept back, for what is found last to be written and priced
    best = best_over_orders(
        start,
        lambda orders, apart, cutoff: priced(under(orders, apart, cutoff)),
        ENOUGH,
        lambda: not proof or others_limit.exhausted or time.monotonic() > end,
    )
    return bounded(
        best.choice.but(
            status="optimal" if best.bound >= best.total * (1 - ENOUGH) else "feasible",
            model_s=best.total,
            bound_s=best.bound,
            relaxed_s=math.inf,
            seconds=time.monotonic() - began,
        )
    )


class _Chooser:
    def __init__(
        self,
        problems: ProgramProblems,
        objective: Objective,
        seconds: float,
        options: PlacementOptions | None,
        given: SearchResult | None,
        limit: WorkLimit,
        *,
        needed: bool,
        proof: bool,
        cutoff_s: float,
    ) -> None:
        self.proof, self.limit, self.needed = proof, limit, needed
        self.cutoff_ns = cutoff_s * NANOSECONDS
        """The time from which on choices need not be told apart."""
        self.given = [] if given is None else [given]
        """Layouts that fit, of other layout problems than those found here."""
        self.began = time.monotonic()
        self.end = self.began + seconds
        self.objective = objective
        self.chip, self.constants = objective.chip, objective.constants
        self.problems, self.program = problems, problems.program
        self.structure = problems.structure
        is_limited = math.isfinite(self.chip.memory_bytes)
        self.options = replace(options or PlacementOptions(), calls=objective.calls, is_limited=is_limited)
        self.found: list[SearchResult] = []
        self.known: dict[str, SearchResult] = {}
        self.tried: list[MemoryPrices] = []
        self.bound_ns = self.relaxed_ns = -math.inf
        """The bounds of what is looked at, and of all: where digits do not agree only some layouts are."""
        self.kernels_ns = math.inf
        """The time of kernels at least, whatever the layouts: a bound for which nothing need be looked at."""
        self.price = MemoryPrices()
        self.alone = objective.solver == "ortools"
        self.fault: DiagnosticError | None = None
        """Why the integer program has found nothing."""

    def run(self) -> SearchResult:
        if self.alone:
            import_solver()
            self.exact()
        else:
            with suppress(OutOfWorkError):  # what was found so far has to do
                self.search()
        fitting = self.fitting()
        if not fitting:
            bound_s = min(self.bound_ns, self.relaxed_ns) / NANOSECONDS
            raise too_large(self.found, self.program, bound_s) if self.found else self.nothing()
        return self.proved(min(fitting, key=lambda found: found.objective_s) if len(fitting) > 1 else fitting[0])

    def search(self) -> None:
        """By prices and elimination, and by integer programs where these leave a gap."""
        unlimited = math.isinf(self.chip.memory_bytes)
        if not unlimited and not self.attempt(MemoryPrices()).fits:
            self.price_memory()
        if not self.proof:
            self.attempt(MemoryPrices())
            return
        timely = not self.found or time.monotonic() < self.end
        if timely and (unlimited or (self.open() and not self.price.byte_ns)):
            self.prove()
        if not unlimited and self.open():
            self.exact()

    def prove(self) -> None:
        """Looks at all choices where memory has no price, which gives a bound."""
        end = time.monotonic() + _FOR_PROOF * (self.end - time.monotonic())
        start = min(self.found, key=lambda found: found.model_s).placement if self.found else None
        effort = Effort(self.limit, end, start=start, cutoff=self.cutoff_ns)
        with suppress(OutOfWorkError):
            placement = self.priced(MemoryPrices(), effort).placement
            self.bound_ns = placement.solution.bound
            self.relaxed_ns = (placement.relaxed or placement).solution.bound

    def open(self) -> bool:
        """Tells whether there may be something better than what was found."""
        return self.bound_ns < min(self.incumbent() * (1 - ENOUGH), self.cutoff_ns)

    def exact(self) -> None:
        """By integer programs, as far as the time goes.

        What exceeds the limit though its rows of memory do not is excluded with all that takes as much at that moment,
        and the limit is lowered by as much for once, to find something that fits.
        """
        excluded: list[ExcludedChoice] = []
        detail = _DETAIL
        less: dict[str, float] = {}
        lowered = False
        while self.open() and time.monotonic() < self.end:
            outcome = Outcome()
            solve = ProgramSolve(
                self.chip, self.constants, self.structure, self.incumbent(), self.price.byte_ns, self.bound_ns, ENOUGH,
                tuple(excluded), less if lowered else {}, detail, self.end, self.alone, outcome,
            )  # fmt: skip
            found: SearchResult | None = None
            try:
                found = self.placed(solve)
            except DiagnosticError as error:
                self.fault = error
            if found is not None:
                excluded.extend(self.excluded(found, outcome))
            if lowered:
                lowered = False
                continue
            self.bound_ns = max(self.bound_ns, outcome.bound_tried_ns)
            self.relaxed_ns = max(self.relaxed_ns, outcome.bound_ns)
            if found is None or found.fits:
                return
            if detail:
                detail = 0.0
                continue
            for cost in self.too_large(found):
                less[cost.func] = less.get(cost.func, 0.0) + cost.memory.peak - self.chip.memory_bytes
            lowered = True

    def too_large(self, found: SearchResult) -> list[Cost]:
        """The costs of the functions that do not fit."""
        return [cost for cost in found.costs if cost.memory.peak > self.chip.memory_bytes]

    def excluded(self, found: SearchResult, outcome: Outcome) -> list[ExcludedChoice]:
        """The choices that may not be made again after what was found, for each function that does not fit."""
        chosen = outcome.excluded.get(found.placement.solution.choice)
        if chosen is None:
            return []
        funcs = {func.name: func for func in found.program.funcs}
        return [chosen.at_peak(self.structure, funcs[cost.func], cost.memory) for cost in self.too_large(found)]

    def incumbent(self) -> float:
        """The least time of what fits, without what moves at edges and is not counted in the choice."""
        return (
            min((f.objective_s - f.edges_s(self.options.orders) for f in self.fitting()), default=math.inf)
            * NANOSECONDS
        )

    def fitting(self) -> list[SearchResult]:
        return [found for found in (*self.found, *self.given) if found.fits]

    def attempt(self, prices: MemoryPrices, *, thorough: bool = False) -> SearchResult:
        """The choice that takes little time at these prices, as a few axes at a time find it."""
        known = repr((prices, thorough))
        if known not in self.known:
            self.tried.append(prices)
            self.known[known] = self.priced(
                prices, Effort(end=self.end, proof=False, thorough=thorough, needed=self.needed)
            )
        return self.known[known]

    def priced(self, prices: MemoryPrices, effort: Effort) -> SearchResult:
        """The layouts chosen at these prices with so much effort."""

        def solve(problem: LayoutProblem) -> LayoutSolution:
            solver = TimeSolver(problem, self.chip, self.constants, self.structure, prices, effort)
            self.kernels_ns = min(self.kernels_ns, solver.least_kernels)
            return solver.solve()

        return self.placed(solve, prices)

    def placed(
        self, solve: Callable[[LayoutProblem], LayoutSolution], prices: MemoryPrices | None = None
    ) -> SearchResult:
        """The program with the layouts that `solve` chooses; of what these cost, weights and state have their price."""
        placed, placement = place(
            self.program, self.options, lambda options: solve(self.problems.of(options)), self.total_ns
        )
        placed = in_cheaper_orders(placed, self.options.orders, self.total_ns)
        spent = 0.0
        if prices is not None:
            kept = (*placed.weights, *placed.state)
            spent = sum(prices.of_kept(value.name) * device_bytes(value, placed.mesh) for value in kept)
        model_s = (placement.solution.cost - spent) / NANOSECONDS
        found = SearchResult(self.objective, "feasible", placed, placement, model_s, 0.0, 0.0)
        if prices is not None and prices.live_ns:  # the cost holds the price of every value beside its time
            found = found.but(model_s=found.objective_s)
        self.found.append(found)
        return found

    def total_ns(self, placed: Program) -> float:
        """The time of a program whose layouts are chosen; no less than any where it does not fit."""
        funcs = (made := explicit_of(placed)).funcs
        costs = [cost_of(made, func, self.chip, self.constants) for func in funcs]
        if any(cost.memory.peak > self.chip.memory_bytes for cost in costs):
            return math.inf
        return sum(self.objective.count(cost.func) * cost.time_s for cost in costs) * NANOSECONDS

    def price_memory(self) -> None:
        """Prices for the bytes of weights and state: dearer until everything fits, then between those.

        Where weights and state are not enough, all other values are priced too, as little as makes everything fit.
        """
        limit = self.chip.memory_bytes
        large = self.attempt(MemoryPrices())
        scale = max(1.0, large.objective_s * NANOSECONDS) / limit  # some functions take no time
        below, above, live = MemoryPrices(), MemoryPrices(_DEAREST * scale if self.late() else scale), False
        tries = _LIVE
        while not (small := self.attempt(above)).fits:
            if small.kept <= limit and not live:
                live = True
            else:
                tries -= live
                if not tries or above.byte_ns > _DEAREST / 10 * scale:
                    return
                dearer = _DEAREST * scale if self.late() else above.byte_ns * 8
                below, large, above = above, small, MemoryPrices(dearer)
            above = MemoryPrices(above.byte_ns, above.byte_ns if live else 0.0)
        if live:
            self.narrow_all(below, above)
        else:
            self.narrow(below, large, above, small)

    def narrow_all(self, below: MemoryPrices, above: MemoryPrices) -> None:
        """Prices of all values alike, between those at which what is found does not fit and fits."""
        for _ in range(_ROUNDS):
            if self.late():
                return
            price = math.sqrt(below.byte_ns * above.byte_ns) or above.byte_ns / 8
            prices = MemoryPrices(price, price)
            if self.attempt(prices).fits:
                above = prices
            else:
                below = prices

    def narrow(self, below: MemoryPrices, large: SearchResult, above: MemoryPrices, small: SearchResult) -> None:
        """The same of weights and state: in turn the price at which both cost as much, and the mean of the two prices.
        Then prices of some, and with more than two axes another look at less."""
        for turn in range(_ROUNDS):
            if self.late() or small.kept >= large.kept:
                break
            over = (small.model_s - large.model_s) / (large.kept - small.kept)
            mean = math.sqrt(below.byte_ns * above.byte_ns) if turn % 2 else 0.0
            prices = MemoryPrices(mean or max(0.0, over * NANOSECONDS))
            found = self.attempt(prices)
            saved = small.model_s - found.model_s + prices.byte_ns * (small.kept - found.kept) / NANOSECONDS
            below, large, above, small = (below, large, prices, found) if found.fits else (prices, found, above, small)
            if not mean and saved < ENOUGH * found.model_s:
                break
        self.price = self.dual_price()
        self.price_some(below, large, above, small)
        if len(self.program.mesh) > 2:
            self.look_again(below.byte_ns, above.byte_ns)

    def look_again(self, low: float, price: float) -> None:
        """More thorough looks, between prices at which what they find fits and does not; the first costs `price`."""
        high, before = math.inf, math.inf
        for _ in range(_ROUNDS):
            if self.late():
                return
            found = self.attempt(MemoryPrices(price), thorough=True)
            if found.fits and found.model_s >= before * (1 - ENOUGH):
                return
            low, high, before = (low, price, found.model_s) if found.fits else (price, high, before)
            price = 2 * price if math.isinf(high) else math.sqrt(low * high) or high / 8

    def dual_price(self) -> MemoryPrices:
        """Picks of the prices tried the one with the highest bound, were the choices found at them the best."""
        room = self.chip.memory_bytes

        def bound(prices: MemoryPrices) -> float:
            found = self.known[repr((prices, False))]
            return found.model_s * NANOSECONDS + prices.byte_ns * (found.kept - room)

        return max((prices for prices in self.tried if not prices.live_ns and not prices.dear), key=bound)

    def price_some(self, below: MemoryPrices, large: SearchResult, above: MemoryPrices, small: SearchResult) -> None:
        """A far higher price for some of the weights and state values that the higher price makes smaller: one more at
        a time, with which time grows least for what is saved of the bytes too many, until everything fits."""
        mesh, room = self.program.mesh, self.chip.memory_bytes

        def nbytes(found: SearchResult) -> dict[str, int]:
            placed = found.placed
            return {value.name: device_bytes(value, mesh) for value in (*placed.weights, *placed.state)}

        before, after = nbytes(large), nbytes(small)
        names = [name for name in before if before[name] > after[name]]
        dear, now = frozenset[str](), large
        while not now.fits:
            tried: list[tuple[bool, float, str, SearchResult]] = []
            for name in (name for name in names if name not in dear):
                if self.late():
                    return
                found = self.attempt(MemoryPrices(below.byte_ns, 0.0, dear | {name}, _DEAR * above.byte_ns))
                saved = min(now.kept - found.kept, now.peak - room)
                if saved > 0:
                    rate = found.objective_s if found.fits else (found.objective_s - now.objective_s) / saved
                    tried.append((not found.fits, rate, name, found))
            if not tried:
                return
            _, _, name, now = min(tried, key=lambda each: each[:3])
            dear |= {name}

    def late(self) -> bool:
        """Tells whether the time for looking for prices is over; the rest is for proofs."""
        return time.monotonic() > self.began + _FOR_PRICES * (self.end - self.began)

    def proved(self, best: SearchResult) -> SearchResult:
        reached = best.model_s if math.isinf(self.chip.memory_bytes) else best.objective_s
        least = self.kernels_ns if math.isfinite(self.kernels_ns) else 0.0
        self.bound_ns, self.relaxed_ns = max(self.bound_ns, least), max(self.relaxed_ns, least)
        bound = min(self.bound_ns / NANOSECONDS, reached)
        closed = bound >= reached * (1 - ENOUGH)
        return best.but(
            status="optimal" if closed else "feasible",
            bound_s=bound,
            relaxed_s=self.relaxed_ns / NANOSECONDS if self.relaxed_ns < self.bound_ns else math.inf,
            seconds=time.monotonic() - self.began,
        )

    def nothing(self) -> DiagnosticError:
        """Why no layouts were found."""
        if self.fault is not None and self.fault.diagnostics[0].code != "nothing-better":
            return self.fault
        if self.alone:
            return nothing_by_highs(self.chip, self.bound_ns / NANOSECONDS, self.end - self.began)
        return nothing_meets_demands(self.program)
