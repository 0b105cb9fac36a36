"""The integer program itself, solved by HiGHS through MathOpt.

A one-hot variable for each strategy of a node, and one for each pair of an edge that is allowed, whose sums by row and
by column equal those of the two nodes; the memory alive at each time at most the limit. Node variables are integers,
those of edges need not be: with the nodes fixed the rows leave them no choice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from shardwright.cost.integer_program.highs import Matrix, RunningSolver
from shardwright.cost.integer_program.problem import Choice, Floats, Problem

MOST_ENTRIES = 1 << 21
"""Of the matrix in rows of memory that have every strategy that is alive."""


@dataclass(frozen=True)
class SolverOutcome:
    """The outcome of the solver: a choice or None, a lower bound, and whether it proved the choice to be the best."""

    choice: Choice | None
    bound: float
    optimal: bool
    infeasible: bool


class SolverRun:
    """An integer program that HiGHS is at, beside what else there is to do. Left through `with`, which ends it."""

    def __init__(
        self, problem: Problem, seconds: float, cutoff: float | None = None, hint: Choice | None = None
    ) -> None:
        end = time.monotonic() + seconds
        made = _Columns(problem)
        self.starts = made.starts
        matrix = made.matrix(cutoff)
        self.running = RunningSolver(matrix, None if hint is None else made.values(hint), end - time.monotonic())

    def __enter__(self) -> SolverRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.running.__exit__()

    def result(self, seconds: float) -> SolverOutcome | None:
        """The solution found, after waiting for so long at most; None while it is not done."""
        found = self.running.result(seconds)
        if found is None:
            return None
        choice: Choice | None = None
        if found.values is not None:
            parts = np.split(found.values, self.starts[1:-1])
            choice = tuple(
                int(np.argmax(part[:width])) for part, width in zip(parts, np.diff(self.starts), strict=True)
            )
        return SolverOutcome(
            choice, found.bound, optimal=found.status == "optimal", infeasible=found.status == "infeasible"
        )


class _Columns:
    """Nodes' strategies first, then the pairs of the edges, then the memory at each time where rows would be too long.

    `levels` says how many of the last there are: none, or one for each time, as a share of the limit.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.starts = list(accumulate((len(costs) for costs in problem.costs), initial=0))
        self.n_nodes = self.starts[-1]
        self.pairs = [np.isfinite(edge.costs) for edge in problem.edges]
        self.edge_starts = list(accumulate((int(pairs.sum()) for pairs in self.pairs), initial=self.n_nodes))
        costs = [edge.costs[pairs] for edge, pairs in zip(problem.edges, self.pairs, strict=True)]
        widest = max(map(len, problem.costs), default=1)
        self.levels = len(problem.memory.times) if problem.memory.entries * widest > MOST_ENTRIES else 0
        every = np.concatenate([*problem.costs, *costs, np.zeros(self.levels)])
        self.upper = np.where(np.isfinite(every), 1.0, 0.0)
        self.costs: Floats = np.where(np.isfinite(every), every, 0.0)

    def values(self, choice: Choice) -> Floats:
        """The variables of a choice."""
        values = np.zeros(len(self.costs))
        for start, s in zip(self.starts, choice, strict=False):
            values[start + s] = 1.0
        for edge, pairs, start in zip(self.problem.edges, self.pairs, self.edge_starts, strict=False):
            at = choice[edge.a] * pairs.shape[1] + choice[edge.b]
            values[start + int(pairs.ravel()[:at].sum())] = 1.0
        if self.levels:
            memory = self.problem.memory
            values[len(values) - self.levels :] = memory.usage(self.problem, choice) / max(1.0, memory.limit)
        return values

    def matrix(self, cutoff: float | None) -> Matrix:
        """The matrix by row, and the bounds of its rows."""
        problem = self.problem
        widths: list[Any] = []
        columns: list[Any] = []
        values: list[Any] = []
        lower: list[Any] = []
        upper: list[Any] = []

        def block(width: Any, cols: Any, coefficients: Any, low: float, high: float) -> None:
            """Rows of these widths, one after the other."""
            widths.append(width)
            columns.append(cols)
            values.append(coefficients)
            lower.append(np.full(len(width), low))
            upper.append(np.full(len(width), high))

        block(np.diff(self.starts), np.arange(self.n_nodes), np.ones(self.n_nodes), 1.0, 1.0)
        for edge, pairs, start in zip(problem.edges, self.pairs, self.edge_starts, strict=False):
            at = np.zeros(pairs.shape, np.int64)
            at[pairs] = start + np.arange(int(pairs.sum()))
            for node, allowed, numbers in ((edge.a, pairs, at), (edge.b, pairs.T, at.T)):
                n = len(allowed)
                own = self.starts[node] + np.arange(n)
                cols = np.concatenate([own[:, None], numbers], axis=1)
                kept = np.concatenate([np.ones((n, 1), np.bool_), allowed], axis=1)
                signs = np.ones(kept.shape)
                signs[:, 0] = -1.0
                block(kept.sum(axis=1), cols[kept], signs[kept], 0.0, 0.0)
        self.memory_rows(block)
        if cutoff is not None:
            kept = np.flatnonzero(self.costs)
            block(np.array([len(kept)]), kept, self.costs[kept], -np.inf, cutoff)
        return Matrix(
            self.costs,
            np.zeros(len(self.costs)),
            self.upper,
            np.arange(len(self.costs)) < self.n_nodes,
            np.concatenate(widths),
            np.concatenate(columns),
            np.concatenate(values),
            np.concatenate(lower),
            np.concatenate(upper),
        )

    def memory_rows(self, block: Any) -> None:
        """The limit at each time, in rows of one size with the others."""
        memory = self.problem.memory
        scale = max(1.0, memory.limit)
        n = len(memory.times)
        # For each piece of each node's memory: the first row, the row after, the columns, and what they take.
        first: list[int] = []
        last: list[int] = []
        cols: list[Any] = []
        taken: list[Floats] = []
        for node, profile in enumerate(self.problem.profiles):
            if profile is None:
                continue
            for start, end, levels in profile.pieces:
                used = np.flatnonzero(levels)
                first.append(start)
                last.append(end)
                cols.append(self.starts[node] + used)
                taken.append(levels[used] / scale)
        comes: list[list[int]] = [[] for _ in range(n + 1)]
        goes: list[list[int]] = [[] for _ in range(n + 1)]
        for piece, (start, end) in enumerate(zip(first, last, strict=True)):
            comes[start].append(piece)
            goes[end].append(piece)
        alive: dict[int, None] = {}
        for row in range(n):
            for piece in goes[row]:
                del alive[piece]
            alive.update(dict.fromkeys(comes[row]))
            if not self.levels:
                here = np.concatenate([cols[piece] for piece in alive])
                block(
                    np.array([len(here)]),
                    here,
                    np.concatenate([taken[piece] for piece in alive]),
                    -np.inf,
                    memory.limit / scale,
                )
                continue
            # The level is that before, and what comes, without what goes.
            level = len(self.costs) - self.levels + row
            before = np.array([level - 1, level][row == 0 :])
            at = np.concatenate([*(cols[k] for k in comes[row]), *(cols[k] for k in goes[row]), before])
            changes = [*(taken[k] for k in comes[row]), *(-taken[k] for k in goes[row])]
            changes.append(np.array([1.0, -1.0][row == 0 :]))
            unique, where = np.unique(at, return_inverse=True)
            sums = np.bincount(where, np.concatenate(changes))
            block(np.array([len(unique)]), unique, sums, 0.0, 0.0)
