"""The layouts with the least predicted time under a chip's memory, by an integer program (`TimeSolver` has no rows of
memory, and prices what a loop hides).

First what the bounds of message passing rule out against a program known already is left out; then HiGHS has the rest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.chips import Chip
from shardwright.cost.constants import Constants
from shardwright.cost.factor_graph import Solution
from shardwright.cost.factors import TableFactor
from shardwright.cost.kernel_shares import Structure
from shardwright.cost.layout_problem import LayoutProblem, MadeTree, Node, Table, UsesTree
from shardwright.cost.layout_program.candidates import Candidates, narrowed
from shardwright.cost.layout_program.columns import Linear
from shardwright.cost.layout_program.formulation import Formulation, Tree, costs_of
from shardwright.cost.layout_program.memory_rows import MemoryRows
from shardwright.cost.placement import Placement
from shardwright.cost.time_placement import Floats, Prices, TimeSolver
from shardwright.ir.diagnostics import fault

CANDIDATES_A_SECOND = 5_000
"""Rows and moves for each second that is left; with more HiGHS seldom comes to an end."""

_EXACT = 1e-6
"""Of the least time: within it HiGHS proves."""


@dataclass(frozen=True)
class Excluded:
    """Choices and moves that together may not be made again: variables with their layouts' codes, and of trees whose
    moves the choices leave open, the moves by tree, leaves and codes."""

    choices: tuple[tuple[int, int], ...]
    moves: tuple[tuple[int, int, int, int], ...] = ()


@dataclass
class Outcome:
    """What solving said beside the placement: a lower bound in nanoseconds of all programs that fit."""

    bound_ns: float = -math.inf
    solved: bool = False
    """Whether HiGHS, or the bounds before it, came to an end."""
    columns: int = 0
    excluded: Excluded | None = None
    """What was chosen, to be excluded where it does not fit after all."""


@dataclass(frozen=True)
class ProgramSolve:
    """Chooses the layouts of a problem. `upper_ns` is the time of a program that is known; none slower is looked for.

    `prices` are those whose bounds rule out candidates. `less` is for a function how much less memory it may take than
    the chip has; moments with less alive than the share `detail` of it have no row. `end` is in seconds of the
    monotonic clock.
    """

    chip: Chip
    constants: Constants
    structure: Structure
    upper_ns: float
    prices: Sequence[Prices] = (Prices(),)
    excluded: Sequence[Excluded] = ()
    less: Mapping[str, float] = field(default_factory=dict[str, float])
    detail: float = 0.0
    end: float = math.inf
    outcome: Outcome = field(default_factory=Outcome)

    def __call__(self, problem: LayoutProblem) -> Placement:
        """Raises `nothing-better` where there is no choice below the upper bound, or too many for HiGHS."""
        return _ProgramSolver(problem, self).solve()


class _ProgramSolver(TimeSolver):
    def __init__(self, problem: LayoutProblem, wanted: ProgramSolve) -> None:
        super().__init__(problem, wanted.chip, wanted.constants, wanted.structure, Prices(), wanted.end)
        self.wanted = wanted
        self.edges_of: dict[int, list[tuple[int, int]]] = {}

    def solve(self) -> Placement:
        self.build()
        found = self.by_highs()
        if found is None:
            raise fault("nothing-better", "no layouts that fit take less time", self.problem.program.funcs[0].span)
        return self.placement(self.in_groups(found), self.moves, self.unit)

    def priced(self, prices: Prices) -> TimeSolver:
        """The graph of the same problem under prices."""
        made = TimeSolver(self.problem, self.chip, self.constants, self.structure, prices, self.end)
        made.moves = self.moves
        made.build()
        return made

    def candidates(self) -> Candidates | None:
        left: Candidates | None = Candidates.all_of(self.graph)
        for prices in self.wanted.prices:
            graph = self.graph if prices == Prices() else self.priced(prices).graph
            room = prices.byte_ns * self.chip.memory_bytes
            left = narrowed(left, graph, self.wanted.upper_ns, room, self.out_of_time)
            if left is None:
                break
        return left

    def by_highs(self) -> Solution | None:
        outcome = self.wanted.outcome
        if self.least_kept() > self.chip.memory_bytes:
            outcome.bound_ns, outcome.solved = math.inf, True
            return None
        left = self.candidates()
        if left is None:
            outcome.bound_ns = max(outcome.bound_ns, self.wanted.upper_ns)
            outcome.solved = True
            return None
        outcome.bound_ns = max(outcome.bound_ns, left.bound)
        if left.size > CANDIDATES_A_SECOND * (self.end - time.monotonic()):
            return None
        made = Formulation(self.graph, left)
        self.add_overlap(made)
        MemoryRows(made, self, self.chip.memory_bytes).add(self.wanted.less, self.wanted.detail)
        for each in self.wanted.excluded:
            self.exclude(made, each)
        outcome.columns = made.program.size
        seconds = self.end - time.monotonic()
        if seconds <= 0:
            return None
        solved = made.program.solve(seconds, _EXACT)
        if solved.infeasible:
            outcome.bound_ns = max(outcome.bound_ns, self.wanted.upper_ns)
            outcome.solved = True
            return None
        outcome.solved = solved.optimal or solved.bound >= self.wanted.upper_ns
        if math.isfinite(solved.bound):
            outcome.bound_ns = max(outcome.bound_ns, min(solved.bound, self.wanted.upper_ns))
        if solved.values is None:
            return None
        choice = made.chosen(solved.values)
        for f, tree in made.trees.items():
            entry = self.entries[f]
            assert isinstance(entry, UsesTree | MadeTree)
            if isinstance(entry, UsesTree):
                layouts = self.layouts(tree)
                self.edges_of[id(entry.node)] = [
                    (int(layouts[a]), int(layouts[b])) for a, b in made.moved(f, solved.values)
                ]
        outcome.excluded = self.exclusion(made, choice, solved.values)
        return Solution(tuple(choice), solved.objective, outcome.bound_ns, 0)

    def least_kept(self) -> float:
        """The bytes of weights and state at least."""
        kept = [node for node in self.problem.nodes if node.func is None]
        return sum(float(self.device_bytes(node)[self.choices[node.home]].min()) for node in kept)

    def edges(self, node: Node, costs: Floats, home: int, targets: Sequence[int]) -> list[tuple[int, int]]:
        """As the flow has them."""
        if id(node) in self.edges_of:
            return self.edges_of[id(node)]
        return super().edges(node, costs, home, targets)

    # ------------------------------------------------------------ what loops hide

    def add_overlap(self, made: Formulation) -> None:
        """For each body of a loop the time of the weights' movements that its kernels are too short to hide."""
        names = {node.func or "" for node in self.problem.nodes}
        seen = self.priced(Prices(seen=dict.fromkeys(names, 1.0)))
        shown: dict[int, Linear] = {}
        for f, entry in enumerate(self.entries):
            if isinstance(entry, UsesTree) and f in made.trees:
                node = entry.node
                if node.name in self.weights and node.loops:
                    more = seen.tree_costs(node, self.moves, 1.0) - self.tree_costs(node, self.moves, 1.0)
                    layouts = self.layouts(made.trees[f])
                    line = costs_of(made.trees[f], more[np.ix_(layouts, layouts)])
                    _extend(shown.setdefault(id(node.loops[-1]), Linear()), line)
        for f, entry in enumerate(self.entries):
            if isinstance(entry, Table) and entry.statement is not None:
                body = self.structure.bodies[id(entry.statement)]
                if body in shown:
                    here, there = self.graph.factors[f], seen.graph.factors[f]
                    assert isinstance(here, TableFactor)
                    assert isinstance(there, TableFactor)
                    numbers, columns = made.rows[f]
                    shown[body].add(columns, (there.costs - here.costs)[numbers])
        for line in shown.values():
            exposed = made.program.columns(np.ones(1), integer=False, upper=math.inf)
            line.add(exposed, -1.0)
            made.program.row(line, -math.inf, 0.0)

    # ------------------------------------------------------------ what does not fit after all

    def exclusion(self, made: Formulation, choice: Sequence[int], values: Floats) -> Excluded:
        """What was chosen."""
        chosen: list[tuple[int, int]] = []
        for variable, domain in enumerate(self.choices):
            if len(domain) > 1:
                codes = self.problem.variables[variable].group.root().codes
                chosen.append((variable, int(codes[domain[choice[variable]]])))
        moves: list[tuple[int, int, int, int]] = []
        for f, tree, codes in self.open_trees(made):
            for arcs, moving in tree.moving():
                at = np.flatnonzero(moving & (values[arcs.columns] > 0.5))
                ends = zip(codes[arcs.source[at]], codes[arcs.target[at]], strict=True)
                moves.extend((f, arcs.subset, int(a), int(b)) for a, b in ends)
        return Excluded(tuple(chosen), tuple(moves))

    def open_trees(self, made: Formulation) -> Iterator[tuple[int, Tree, NDArray[np.int64]]]:
        """Trees, with their numbers and the codes of their layouts, whose moves the choices leave open."""
        for f, tree in made.trees.items():
            if len(tree.leaves) > 1:
                yield f, tree, self.problem.variables[tree.factor.variables[0]].group.root().codes[self.layouts(tree)]

    def layouts(self, tree: Tree) -> NDArray[np.int64]:
        """The layouts of a tree by their numbers in the group."""
        return np.unique(np.concatenate([self.choices[v] for v in tree.factor.variables]))

    def exclude(self, made: Formulation, each: Excluded) -> None:
        """At least one of the choices, or of the moves, is another one."""
        line = Linear()
        for variable, code in each.choices:
            codes = self.problem.variables[variable].group.root().codes[self.choices[variable][made.kept[variable]]]
            at = np.flatnonzero(codes == code)
            if not len(at):
                return
            line.add(made.choices[variable][at], 1.0)
        trees = {f: (tree, codes) for f, tree, codes in self.open_trees(made)}
        for f, subset, source, target in each.moves:
            tree, codes = trees[f]
            for arcs in tree.arcs:
                if arcs.subset == subset:
                    at = np.flatnonzero((codes[arcs.source] == source) & (codes[arcs.target] == target))
                    line.add(arcs.columns[at], 1.0)
        made.program.row(line, -math.inf, len(each.choices) + len(each.moves) - 1.0)


def _extend(line: Linear, other: Linear) -> None:
    line.columns.extend(other.columns)
    line.coefficients.extend(other.coefficients)
