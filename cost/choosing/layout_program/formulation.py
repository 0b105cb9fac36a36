"""The candidates of a factor graph as columns: one-hot choices, rows of tables, and flows along trees of movements.

Each choice of a variable is a 0/1 column, one of a variable's being 1. A row of a table is a column, the rows with a
choice adding up to that choice. A tree of movements is a flow from home: `reach[T, l]`, at layout l on behalf of the
uses T, goes by one move to `serve[T, l']`, which is cut into two parts until each has one use, whose choice it adds up
to. It is the dynamic program of Dreyfus and Wagner (1971) as a linear program, integral by itself (Martin, Rardin and
Campbell 1990), so that a layout that several uses share is paid for once. With one use it is the pairs of home and use
with row and column sums equal to both.

Parts are cut off in the order of their first uses, and only the last may stay uncut: each tree is a flow in one way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.factor_graph import FactorGraph
from shardwright.cost.choosing.factors import TableFactor, TreeFactor, halves
from shardwright.cost.choosing.layout_program.candidates import Candidates
from shardwright.cost.choosing.layout_program.columns import ColumnProgram, Columns, Floats, Linear

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Arcs:
    """Moves on behalf of a subset of a tree's leaves: layouts from and to (equal where nothing moves), and columns."""

    subset: int
    source: Numbers
    target: Numbers
    columns: Columns


@dataclass(frozen=True)
class Tree:
    """The flow of a tree factor; `leaves` are its slots that may move."""

    factor: TreeFactor
    leaves: tuple[int, ...]
    arcs: tuple[Arcs, ...]

    def moving(self) -> list[tuple[Arcs, NDArray[np.bool_]]]:
        """Arcs with those among them that move."""
        return [(arcs, arcs.source != arcs.target) for arcs in self.arcs]


@dataclass
class Formulation:
    """Columns of a graph's candidates in a program. `choices[v]` are the columns of variable v's choices `kept[v]`."""

    graph: FactorGraph
    candidates: Candidates
    whole_moves: bool = True
    """Whether moves are 0/1 columns; they need not be where no row beside the tree's has them."""
    program: ColumnProgram = field(default_factory=ColumnProgram)
    kept: list[Numbers] = field(default_factory=list[Numbers])
    choices: list[Columns] = field(default_factory=list[Columns])
    rows: dict[int, tuple[Numbers, Columns]] = field(default_factory=dict[int, tuple[Numbers, Columns]])
    """Of each table the numbers of its rows and their columns."""
    trees: dict[int, Tree] = field(default_factory=dict[int, Tree])

    def __post_init__(self) -> None:
        program = self.program
        for mask in self.candidates.choices:
            kept = np.flatnonzero(mask)
            self.kept.append(kept)
            columns = program.columns(np.zeros(len(kept)), integer=len(kept) > 1)
            self.choices.append(columns)
            program.row(Linear([columns], [np.ones(len(columns))]), 1.0, 1.0)
        for f, factor in enumerate(self.graph.factors):
            if isinstance(factor, TableFactor):
                self._table(f, factor)
            else:
                self._tree(f, factor)

    def _table(self, f: int, factor: TableFactor) -> None:
        numbers = np.flatnonzero(self.candidates.rows[f])
        costs = factor.costs[numbers]
        columns = self.program.columns(costs, integer=False)
        self.rows[f] = numbers, columns
        for k, variable in enumerate(factor.variables):
            column: Numbers = factor.rows[:, k][numbers]
            at: Numbers = np.searchsorted(self.kept[variable], column).astype(np.int64)
            n = len(self.kept[variable])
            own = self.choices[variable], np.arange(n, dtype=np.int64), -1.0
            self.program.equal_sums([(columns, at, 1.0), own], n)

    def _tree(self, f: int, factor: TreeFactor) -> None:
        home = factor.variables[0]
        n = len(factor.moves)
        home_at = factor.places[0][self.kept[home]]
        for slot, stays in enumerate(factor.rigid, 1):
            if stays:
                use = factor.variables[slot]
                at = factor.places[slot][self.kept[use]]
                self.program.equal_sums([(self.choices[home], home_at, 1.0), (self.choices[use], at, -1.0)], n)
        leaves = tuple(slot for slot, stays in enumerate(factor.rigid, 1) if not stays)
        if not leaves:
            return
        masks = self.candidates.moves[f]
        full = len(masks) - 1
        diagonal = np.eye(n, dtype=np.bool_)
        made: list[Arcs] = []
        whole = self.whole_moves and len(leaves) > 1
        into: dict[int, list[tuple[Columns, Numbers, float]]] = {s: [] for s in range(1, full + 1)}
        out_of: dict[tuple[int, bool], list[tuple[Columns, Numbers, float]]] = {}
        lasts = {full} | {s ^ a for s in range(1, full + 1) if s & (s - 1) for a in halves(s)}
        parts = {a for s in range(1, full + 1) if s & (s - 1) for a in halves(s)}
        for subset in range(1, full + 1):
            for last in (True, False):
                if subset not in (lasts if last else parts):
                    continue
                mask = masks[subset]
                if not last and subset & (subset - 1):
                    mask = mask & ~diagonal
                source, target = (each.astype(np.int64) for each in np.nonzero(mask))
                costs = factor.moves if subset & (subset - 1) else factor.into(leaves[subset.bit_length() - 1])
                columns = self.program.columns(costs[source, target], integer=whole)
                made.append(Arcs(subset, source, target, columns))
                into[subset].append((columns, target, 1.0))
                out_of.setdefault((subset, last), []).append((columns, source, -1.0))
        reach: dict[tuple[int, bool], list[tuple[Columns, Numbers, float]]] = {key: [] for key in out_of}
        begun = self.choices[home]
        if factor.parting is not None:  # either no use needs that, or it is paid for and the flow begins
            unparted = self.program.columns(np.zeros(len(begun)), integer=False)
            parted = self.program.columns(factor.parting[home_at], integer=False)
            rows = np.arange(len(begun), dtype=np.int64)
            self.program.equal_sums([(begun, rows, 1.0), (unparted, rows, -1.0), (parted, rows, -1.0)], len(begun))
            begun = parted
            for leaf, slot in enumerate(leaves):
                own = np.zeros_like(diagonal)
                own[np.ix_(home_at, factor.places[slot][self.kept[factor.variables[slot]]])] = True
                source, target = (each.astype(np.int64) for each in np.nonzero(own & (factor.into(slot) == 0.0)))
                columns = self.program.columns(np.zeros(len(source)), integer=False)
                made.append(Arcs(1 << leaf, source, target, columns))
                into[1 << leaf].append((columns, target, 1.0))
                self.program.equal_sums([(unparted, home_at, 1.0), (columns, source, -1.0)], n)
        reach[full, True].append((begun, home_at, 1.0))
        for subset in range(1, full + 1):
            if subset & (subset - 1) == 0:
                slot = leaves[subset.bit_length() - 1]
                use = factor.variables[slot]
                into[subset].append((self.choices[use], factor.places[slot][self.kept[use]], -1.0))
                continue
            arrived = np.unique(np.concatenate([at for _, at, _ in into[subset]]))
            for part in halves(subset):
                there = arrived
                for key in ((part, False), (subset ^ part, True)):
                    there = np.intersect1d(there, np.concatenate([at for _, at, _ in out_of[key]]))
                cuts = self.program.columns(np.zeros(len(there)), integer=False)
                into[subset].append((cuts, there, -1.0))
                reach[part, False].append((cuts, there, 1.0))
                reach[subset ^ part, True].append((cuts, there, 1.0))
        for subset in range(1, full + 1):
            self.program.equal_sums(into[subset], n)
        for key, outs in out_of.items():
            self.program.equal_sums([*reach[key], *outs], n)
        self.trees[f] = Tree(factor, leaves, tuple(made))

    # ------------------------------------------------------------ reading a solution

    def chosen(self, values: Floats) -> list[int]:
        """The choice of each variable."""
        return [int(kept[np.argmax(values[columns])]) for kept, columns in zip(self.kept, self.choices, strict=True)]

    def moved(self, f: int, values: Floats) -> list[tuple[int, int]]:
        """The moves of a tree between layouts, parents first."""
        found: list[tuple[int, int, int]] = []
        for arcs, moves in self.trees[f].moving():
            at = np.flatnonzero(moves & (values[arcs.columns] > 0.5))
            ends = zip(arcs.source[at], arcs.target[at], strict=True)
            found.extend((-arcs.subset.bit_count(), int(a), int(b)) for a, b in ends)
        return [(a, b) for _, a, b in sorted(found)]
