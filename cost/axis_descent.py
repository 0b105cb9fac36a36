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
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.axis_problems import AxisProblem, Rows, StuckError, axis_problems, entries_of, make_consistent
from shardwright.cost.factor_graph import Solution
from shardwright.cost.factors import FORBIDDEN, arborescence
from shardwright.cost.layout_problem import (
    Entry,
    MadeTree,
    Node,
    PlacementOptions,
    Table,
    UsesTree,
)
from shardwright.cost.layouts import FIRST_DIM, MAX, SUM, Codes, Coding, local_elements, moving_costs
from shardwright.cost.placement import TIE, Placement, place_layouts
from shardwright.cost.program_layouts import repeated_work, reshaped_dims, step_worth
from shardwright.cost.variable_elimination import TooLargeError, eliminate
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.types import ON_DEVICE, Shape, TensorType

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

_ROUNDS = 6
"""Every round but the last has found something better; they are few."""

_MOST_ENTRIES = 1 << 21


class AxisByAxis:
    """Chooses layouts for one program, again and again under other options (`passes.place.place`)."""

    def __init__(self, program: Program) -> None:
        self.program = program
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
        self.trees = [tree for entry in self.problem.entries if (tree := _tree(entry))]
        self.keys, self.extents, self.room = self.digit_table()
        self.found: dict[frozenset[tuple[str, str]], NDArray[np.int64]] = {}

    def __call__(self, program: Program, options: PlacementOptions) -> Placement:
        """Layouts that no axis can better by itself; where an axis gets stuck, those of `place_layouts`.

        Where a reshape more is to be whole than before, what was found then is what is bettered.
        """
        plain = program is self.program and not options.digit_sets and not options.excluded
        try:
            if self.stuck or not plain:
                raise StuckError
            return self.written(self.descended(options.whole_reshapes))
        except StuckError:
            return place_layouts(program, options)

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
        made: dict[int, list[int]] = {}
        for axis, problem in enumerate(self.by_axis):
            made.setdefault(id(problem), []).append(axis)
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
        coding = replace(self.coding, mesh=Mesh(tuple(sizes)))
        turn = _Turn(coding, elsewhere @ self.powers, int(self.powers[axes].sum()), left, self.step_worth)
        trees = [tree for tree in self.trees if turn.is_open(tree[1])]
        turn.see_movements(trees)
        factors = [
            turn.table(entry, *row)
            for entry, row in zip(self.problem.entries, rows, strict=True)
            if row is not None and turn.is_open(row[0])
        ]
        factors += [turn.tree(*tree) for tree in trees]
        try:
            choice, total = eliminate(factors, _MOST_ENTRIES)
        except TooLargeError:
            raise StuckError from None
        if total >= FORBIDDEN / 2:
            raise StuckError
        chosen = [int(some[choice.get(variable, 0)]) for variable, some in enumerate(turn.candidates)]
        return np.array(chosen, np.int64)

    def digit_table(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """For each variable and state the number of the dimension that it splits (a function has digits of its own
        for a dimension that it overrides), -1 where it splits none; the extent of the value there; and the extents of
        the numbered dimensions."""
        own = {func.name: self.program.sizes(func) for func in self.program.funcs}
        overrides = {func.name: {name for name, _ in func.overrides} for func in self.program.funcs}
        whole = self.program.sizes()
        shape = (len(self.problem.variables), self.coding.radix)
        keys, extents = np.full(shape, -1, np.int64), np.ones(shape, np.int64)
        numbers: dict[tuple[str, str], int] = {}
        room: list[int] = []
        for variable, node in enumerate(self.problem.variables):
            for dim in node.shape.dims:
                func = node.func if node.func and dim.name in overrides[node.func] else ""
                if (dim.name, func) not in numbers:
                    numbers[dim.name, func] = len(room)
                    room.append((own[func] if func else whole)[dim.name])
                state = self.coding.number_of_dim(dim.name)
                keys[variable, state], extents[variable, state] = numbers[dim.name, func], dim.size
        return keys, extents, np.array(room, np.int64)

    def fitting(self, axes: list[int], joined: Sequence[int], elsewhere: NDArray[np.int64]) -> Bools:
        """The states that agree with what the others do: extents and digits divide, values are partial in one way."""
        variables = np.arange(len(elsewhere))
        own = self.sizes[axes].prod()
        chips, beside = np.full(len(self.room), own), np.full(self.keys.shape, own)
        for i in joined:
            states = elsewhere[:, i]
            splits = states >= FIRST_DIM
            if i not in axes and splits.any():
                chips[np.unique(self.keys[variables[splits], states[splits]])] *= self.sizes[i]
                beside[variables[splits], states[splits]] *= self.sizes[i]
        allowed = (self.room % chips == 0)[self.keys] & (self.extents % beside == 0)
        allowed[self.keys < 0] = True
        allowed[:, SUM] = (elsewhere != MAX).all(axis=1)
        allowed[:, MAX] = (elsewhere != SUM).all(axis=1)
        return allowed

    # ------------------------------------------------------------ the result

    def written(self, states: NDArray[np.int64]) -> Placement:
        """The placement with these states."""
        codes = states @ self.powers
        known: dict[tuple[int, Shape, object], TensorType] = {}

        def kind(code: int, node: Node) -> TensorType:
            placement = node.type.placement or ON_DEVICE
            key = (code, node.shape, placement)
            if key not in known:
                known[key] = self.coding.decode(code, node.shape, placement)
            return known[key]

        kinds = {variable: kind(int(codes[variable]), node) for variable, node in enumerate(self.problem.variables)}
        trees: dict[int, list[tuple[TensorType, TensorType]]] = {}
        received = steps = 0.0
        for node in self.problem.nodes:
            if node.home < 0:
                continue
            made = int(codes[node.made if node.made >= 0 else node.home])
            home = int(codes[node.home])
            targets = [int(codes[variable]) for _, variable, rigid in node.uses if not rigid]
            trees[id(node)] = []
            for source, wanted in ((made, [home]), (home, targets)):
                layouts = np.array(list(dict.fromkeys([source, *wanted])), np.int64)
                if len(layouts) == 1:
                    continue
                moved, taken = _movements(self.coding, layouts.tobytes(), node.shape)
                costs = np.where(np.isfinite(moved), moved * node.weight + taken * TIE, FORBIDDEN)
                at = {int(code): i for i, code in enumerate(layouts)}
                edges = arborescence(costs, 0, [at[code] for code in wanted])[1]
                received += sum(float(moved[edge]) for edge in edges) * node.weight
                steps += sum(float(taken[edge]) for edge in edges)
                if wanted is targets:
                    trees[id(node)] = [(kind(int(layouts[a]), node), kind(int(layouts[b]), node)) for a, b in edges]
        solution = Solution(tuple(int(code) for code in codes), received, 0.0, 0)
        return Placement(
            self.problem.nodes, self.problem.defined, kinds, self.problem.by_use, trees, received, solution, steps
        )


Tree = tuple[Node, list[int], tuple[bool, ...]]
"""A value, the variables of its movements, the one that they set out from first, and which of the others stay."""


@dataclass
class _Turn:
    """The choices of one axis, or of some that do the same: `base` has the codes of what the others do, `power` is what
    one state counts in a code.

    `candidates` has for each variable the states that are left.
    """

    coding: Coding
    base: Codes
    power: int
    domain: Bools
    step_worth: float
    candidates: list[NDArray[np.int64]] = field(init=False)
    codes: list[Codes] = field(init=False)
    layouts: dict[Shape, Codes] = field(default_factory=dict[Shape, Codes], init=False)
    moves: dict[Shape, tuple[Floats, Floats]] = field(default_factory=dict[Shape, tuple[Floats, Floats]], init=False)
    """Bytes and steps between the layouts that values of a shape may have; what is forbidden has infinite bytes."""
    quantum: float = field(default=1.0, init=False)
    priced: dict[tuple[Shape, float], Floats] = field(default_factory=dict[tuple[Shape, float], Floats], init=False)
    """Costs of these movements, for values that count so often."""

    def __post_init__(self) -> None:
        of, states = np.nonzero(self.domain)
        ends = np.cumsum(self.domain.sum(axis=1))[:-1]
        self.candidates = np.split(states.astype(np.int64), ends)
        self.codes = np.split(self.base[of] + states * self.power, ends)

    def is_open(self, variables: Sequence[int]) -> bool:
        return any(len(self.candidates[variable]) > 1 for variable in variables)

    def see_movements(self, trees: Sequence[Tree]) -> None:
        """Prices the movements of these trees, and finds the least difference in bytes between two of them."""
        by_shape: dict[Shape, list[Codes]] = {}
        for node, variables, _ in trees:
            by_shape.setdefault(node.shape, []).extend(self.codes[variable] for variable in variables)
        least = 0
        for shape, groups in by_shape.items():
            codes = self.layouts[shape] = np.unique(np.concatenate(groups))
            received, steps = _movements(self.coding, codes.tobytes(), shape)
            whole = received[np.isfinite(received)].astype(np.int64)
            least = int(np.gcd.reduce(np.append(whole, least)))
            digits = self.coding.digits(codes)
            # Addends are made in full on every chip, which costs work though nothing is received.
            addends = ((digits[:, None, :] != digits[None, :, :]) & (digits[None, :, :] == SUM)).any(axis=2)
            made = local_elements(self.coding, codes, shape)[None, :] / self.step_worth
            self.moves[shape] = received, steps + np.where(addends, made, 0.0)
        self.quantum = float(max(least, 1))

    def table(self, entry: Entry, variables: list[int], rows: NDArray[np.int64]) -> tuple[tuple[int, ...], Floats]:
        """An operation's rows as an array over its variables that have a choice."""
        costs = np.zeros(len(rows))
        if isinstance(entry, Table) and entry.statement is not None:
            codes = [self.base[variable] + rows[:, k] * self.power for k, variable in enumerate(variables)]
            work = repeated_work(self.coding, self.step_worth, entry.statement, entry.nodes, codes)
            costs = work * (self.quantum * TIE)
        columns: dict[int, int] = {}
        fits = np.ones(len(rows), np.bool_)
        for k, variable in enumerate(variables):
            if len(self.candidates[variable]) > 1:
                fits &= rows[:, k] == rows[:, columns.setdefault(variable, k)]
        shape = [len(self.candidates[variable]) for variable in columns]
        places = [np.searchsorted(self.candidates[variable], rows[fits, k]) for variable, k in columns.items()]
        made = np.full(math.prod(shape), FORBIDDEN)
        np.minimum.at(made, np.ravel_multi_index(places, shape), costs[fits])
        return tuple(columns), made.reshape(shape)

    def tree(self, node: Node, variables: list[int], rigid: tuple[bool, ...]) -> tuple[tuple[int, ...], Floats]:
        """The costs of a value's movements as an array over its variables that have a choice."""
        layouts = self.layouts[node.shape]
        places = [np.searchsorted(layouts, self.codes[variable]) for variable in variables]
        if rigid == (False,):
            made = self.costs(node, *places)
        else:
            at = np.unique(np.concatenate(places))
            if math.prod(map(len, places)) * len(at) > _MOST_ENTRIES:
                raise StuckError
            made = _tree_costs(self.costs(node, at, at), [np.searchsorted(at, place) for place in places], rigid)
        chosen = tuple(variable for variable in variables if len(self.candidates[variable]) > 1)
        return chosen, made.reshape([len(self.candidates[variable]) for variable in chosen])

    def costs(self, node: Node, sources: NDArray[np.intp], targets: NDArray[np.intp]) -> Floats:
        """Of movements of a value between layouts, numbered as those of its shape."""
        key = node.shape, node.weight
        if key not in self.priced:
            received, steps = self.moves[node.shape]
            finite = np.isfinite(received)
            counted = np.where(finite, received, 0.0) * node.weight + steps * (self.quantum * TIE)
            self.priced[key] = np.where(finite, counted, FORBIDDEN)
        return self.priced[key][sources[:, None], targets]


def _tree_costs(moves: Floats, places: Sequence[NDArray[np.intp]], rigid: Sequence[bool]) -> Floats:
    """For each combination of home and uses the cost of the cheapest arborescence, as in `cost.factors`; uses that are
    rigid cost nothing at home, and are forbidden elsewhere."""
    home, *uses = places
    moving = [i for i, stays in enumerate(rigid) if not stays]
    n = 1 << len(moving)
    reached: list[Floats] = [np.zeros((len(moves), *(1 for _ in uses)))] * n  # [layout set out from, uses...]
    for subset in range(1, n):
        members = {i for bit, i in enumerate(moving) if subset >> bit & 1}
        if len(members) == 1:
            (only,) = members
            shape = [len(moves), *(len(use) if i == only else 1 for i, use in enumerate(uses))]
            reached[subset] = moves[:, uses[only]].reshape(shape)
            continue
        low = subset & -subset
        parts = [part for part in range(low, subset) if part & low and not part & ~subset]
        served: Floats = np.minimum.reduce([reached[part] + reached[subset ^ part] for part in parts])
        flat = served.reshape(len(moves), -1)
        reached[subset] = (moves[:, :, None] + flat[None]).min(axis=1).reshape(served.shape)
    made = reached[-1][home]
    for i, stays in enumerate(rigid):
        if stays:
            shape = [len(home), *(len(use) if j == i else 1 for j, use in enumerate(uses))]
            made = made + np.where(home[:, None] == uses[i][None, :], 0.0, FORBIDDEN).reshape(shape)
    return np.minimum(made, FORBIDDEN)


@lru_cache(maxsize=1 << 13)
def _movements(coding: Coding, codes: bytes, shape: Shape) -> tuple[Floats, Floats]:
    return moving_costs(coding, np.frombuffer(codes, np.int64), shape)


def _tree(entry: Entry) -> Tree | None:
    match entry:
        case MadeTree(node):
            return node, [node.made, node.home], (False,)
        case UsesTree(node) if node.uses:
            return node, [node.home, *(v for _, v, _ in node.uses)], tuple(rigid for _, _, rigid in node.uses)
        case _:
            return None
