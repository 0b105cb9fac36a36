"""The choices of one mesh axis, while the others do what they do, as factors for `cost.variable_elimination`.

Each operation becomes a table over the states that the axis can have at its operands and results, each value a table of
what its movements cost. Objective and ties are those of `cost.placement`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.axis_problems import StuckError
from shardwright.cost.factors import FORBIDDEN
from shardwright.cost.layout_problem import Entry, LayoutProblem, MadeTree, Node, Table, UsesTree
from shardwright.cost.layouts import FIRST_DIM, Coding, addends_made, moving_costs_of_groups
from shardwright.cost.placement import TIE
from shardwright.cost.program_layouts import repeated_work
from shardwright.ir.types import Shape

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]

Factor = tuple[tuple[int, ...], Floats]
"""Variables, each once, and costs with an axis for each of them."""

MOST_ENTRIES = 1 << 21
"""Of a table; with more an axis is stuck."""


@dataclass(frozen=True)
class Tree:
    """A value, the variables of its movements, the one that they set out from first, and which of the others stay."""

    node: Node
    variables: tuple[int, ...]
    rigid: tuple[bool, ...]


def trees_of(problem: LayoutProblem) -> list[Tree]:
    """All movements that a problem is to choose."""
    made: list[Tree] = []
    for entry in problem.entries:
        match entry:
            case MadeTree(node):
                made.append(Tree(node, (node.made, node.home), (False,)))
            case UsesTree(node) if node.uses:
                uses = tuple(variable for _, variable, _ in node.uses)
                made.append(Tree(node, (node.home, *uses), tuple(stays for _, _, stays in node.uses)))
            case _:
                pass
    return made


class ShapeNumbers:
    """The shapes of a problem's values: `of` has for each variable the number of its shape, `elements` how many its
    value has."""

    def __init__(self, problem: LayoutProblem) -> None:
        known: dict[Shape, int] = {}
        self.of = np.array([known.setdefault(node.shape, len(known)) for node in problem.variables], np.int64)
        self.shapes = tuple(known)
        self.elements = np.array([float(shape.elements) for shape in known])[self.of]


class Turn:
    """The turn of some axes that do the same.

    The others have the states `elsewhere`: [variables, axes]. `domain` has what these axes may do: [variables, states].
    The mesh of `coding` is of one chip along the axes that have not had a turn.
    """

    def __init__(
        self,
        coding: Coding,
        shapes: ShapeNumbers,
        elsewhere: Numbers,
        axes: Sequence[int],
        domain: Bools,
        worth: float,
        coarse: bool = False,
    ) -> None:
        powers = coding.radix ** np.arange(len(coding.mesh), dtype=np.int64)
        sizes = np.array(list(coding.mesh.values()), np.int64)
        self.coding = coding
        self.shapes = shapes
        self.domain = domain
        self.step_worth = worth
        self.coarse = coarse
        self.base = elsewhere @ powers
        """The codes of what the others do."""
        self.power = int(powers[list(axes)].sum())
        """What one state counts in a code."""
        self.counts = domain.sum(axis=1)
        self.open: list[bool] = (self.counts > 1).tolist()
        """Whether there is a choice for a variable."""
        self.number = domain.cumsum(axis=1) - 1
        """Of each state among those left to a variable."""
        own = np.where(np.arange(coding.radix) >= FIRST_DIM, sizes[list(axes)].prod(), 1)
        others = np.where(elsewhere >= FIRST_DIM, sizes, 1).prod(axis=1)
        self.held = shapes.elements[:, None] / (others[:, None] * own)
        """Elements that a chip has of each value in each state."""

    def is_open(self, variables: Sequence[int]) -> bool:
        return any(self.open[variable] for variable in variables)

    def factors(self, tables: Sequence[tuple[Entry, Sequence[int], Numbers]], trees: Sequence[Tree]) -> list[Factor]:
        """Those of the operations' rows, and those of the values' movements, that have anything to choose."""
        open_trees = [tree for tree in trees if self.is_open(tree.variables)]
        moves = _Moves(self, open_trees)
        made = [self.table(*table, moves.quantum) for table in tables if self.is_open(table[1])]
        return made + [factor for tree in open_trees for factor in moves.factors(tree)]

    def table(self, entry: Entry, variables: Sequence[int], rows: Numbers, quantum: float) -> Factor:
        """An operation's rows as an array over its variables that have a choice."""
        costs = np.zeros(len(rows))
        if isinstance(entry, Table) and entry.statement is not None:
            statement = entry.statement

            def held(slot: int) -> Floats:
                return self.held[variables[slot], rows[:, slot]]

            costs = repeated_work(self.step_worth, statement, entry.nodes, held) * (quantum * TIE)
        columns: dict[int, int] = {}
        fits = np.ones(len(rows), np.bool_)
        for k, variable in enumerate(variables):
            if self.open[variable] and columns.setdefault(variable, k) != k:
                fits &= rows[:, k] == rows[:, columns[variable]]
        place = np.zeros(len(rows), np.int64)
        shape = [int(self.counts[variable]) for variable in columns]
        for (variable, k), count in zip(columns.items(), shape, strict=True):
            place = place * count + self.number[variable, rows[:, k]]
        made = np.full(math.prod(shape), FORBIDDEN)
        made[place[fits]] = costs[fits]
        return tuple(columns), made.reshape(shape)

    def chosen(self, choice: Mapping[int, int]) -> Numbers:
        """The state of each variable, given the numbers that are chosen of the open ones."""
        numbers = np.zeros(len(self.counts), np.int64)
        numbers[list(choice)] = list(choice.values())
        return np.nonzero(self.domain)[1][np.cumsum(self.counts) - self.counts + numbers]


class _Moves:
    """What the movements of some trees cost, in a turn."""

    def __init__(self, turn: Turn, trees: Sequence[Tree]) -> None:
        self.turn = turn
        shapes, span = turn.shapes, turn.coding.radix ** len(turn.coding.mesh)
        seen = np.unique([variable for tree in trees for variable in tree.variables]).astype(np.int64)
        rows, states = np.nonzero(turn.domain[seen])
        codes = turn.base[seen[rows]] + states * turn.power
        layouts, at = np.unique(shapes.of[seen[rows]] * span + codes, return_inverse=True)
        numbers, starts = np.unique(layouts // span, return_index=True)
        begins = dict(zip(numbers.tolist(), starts.tolist(), strict=True))
        ends = np.cumsum(turn.counts[seen])
        self.places: dict[int, Numbers] = {
            variable: at[end - turn.counts[variable] : end] - begins[int(shapes.of[variable])]
            for variable, end in zip(seen.tolist(), ends.tolist(), strict=True)
        }
        """For each variable the numbers of its layouts among those of its shape."""
        self.groups: dict[int, tuple[Numbers, Shape]] = {
            number: (layouts[begin:end] % span, shapes.shapes[number])
            for (number, begin), end in zip(begins.items(), [*starts.tolist(), len(layouts)][1:], strict=True)
        }
        """For each shape the layouts that its values may have."""
        self.costs = dict(zip(begins, moving_costs_of_groups(turn.coding, list(self.groups.values())), strict=True))
        """For each shape the bytes and steps from each layout to each other; what is forbidden has infinite bytes."""
        self.priced: dict[tuple[int, float], Floats] = {}

    @cached_property
    def quantum(self) -> float:
        """The least difference in bytes between two movements, beneath which ties are broken."""
        received = np.concatenate([np.zeros(1), *(moved.ravel() for moved, _ in self.costs.values())])
        return float(max(np.gcd.reduce(received[np.isfinite(received)].astype(np.int64)), 1))

    def of(self, shape: int, weight: float) -> Floats:
        """Costs between the layouts of a shape, for a value that counts so often."""
        if (shape, weight) not in self.priced:
            received, steps = self.costs[shape]
            finite = np.isfinite(received)
            steps = steps + addends_made(self.turn.coding, *self.groups[shape]) / self.turn.step_worth
            counted = np.where(finite, received, 0.0) * weight + steps * (self.quantum * TIE)
            self.priced[shape, weight] = np.where(finite, counted, FORBIDDEN)
        return self.priced[shape, weight]

    def factors(self, tree: Tree) -> list[Factor]:
        """A value's movements; where a turn is coarse and they are too many to be seen together, each use by itself, as
        if no two uses could share a movement."""
        try:
            return [self.factor(tree)]
        except StuckError:
            if not self.turn.coarse:
                raise
        home, *uses = tree.variables
        alone = [Tree(tree.node, (home, use), (stays,)) for use, stays in zip(uses, tree.rigid, strict=True)]
        return [self.factor(each) for each in alone if self.turn.is_open(each.variables)]

    def factor(self, tree: Tree) -> Factor:
        """The costs of a value's movements as an array over its variables that have a choice."""
        places = [self.places[variable] for variable in tree.variables]
        moves = self.of(int(self.turn.shapes.of[tree.variables[0]]), tree.node.weight)
        if tree.rigid == (False,):
            made = moves[places[0][:, None], places[1]]
        else:
            at = np.unique(np.concatenate(places))
            if math.prod(map(len, places)) * len(at) > MOST_ENTRIES:
                raise StuckError
            made = _tree_costs(moves[at[:, None], at], [at.searchsorted(place) for place in places], tree.rigid)
        open_ones = tuple(variable for variable in tree.variables if self.turn.open[variable])
        return open_ones, made.reshape([len(self.places[variable]) for variable in open_ones])


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
