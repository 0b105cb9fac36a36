"""The layouts with the least predicted time under a chip's memory, by an integer program (`TimeSolver` has no rows of
memory).

First what the bounds of message passing rule out against a program known already is left out; then HiGHS has the rest.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.factor_graph import GraphSolution
from shardwright.cost.choosing.factors import TreeFactor
from shardwright.cost.choosing.kernel_shares import Structure
from shardwright.cost.choosing.last_moves import Edge
from shardwright.cost.choosing.layout_problem import LayoutProblem, UsesTree, ValueNode
from shardwright.cost.choosing.layout_program.candidates import Candidates, narrowed, possible_moves
from shardwright.cost.choosing.layout_program.cases import Case, Cases
from shardwright.cost.choosing.layout_program.columns import ColumnValues, Linear
from shardwright.cost.choosing.layout_program.exclusions import ExcludedChoice, exclude, exclusion, layouts_of
from shardwright.cost.choosing.layout_program.formulation import Formulation
from shardwright.cost.choosing.layout_program.memory_rows import MemoryRows
from shardwright.cost.choosing.layout_solution import Effort, LayoutSolution
from shardwright.cost.choosing.limited_placement import MOST_ENTRIES
from shardwright.cost.choosing.memory_prices import MemoryPrices
from shardwright.cost.choosing.placement import Solver
from shardwright.cost.choosing.time_placement import Floats, TimeSolver
from shardwright.cost.choosing.work_limit import OutOfWorkError, WorkLimit
from shardwright.cost.hardware.chips import Chip
from shardwright.cost.hardware.constants import Constants
from shardwright.ir.diagnostics import DiagnosticError, fault

CANDIDATES_A_SECOND = 5_000
"""Rows and moves for each second that is left; with more HiGHS seldom comes to an end."""

_EXACT = 1e-6
"""Of the least time: within it HiGHS proves."""

_EXACT_BYTES = 1e-10
"""Of the fewest bytes."""

_ABOVE = 1e-3
"""Of a case's bound: how far above it is looked first. Four times as far each time, and no further than `_FAR`."""

_FAR = 1e3

_WORTH = 1e-2
"""Of a case's bound: what two ways differ by for which it is cut in two before it is given to HiGHS."""

_SMALL = 2_000
"""Choices in all: a case with no more is solved though its bound is near enough to what is known."""

_FEW = 20_000
"""Candidates for HiGHS where a case can be cut in two instead."""


COLUMNS_A_SECOND = 50_000
"""For each second that is left, where HiGHS is alone; its program of more would not be written down in time."""


@dataclass
class Outcome:
    """The outcome of solving beside the placement. It may take several problems: one of which the others are cases."""

    bounds_ns: list[float] = field(default_factory=list[float])
    narrow_ns: list[float] = field(default_factory=list[float])
    """Of problems in which statements leave their dimensions whole, since digits did not agree."""
    columns: int = 0
    excluded: dict[tuple[int, ...], ExcludedChoice] = field(default_factory=dict[tuple[int, ...], ExcludedChoice])
    """What was chosen, by the choice, to be excluded where it does not fit after all."""
    shares: dict[str, float] = field(default_factory=dict[str, float])
    """The part on the device of each value that may be shared between the memories."""

    def add(self, bound_ns: float, problem: LayoutProblem) -> None:
        """Another problem's bound."""
        (self.narrow_ns if problem.options.barred_reshapes else self.bounds_ns).append(bound_ns)

    @property
    def bound_ns(self) -> float:
        """A lower bound in nanoseconds of all programs that fit: that of the first problem, or the least of its
        cases."""
        return _bound(self.bounds_ns)

    @property
    def bound_tried_ns(self) -> float:
        """The same of those programs that were looked at where digits did not agree."""
        return _bound([*self.bounds_ns, *self.narrow_ns])


def _bound(bounds_ns: Sequence[float]) -> float:
    if not bounds_ns:
        return -math.inf
    first, *cases = bounds_ns
    return max(first, min(cases, default=first))


MOST_USES = 13
"""With more uses of a value no cases are looked at: each pass of messages parts sets of n uses in 3^n / 2 ways."""


@dataclass(frozen=True)
class ProgramSolve:
    """Chooses the layouts of a problem. `upper_ns` is the time of a program that is known; none slower is looked for.

    `byte_ns` is the price for a byte of weights and state to begin with, `bound_ns` a bound that is known; a bound that
    is lower by the share `enough` than what was found has to do where there is much to choose. `less` is for a function
    how much less memory it may take than the chip has; moments with less alive than the share `detail` of it have no
    row. `end` is in seconds of the monotonic clock. `alone` gives HiGHS the whole problem at once. A share
    of each weight or state value on the host that is named in `saved_ns` may lie on the device instead, where every
    byte of it on a chip saves so many nanoseconds.
    """

    chip: Chip
    constants: Constants
    structure: Structure
    upper_ns: float
    byte_ns: float = 0.0
    bound_ns: float = -math.inf
    enough: float = 0.0
    excluded: Sequence[ExcludedChoice] = ()
    less: Mapping[str, float] = field(default_factory=dict[str, float])
    detail: float = 0.0
    end: float = math.inf
    alone: bool = False
    outcome: Outcome = field(default_factory=Outcome)
    saved_ns: Mapping[str, float] = field(default_factory=dict[str, float])

    def __call__(self, problem: LayoutProblem) -> LayoutSolution:
        """Raises `nothing-better` where there is no choice below the upper bound, or too many for HiGHS; `too-large`
        where HiGHS is alone; an `OutOfWorkError` where a value has more than `MOST_USES` uses."""
        return _ProgramSolver(problem, self).solve()


class _ProgramSolver(TimeSolver):
    def __init__(self, problem: LayoutProblem, wanted: ProgramSolve) -> None:
        effort = Effort(WorkLimit(MOST_ENTRIES if wanted.alone else math.inf), wanted.end)
        super().__init__(problem, wanted.chip, wanted.constants, wanted.structure, MemoryPrices(), effort)
        self.wanted = wanted
        self.edges_of: dict[ValueNode, list[tuple[int, int]]] = {}
        self.moves_of: dict[tuple[int, ...], dict[ValueNode, list[tuple[int, int]]]] = {}
        """Of solutions, by choice, the movements of each value."""
        self.exclusions: dict[tuple[int, ...], ExcludedChoice] = {}

    def solve(self) -> LayoutSolution:
        if self.wanted.alone:
            found = self.whole()
        else:
            uses = (len(entry.node.uses) for entry in self.problem.entries if isinstance(entry, UsesTree))
            if max(uses, default=0) > MOST_USES:
                raise OutOfWorkError
            self.build()
            found = self.least()
        if found is None:
            raise fault("nothing-better", "no layouts that fit take less time", self.problem.program.funcs[0].span)
        self.edges_of = self.moves_of.get(found.choice, {})
        numbered = self.in_groups(found)
        if found.choice in self.exclusions:
            self.wanted.outcome.excluded[numbered.choice] = self.exclusions[found.choice]
        return self.placement(numbered, self.moves, self.unit)

    def whole(self) -> GraphSolution | None:
        """All of it, by HiGHS alone."""
        memory = math.isfinite(self.chip.memory_bytes)
        made = whole_program(self, memory)
        if memory:
            MemoryRows(made, self, self.chip.memory_bytes).add(self.wanted.less, self.wanted.detail)
        for each in self.wanted.excluded:
            exclude(self, made, each)
        solved = made.program.solve(self.effort.end - time.monotonic(), _EXACT)
        bound = math.inf if solved.infeasible else solved.bound
        self.wanted.outcome.add(bound - self.tie * self.most_ties, self.problem)
        found = self.read(made, solved)
        if not memory:  # moves may be in parts: the cheapest are known without them
            self.moves_of.clear()
            self.exclusions.clear()
        return found and replace(found, bound=bound)

    def shared(self) -> dict[int, tuple[float, Floats]]:
        """For the home of each value that may be shared, what a byte on the device saves, and its choices' bytes."""
        made: dict[int, tuple[float, Floats]] = {}
        for node in self.problem.nodes:
            saved = self.wanted.saved_ns.get(node.name) if node.func is None else None
            if saved is not None:
                nbytes = self.whole_bytes(node, node.group.root().codes)
                made[node.home] = saved, nbytes[self.choices[node.home]]
        return made

    def shares(self, made: Formulation) -> dict[int, Linear]:
        """The bytes on a chip of the shares that lie on the device instead of the host, by the home of the value."""
        lines: dict[int, Linear] = {}
        for home, (saved, every) in self.shared().items():
            choices, nbytes = made.choices[home], every[made.kept[home]]
            shares = made.program.columns(-saved * nbytes, integer=False)
            for ends in np.stack([shares, choices], axis=1):
                made.program.row(Linear([ends], [np.array([1.0, -1.0])]), -math.inf, 0.0)
            lines[home] = Linear([shares], [nbytes])
        return lines

    def least(self) -> GraphSolution | None:
        """Case by case until none has a bound below what was found: at first one in another, until there is something,
        then that of the least bound."""
        wanted = self.wanted
        if self.least_kept() > self.chip.memory_bytes:
            wanted.outcome.add(math.inf, self.problem)
            return None
        self.cases = Cases(self, self.chip.memory_bytes, self.shared())
        first = self.cases.first(wanted.byte_ns)
        first.bound = wanted.bound_ns
        best: GraphSolution | None = None
        upper, unsolved, count = wanted.upper_ns, math.inf, 0
        queue = [(first.bound, 0, first)] if self.cases.bounded(first, upper) else []
        dive: Case | None = None
        while (dive or (queue and queue[0][0] < upper * (1 - _EXACT))) and not self.out_of_time():
            case = dive or heapq.heappop(queue)[2]
            dive, following = None, [case]
            if case.bound >= upper * (1 - wanted.enough) and case.choices > _SMALL:
                unsolved = min(unsolved, case.bound)
                continue
            cut = self.cases.cut(case)
            ended = cut is None or cut.worth < _WORTH * case.bound
            if ended:
                found, ended = self.tried(case, upper, _FEW if cut is not None else math.inf)
                if found is not None and found.cost < upper:
                    best, upper = found, found.cost
                if case.above > _FAR or (not ended and cut is None):
                    unsolved, following = min(unsolved, case.bound), []
            if not ended and cut is not None:
                following = [each for each in self.cases.apart(case, cut) if self.cases.bounded(each, upper)]
                # Where bytes cost nothing, there may well be a program at the bound.
                free = [each for each in following if not each.price and each.bound < upper * (1 - _WORTH)]
                dive = min(free or (following if best is None else []), key=lambda each: each.bound, default=None)
            for each in following:
                count += 1
                if each is not dive:
                    heapq.heappush(queue, (each.bound, count, each))
        least = min(unsolved, queue[0][0] if queue else math.inf, dive.bound if dive is not None else math.inf)
        # A bound of the time alone, without what decides between equal times.
        wanted.outcome.add(min(least - self.tie * self.most_ties, upper), self.problem)
        return best

    def tried(self, case: Case, upper: float, most: float) -> tuple[GraphSolution | None, bool]:
        """The solution that HiGHS finds little above the bound of a case, which rises; whether it came to an end. It is
        given no more candidates than `most`."""
        case.above = 4 * case.above or _ABOVE
        limit = min(upper, case.bound * (1 + case.above))
        left = self.candidates(case, limit)
        if left is None:
            case.bound = limit
            return None, True
        seconds = self.effort.end - time.monotonic()
        if left.size > min(most, CANDIDATES_A_SECOND * seconds) or find_spec("ortools") is None:
            return None, False
        made = Formulation(self.graph, left)
        shares = self.shares(made)
        rows = MemoryRows(made, self, self.chip.memory_bytes, list(shares.values()))
        rows.add(self.wanted.less, self.wanted.detail)
        for each in self.wanted.excluded:
            exclude(self, made, each)
        self.wanted.outcome.columns += made.program.size
        seconds = self.effort.end - time.monotonic()
        if seconds <= 0:
            return None, False
        solved = made.program.solve(seconds, _EXACT)
        ended = solved.infeasible or solved.optimal or solved.bound >= limit
        bound = limit if solved.infeasible else solved.bound
        case.bound = max(case.bound, min(bound, limit))
        found, values = self.read(made, solved), solved.values
        if found is not None and values is not None and found.cost < upper:
            for home, line in shares.items():
                share = sum(float(values[columns].sum()) for columns in line.columns)
                self.wanted.outcome.shares[self.problem.variables[home].name] = share
        return found, ended

    def candidates(self, case: Case, upper: float) -> Candidates | None:
        """The candidates that the bounds of a case leave below the time `upper`."""
        choices: list[NDArray[np.bool_]] = []
        for size, values in zip(self.graph.sizes, case.left.values, strict=True):
            mask = np.zeros(size, np.bool_)
            mask[values] = True
            choices.append(mask)
        left: Candidates | None = replace(Candidates.all_of(self.graph), choices=choices)
        for price in (0.0, case.price):
            if left is not None:
                graph = self.cases.priced.graph(price)
                left = narrowed(left, graph, upper, price * self.chip.memory_bytes, self.out_of_time)
        return left

    def read(self, made: Formulation, solved: ColumnValues) -> GraphSolution | None:
        """The choice that the columns say, and which moves."""
        if solved.values is None:
            return None
        choice = tuple(made.chosen(solved.values))
        moves = self.moves_of[choice] = {}
        for f, tree in made.trees.items():
            entry = self.entries[f]
            if isinstance(entry, UsesTree):
                layouts = layouts_of(self, tree)
                ends = made.moved(f, solved.values)
                moves[entry.node] = [(int(layouts[a]), int(layouts[b])) for a, b in ends]
        self.exclusions[choice] = exclusion(self, made, choice, solved.values)
        return GraphSolution(choice, solved.objective, solved.bound, 0)

    def least_kept(self) -> float:
        """The bytes of weights and state at least."""
        kept = [node for node in self.problem.nodes if node.func is None]
        return sum(float(self.device_bytes(node)[self.choices[node.home]].min()) for node in kept)

    def chosen_edges(self, node: ValueNode, costs: Floats, choice: Sequence[int]) -> list[Edge]:
        """As the flow has them."""
        if node in self.edges_of:
            return self.edges_of[node]
        return super().chosen_edges(node, costs, choice)


# ---------------------------------------------------------------- HiGHS alone


def whole_program(solver: Solver, memory: bool) -> Formulation:
    """A solver's whole graph, with nothing ruled out; `memory` says whether moves are to be in rows of memory. Raises
    `too-large` where there is not the time for it."""
    try:
        solver.build()
    except OutOfWorkError:
        raise _too_large(solver, "too many columns to be counted") from None
    graph = solver.graph
    moves = {f: possible_moves(x) for f, x in enumerate(graph.factors) if isinstance(x, TreeFactor)}
    everything = replace(Candidates.all_of(graph), moves=moves)
    seconds = max(0.0, solver.effort.end - time.monotonic())
    if everything.size > COLUMNS_A_SECOND * seconds:
        raise _too_large(solver, f"{everything.size:,} columns, more than it could be given in {seconds:.3g} s")
    return Formulation(graph, everything, memory)


def _too_large(solver: Solver, size: str) -> DiagnosticError:
    said = f"the layouts are an integer program of {size}"
    return fault("too-large", said, solver.problem.program.funcs[0].span, "leave out --solver ortools")


class BytesProgram(Solver):
    """Chooses layouts by bytes received, by HiGHS alone."""

    def solve(self) -> LayoutSolution:
        """Raises `out-of-time` where HiGHS finds nothing, `too-large` where it cannot be given the problem."""
        made = whole_program(self, memory=False)
        # In units of the least difference: what solvers miss by is absolute.
        made.program.costs = [costs / self.unit for costs in made.program.costs]
        solved = made.program.solve(self.effort.end - time.monotonic(), _EXACT_BYTES)
        if solved.infeasible:
            raise self.infeasible()
        if solved.values is None:
            raise fault("out-of-time", "HiGHS found no layouts in the time", self.problem.program.funcs[0].span)
        choice = tuple(made.chosen(solved.values))
        solution = GraphSolution(choice, solved.objective * self.unit, solved.bound * self.unit, 0)
        return self.placement(self.in_groups(solution), self.moves, self.unit)
