"""Layouts found a few mesh axes at a time: quick, good, and without a proof.

First all axes for which the program demands the same are moved together, as if they were one axis. (Axes of one chip
cost nothing anywhere; each is placed alone before the others.) If that is wanted, the axes are then divided into two
groups, and each group is moved together. Then each axis in turn takes what is best for it while the others stay, then
each pair of axes, until no step gains anything (block coordinate descent). Each step is a layout problem of its own,
with few choices for each value, whatever is minimised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.axis_groups import axis_groups
from shardwright.cost.choosing.factors import FORBIDDEN
from shardwright.cost.choosing.layout_problem import Within
from shardwright.cost.choosing.work_limit import OutOfWorkError, WorkLimit
from shardwright.ir.diagnostics import DiagnosticError

if TYPE_CHECKING:
    from shardwright.cost.choosing.factor_graph import GraphSolution
    from shardwright.cost.choosing.layout_problem import LayoutProblem
    from shardwright.cost.choosing.layout_solution import LayoutSolution
    from shardwright.cost.choosing.placement import Solver

States = NDArray[np.int64]
"""What each axis does to each variable: [variables, axes], numbers of `Coding`."""

_ENTRIES = 1 << 22
"""Of a table: with more, branch and bound in place of elimination."""

_AT_ONCE = 5e8
"""Entries of tables that are looked at to choose for all axes at once, some seconds: axes that are demanded differently
have as many layouts as the whole problem."""

_NODES = 8
"""Of branch and bound, for each step."""

_ROUNDS = 6
"""Every round but the last has found something better; they are few."""

_LEAST = 1e-6
"""Of the cost: what is less is not counted as better."""


@dataclass
class Descent:
    """The choices of a solver's problem as they get better: the part that had the best, and what it chose."""

    solver: Solver
    part: Solver | None = None
    solution: GraphSolution | None = None
    first: bool = True
    """True until there is a choice and, where it came in time, an axis had a turn: time does not end this part where a
    choice is needed."""

    def run(self, *, pairs: bool = True, halves: bool = False) -> Descent:
        """Goes down as far as it can, if wanted by pairs of axes too, and first with the axes in two groups."""
        program = self.solver.problem.program
        axes = [i for i, size in enumerate(program.mesh.values()) if size > 1]
        groups, idle = axis_groups(program, 1)[1], self.solver.problem.coding.idle
        single = [i for i in range(len(program.mesh)) if i not in idle and i not in axes]
        begun = self.solver.begun()
        if begun is not None:
            self.first = not self.step(Within(states=begun))
        if self.solution is None and single and axes:
            if (states := self.one_by_one(single)) is not None:
                self.step(Within(groups, frozenset(axes), states))
            else:
                self.require_each(single)
        if self.solution is not None or self.together(groups, [*single, *axes]):
            self.first = self.first and not self.solver.out_of_time()
            for parts in self.halves(axes, groups) if halves else ():
                if not self.solver.out_of_time():
                    self.step(Within(parts))
            for size in (1, 2) if pairs else (1,):
                self.round(list(combinations(axes, size)) if len(axes) > size else [])
        return self

    def halves(self, axes: Sequence[int], alike: Sequence[tuple[int, ...]]) -> list[tuple[tuple[int, ...], ...]]:
        """The ways to part three or more axes into two groups; of those that differ by names of equal axes one."""
        sizes = list(self.solver.problem.program.mesh.values())
        role = {axis: number for number, group in enumerate(alike) for axis in group}
        made: dict[frozenset[tuple[tuple[int, int], ...]], tuple[tuple[int, ...], ...]] = {}
        for count in range(len(axes) - 1) if len(axes) > 2 else ():
            for chosen in combinations(axes[1:], count):
                parts = (axes[0], *chosen), tuple(axis for axis in axes[1:] if axis not in chosen)
                kinds = frozenset(tuple(sorted((role.get(i, -1 - i), sizes[i]) for i in part)) for part in parts)
                made.setdefault(kinds, tuple(part for part in parts if len(part) > 1))
        return list(made.values())

    def together(self, groups: tuple[tuple[int, ...], ...], axes: Sequence[int]) -> bool:
        """All axes at once, those of each group as one; where that is too much, one beside those before it, if demands
        can be met so."""
        try:
            return self.step(Within(groups), WorkLimit(_AT_ONCE))
        except OutOfWorkError:
            states = self.one_by_one(axes[:-1])
            if states is not None and self.step(Within(free=frozenset(axes[-1:]), states=states)):
                return True
            self.require_each(axes)
            return self.step(Within(groups))

    def apart(self) -> LayoutSolution | None:
        """The best choice for the axes of several chips, as if there were no others, and beside it one for each axis of
        one chip, over which nothing costs anything; None where that is not as good, or there are no such axes.

        Raises a `DiagnosticError` where demands cannot be met on some of the axes.
        """
        problem = self.solver.problem
        mesh = list(problem.program.mesh.values())
        axes = [i for i, size in enumerate(mesh) if size > 1]
        single = [i for i in range(len(mesh)) if i not in axes and i not in problem.coding.idle]
        if not single or not axes:
            return None
        part = self.solver.of(self.on(axes), replace(self.solver.effort, start=None))
        least = part.solve()
        codes = [part.coding.encode(least.kinds[variable]) for variable in range(len(problem.variables))]
        states = np.zeros((len(problem.variables), len(mesh)), np.int64)
        states[:, axes] = part.coding.digits(np.array(codes, np.int64))
        if (states := self.one_by_one(single, axes, states)) is None:
            self.require_each(single)
            return None
        found = self.placement if self.step(Within(states=states)) else None
        if found is None or found.solution.cost > least.solution.cost + part.tolerance(part.unit):
            return None
        bound = min(found.solution.cost, least.solution.bound)
        solution = replace(found.solution, bound=bound)
        return replace(found, solution=solution, bound_bytes=least.bound_bytes, shared_edges=least.shared_edges)

    def on(self, axes: Sequence[int], within: Within | None = None) -> LayoutProblem:
        """The problem on these axes of its mesh. Raises a `DiagnosticError` where demands cannot be met on them."""
        problem = self.solver.problem
        options = replace(problem.options, excluded=frozenset())
        if len(axes) < len(problem.program.mesh):  # there what is barred is a part of what may be chosen
            whole = frozenset(each for each in options.barred_reshapes if each[2] is None)
            options = replace(options, barred_reshapes=whole)
        return problem.problems.on(axes).of(options, within or Within())

    def one_by_one(
        self, axes: Sequence[int], before: Sequence[int] = (), states: States | None = None
    ) -> States | None:
        """The states of these axes, chosen one after another: the axes `before` keep their `states`, each further axis
        takes its best beside those already chosen, and later axes do nothing. None if demands cannot be met so."""
        problem = self.solver.problem
        if states is None:
            states = np.zeros((len(problem.variables), len(problem.program.mesh)), np.int64)
        for number in range(len(axes)):
            here = [*before, *axes[: number + 1]]
            within = Within(free=frozenset([len(here) - 1]), states=states[:, here])
            try:
                found = Descent(self.solver.of(self.on(here, within)))
            except DiagnosticError:
                return None
            if not found.take(found.solver) or (now := found.states) is None:
                return None
            states[:, here] = now
        return states

    def require_each(self, axes: Sequence[int]) -> None:
        """Raises a `DiagnosticError` where demands cannot be met on one of these axes alone, and so not on all."""
        for axis in axes:
            part = self.solver.of(self.on([axis]))
            part.build()
            if part.graph.minimize(part.tolerance(part.unit)).bound >= FORBIDDEN / 2:
                raise part.infeasible()

    @property
    def states(self) -> States | None:
        """The best states found; None where no step found any."""
        if self.part is None or self.solution is None:
            return None
        choice = self.part.in_groups(self.solution).choice
        codes = [node.group.root().codes[c] for node, c in zip(self.part.problem.variables, choice, strict=True)]
        return self.part.coding.digits(np.array(codes, np.int64))

    @property
    def placement(self) -> LayoutSolution | None:
        """The same with its movements, nothing proved."""
        if self.part is None or self.solution is None:
            return None
        chosen = replace(self.part.in_groups(self.solution), bound=-math.inf)
        return self.part.placement(chosen, self.part.moves, self.part.unit)

    def round(self, blocks: Sequence[tuple[int, ...]]) -> None:
        """Each of these blocks of axes in turn, until none has found anything better since its last turn."""
        settled = 0
        for turn, block in enumerate(list(blocks) * _ROUNDS):
            if self.solver.out_of_time() and not self.needed:
                return
            settled = 1 if self.step(Within(free=frozenset(block), states=self.states)) else settled + 1
            self.first = self.first and turn + 1 < len(blocks)
            if settled >= len(blocks) or (self.solver.ended() and not self.needed):
                return

    @property
    def needed(self) -> bool:
        """Tells whether time does not matter yet."""
        return self.first and self.solver.effort.needed and not (self.solution and self.solver.limit.exhausted)

    def step(self, within: Within, limit: WorkLimit | None = None) -> bool:
        """Takes the best choices of a part of the problem, where they are better. Raises an `OutOfWorkError` where its
        tables are beyond a limit."""
        problem = self.solver.problem
        try:
            part = self.solver.of(problem.problems.of(problem.options, within))
        except DiagnosticError:  # this part has no choice that goes together
            return False
        part.limit = limit or part.limit
        return self.take(part)

    def take(self, part: Solver) -> bool:
        """The same of a part that is no graph yet."""
        try:
            part.build()
        except DiagnosticError:
            return False
        within = part.problem.within
        known = self.states if within.states is None else within.states
        ended = self.solver.out_of_time if self.solution is None else self.solver.ended
        solution = part.graph.eliminated(_ENTRIES) or part.graph.minimize(
            part.tolerance(part.unit), _NODES, ended, known=lambda: part.numbered(known), patience=0, needed=self.needed
        )
        best = 2 * FORBIDDEN if self.solution is None else self.solution.cost
        if solution.cost >= FORBIDDEN / 2 or solution.cost >= best * (1 - _LEAST):
            return False
        self.part, self.solution = part, solution
        return True
