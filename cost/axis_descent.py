"""Layouts found one mesh axis at a time: quick, and without a proof.

`cost.placement` chooses what all axes do together, among products of the choices that each of them has. Here each axis
in turn takes what is best for it while the others stay as they are, exactly, by variable elimination, until none can
do better by itself (block coordinate descent). First, axes that are demanded alike do the same, as if they were one;
what has not had its turn splits nothing. Objective and ties are those of `cost.placement`: bytes received, then steps,
then repeated work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.axis_problems import AxisProblem, Rows, StuckError, axis_problems, entries_of, make_consistent
from shardwright.cost.axis_turn import MOST_ENTRIES, ShapeNumbers, Turn, trees_of
from shardwright.cost.factor_graph import Solution
from shardwright.cost.factors import FORBIDDEN, arborescence
from shardwright.cost.layout_problem import Node, PlacementOptions, Table
from shardwright.cost.layouts import FIRST_DIM, MAX, SOFTMAX, SUM, Codes, Coding, moving_costs_of_groups
from shardwright.cost.placement import TIE, Placement
from shardwright.cost.program_layouts import reshaped_dims, step_worth
from shardwright.cost.variable_elimination import TooLargeError, eliminate
from shardwright.ir.digit_orders import splitting_axes
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.types import ON_DEVICE, Shape, TensorType

Bools = NDArray[np.bool_]

_ROUNDS = 6
"""Every round but the last has found something better; they are few."""


class AxisByAxis:
    """Chooses layouts for one program, again and again under other options (`passes.place.place`)."""

    def __init__(self, program: Program, *, coarse: bool = False) -> None:
        """`coarse` counts the uses of a value apart where together they would be too many."""
        self.program = program
        self.coarse = coarse
        self.coding = Coding(program.mesh, tuple(dim.name for dim in program.dims))
        self.names = program.mesh.axes
        self.sizes = np.array(list(program.mesh.values()), np.int64)
        self.powers = self.coding.radix ** np.arange(len(self.names), dtype=np.int64)
        self.step_worth = step_worth(program)
        self.stuck = False
        try:
            self.by_axis = list(axis_problems(program, self.coding))
        except StuckError:
            self.stuck = True
            return
        if not self.by_axis:  # on a mesh of one chip nothing is to be split
            self.stuck = True
            return
        self.problem = self.by_axis[0].problem
        self.touching = entries_of(self.problem)
        self.trees = trees_of(self.problem)
        self.shapes = ShapeNumbers(self.problem)
        self.keys, self.extents, self.room, self.fixed = self.digit_table()
        ends = [node.shape.names[-1:] for node in self.problem.variables]
        self.last = np.array([self.coding.number_of_dim(end[0]) if end else -1 for end in ends], np.int64)
        """The state in which each variable's last dimension is split."""
        one = [problem.domain.sum(axis=1) == 1 for problem in self.by_axis]
        demanded = [np.where(only, p.domain.argmax(axis=1), 0) for only, p in zip(one, self.by_axis, strict=True)]
        self.demanded = np.stack(demanded, axis=1)
        """What each axis is demanded to do to each variable, 0 where it has a choice: [variables, axes]."""
        self.found: dict[frozenset[tuple[str, str]], NDArray[np.int64]] = {}

    def __call__(self, program: Program, options: PlacementOptions) -> Placement:
        """Layouts that no axis can better by itself. Raises a `StuckError` where an axis has no choice.

        Where a reshape more is to be whole than before, what was found then is what is bettered.
        """
        if self.stuck or program is not self.program or options.digit_sets or options.excluded:
            raise StuckError
        return self.written(self.descended(options.whole_reshapes))

    def descended(self, whole: frozenset[tuple[str, str]]) -> NDArray[np.int64]:
        """What each axis does to each variable (rows), after as many rounds as better it."""
        before = next((self.found[whole - {one}] for one in sorted(whole) if whole - {one} in self.found), None)
        n, shape = len(self.names), (len(self.problem.variables), len(self.names))
        states = np.zeros(shape, np.int64) if before is None else before.copy()
        rows = [self.without(made, whole) for made in self.by_axis]
        joined: list[int] = list(range(n)) if before is not None else []
        for axes in self.alike() if before is None else []:
            joined += axes
            states[:, axes] = self.improved(states, axes, joined, *rows[axes[0]])[:, None]
        settled = 0
        for turn in range(_ROUNDS * n):
            axis = turn % n
            now = self.improved(states, [axis], joined, *rows[axis])
            settled = settled + 1 if (now == states[:, axis]).all() else 1
            states[:, axis] = now
            if settled >= n:
                break
        self.found[whole] = states
        return states

    def alike(self) -> list[list[int]]:
        """The axes that are demanded alike, together."""
        made: dict[AxisProblem, list[int]] = {}
        for axis, problem in enumerate(self.by_axis):
            made.setdefault(problem, []).append(axis)
        return list(made.values())

    def without(self, made: AxisProblem, whole: frozenset[tuple[str, str]]) -> tuple[list[Rows | None], Bools]:
        """What is left of an axis's rows and states where these reshapes leave their dimensions whole."""
        rows, domain = list(made.rows), made.domain.copy()
        dirty: set[int] = set()
        for i, (entry, row) in enumerate(zip(self.problem.entries, rows, strict=True)):
            if not whole or row is None or not isinstance(entry, Table) or entry.statement is None:
                continue
            if not any((entry.nodes[-1].func, value.name) in whole for value in entry.statement.results):
                continue
            keep = np.ones(len(row[1]), np.bool_)
            for k, node in enumerate(entry.nodes):
                for name in reshaped_dims(entry.statement.operation):
                    if name in node.shape:
                        keep &= row[1][:, k] != self.coding.number_of_dim(name)
            rows[i] = row[0], row[1][keep]
            dirty.add(i)
        make_consistent(self.problem.entries, rows, domain, self.touching, dirty)
        return rows, domain

    # ------------------------------------------------------------ one axis

    def improved(
        self, states: NDArray[np.int64], axes: list[int], joined: Sequence[int], rows: list[Rows | None], domain: Bools
    ) -> NDArray[np.int64]:
        """The best states of these axes, which do the same, for each variable, while those of the others stay."""
        sizes = [(name, size if i in joined else 1) for i, (name, size) in enumerate(self.program.mesh.items())]
        elsewhere = states.copy()
        elsewhere[:, axes] = 0
        left = domain & self.fitting(axes, joined, elsewhere)
        dirty = {
            entry for variable in np.flatnonzero((left != domain).any(axis=1)) for entry in self.touching[variable]
        }
        rows = list(rows)
        make_consistent(self.problem.entries, rows, left, self.touching, dirty)
        if not left.any(axis=1).all():
            raise StuckError
        coding = replace(self.coding, mesh=Mesh(tuple(sizes)))
        turn = Turn(coding, self.shapes, elsewhere, axes, left, self.step_worth, self.coarse)
        tables = [(entry, *row) for entry, row in zip(self.problem.entries, rows, strict=True) if row is not None]
        try:
            choice, total = eliminate(turn.factors(tables, self.trees), MOST_ENTRIES)
        except TooLargeError:
            raise StuckError from None
        if total >= FORBIDDEN / 2:
            raise StuckError
        return turn.chosen(choice)

    def digit_table(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], Bools]:
        """For each variable and state the number of the dimension that it splits (a function has digits of its own
        for a dimension that it overrides), -1 where it splits none; the extent of the value there; the extents of
        the numbered dimensions; and which axes are demanded somewhere to split each of these."""
        demanded = splitting_axes(self.program)
        own = {func.name: self.program.sizes(func) for func in self.program.funcs}
        overrides = {func.name: {name for name, _ in func.overrides} for func in self.program.funcs}
        whole = self.program.sizes()
        shape = (len(self.problem.variables), self.coding.radix)
        keys, extents = np.full(shape, -1, np.int64), np.ones(shape, np.int64)
        numbers: dict[tuple[str, str], int] = {}
        room: list[int] = []
        fixed: list[list[bool]] = []
        for variable, node in enumerate(self.problem.variables):
            for dim in node.shape.dims:
                func = node.func if node.func and dim.name in overrides[node.func] else ""
                if (dim.name, func) not in numbers:
                    numbers[dim.name, func] = len(room)
                    room.append((own[func] if func else whole)[dim.name])
                    fixed.append([axis in demanded.get((dim.name, func or None), {}) for axis in self.names])
                state = self.coding.number_of_dim(dim.name)
                keys[variable, state] = number = numbers[dim.name, func]
                extents[variable, state] = math.gcd(dim.size, room[number])
        return keys, extents, np.array(room, np.int64), np.array(fixed, np.bool_).reshape(-1, len(self.names))

    def fitting(self, axes: list[int], joined: Sequence[int], elsewhere: NDArray[np.int64]) -> Bools:
        """The states that agree with what the others do: extents and digits divide, values are partial in one way.

        The axes that are demanded to split a dimension may be more than divide it; none is then added to them.
        """
        variables = np.arange(len(elsewhere))
        waiting = [i for i in range(len(self.names)) if i not in joined and i not in axes]
        elsewhere = elsewhere.copy()
        elsewhere[:, waiting] = self.demanded[:, waiting]
        own = self.sizes[axes].prod()
        chips, beside = np.full(len(self.room), own), np.full(self.keys.shape, own)
        demanded: Bools = np.all(self.fixed[:, axes], axis=1)
        for i in (*joined, *waiting):
            states = elsewhere[:, i]
            splits = states >= FIRST_DIM
            if i not in axes and splits.any():
                split = np.unique(self.keys[variables[splits], states[splits]])
                chips[split] *= self.sizes[i]
                demanded[split] &= self.fixed[split, i]
                beside[variables[splits], states[splits]] *= self.sizes[i]
        allowed = ((self.room % chips == 0) | demanded)[self.keys] & (self.extents % beside == 0)
        allowed[self.keys < 0] = True
        partial = [(elsewhere == way).any(axis=1) for way in (SUM, MAX, SOFTMAX)]
        for i, way in enumerate((SUM, MAX, SOFTMAX)):
            allowed[:, way] = ~(partial[i - 1] | partial[i - 2])
        allowed[:, SOFTMAX] &= ~(elsewhere == self.last[:, None]).any(axis=1)
        allowed[variables[partial[2]], self.last[partial[2]]] = False
        return allowed

    # ------------------------------------------------------------ the result

    def written(self, states: NDArray[np.int64]) -> Placement:
        """The placement with these states. Raises a `StuckError` where a movement between them cannot be."""
        codes = states @ self.powers
        known: dict[tuple[int, Shape, object], TensorType] = {}

        def kind(code: int, node: Node) -> TensorType:
            placement = node.type.placement or ON_DEVICE
            key = (code, node.shape, placement)
            if key not in known:
                known[key] = self.coding.decode(code, node.shape, placement)
            return known[key]

        kinds = {variable: kind(int(codes[variable]), node) for variable, node in enumerate(self.problem.variables)}
        trees: dict[Node, list[tuple[TensorType, TensorType]]] = {}
        moving: list[tuple[Node, Codes, bool]] = []
        for node in self.problem.nodes:
            if node.home < 0:
                continue
            trees[node] = []
            made, home = node.made if node.made >= 0 else node.home, node.home
            uses = [variable for _, variable, rigid in node.uses if not rigid]
            for variables, to_uses in (([made, home], False), ([home, *uses], True)):
                layouts = list(dict.fromkeys(codes[variables].tolist()))
                if len(layouts) > 1:
                    moving.append((node, np.array(layouts, np.int64), to_uses))
        costs = moving_costs_of_groups(self.coding, [(layouts, node.shape) for node, layouts, _ in moving])
        received = steps = 0.0
        for (node, layouts, to_uses), (moved, taken) in zip(moving, costs, strict=True):
            ranked = np.where(np.isfinite(moved), moved * node.weight + taken * TIE, FORBIDDEN)
            least, edges = arborescence(ranked, 0, range(1, len(layouts)))
            if least >= FORBIDDEN / 2:
                raise StuckError
            received += sum(float(moved[edge]) for edge in edges) * node.weight
            steps += sum(float(taken[edge]) for edge in edges)
            if to_uses:
                trees[node] = [(kind(int(layouts[a]), node), kind(int(layouts[b]), node)) for a, b in edges]
        solution = Solution(tuple(int(code) for code in codes), received, 0.0, 0)
        return Placement(
            self.problem.nodes, self.problem.defined, kinds, self.problem.by_use, trees, received, solution, steps, None
        )
