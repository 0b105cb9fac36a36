"""A mixed-integer program as columns and sparse rows, solved by HiGHS (`cost.integer_program.highs`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.integer_program.highs import Matrix, minimize

Floats = NDArray[np.float64]
Columns = NDArray[np.int64]


_COLUMNS_HERE = 20_000
"""Of a program that is solved without a process of its own: no step of it takes long."""


@dataclass(frozen=True)
class ColumnValues:
    """The values of the columns (None where none were found), a lower bound, and what was proved."""

    values: Floats | None
    objective: float
    bound: float
    optimal: bool
    infeasible: bool


@dataclass
class Linear:
    """A sum of columns times coefficients."""

    columns: list[Columns] = field(default_factory=list[Columns])
    coefficients: list[Floats] = field(default_factory=list[Floats])

    def add(self, columns: Columns, coefficients: Floats | float) -> None:
        self.columns.append(columns)
        self.coefficients.append(np.broadcast_to(np.asarray(coefficients, np.float64), columns.shape))

    def joined(self) -> tuple[Columns, Floats]:
        """Each column once, with the sum of its coefficients; those that cancel are left out."""
        if not self.columns:
            return np.zeros(0, np.int64), np.zeros(0)
        columns, at = np.unique(np.concatenate(self.columns), return_inverse=True)
        total = np.zeros(len(columns))
        np.add.at(total, at, np.concatenate(self.coefficients))
        kept = total != 0
        return columns[kept], total[kept]


class ColumnProgram:
    """Columns between 0 and an upper bound at a cost each, and rows between two bounds."""

    def __init__(self) -> None:
        self.costs: list[Floats] = []
        self.uppers: list[Floats] = []
        self.integers: list[NDArray[np.bool_]] = []
        self.size = 0
        self.lines: list[tuple[Columns, Floats]] = []
        self.lower: list[float] = []
        self.upper: list[float] = []

    def columns(self, costs: Floats, *, integer: bool, upper: float = 1.0) -> Columns:
        """New columns with these costs."""
        n = len(costs)
        self.costs.append(np.asarray(costs, np.float64))
        self.uppers.append(np.full(n, upper))
        self.integers.append(np.full(n, integer))
        self.size += n
        return np.arange(self.size - n, self.size, dtype=np.int64)

    def row(self, line: Linear, lower: float, upper: float) -> None:
        """A row; one without columns has to hold by itself."""
        self.lines.append(line.joined())
        self.lower.append(lower)
        self.upper.append(upper)

    def equal_sums(self, line: Sequence[tuple[Columns, NDArray[np.int64], float]], n: int) -> None:
        """n rows: of each (columns, row of each, sign) the sums together are 0."""
        columns = np.concatenate([c for c, _, _ in line])
        rows = np.concatenate([r for _, r, _ in line])
        signs = np.concatenate([np.full(len(c), sign) for c, _, sign in line])
        order = np.argsort(rows, kind="stable")
        cuts = np.searchsorted(rows[order], np.arange(n + 1))
        columns, signs = columns[order], signs[order]
        for low, high in pairwise(cuts.tolist()):
            if low < high:
                self.row(Linear([columns[low:high]], [signs[low:high]]), 0.0, 0.0)

    def solve(self, seconds: float, relative_gap: float) -> ColumnValues:
        """The least cost, to within a share of it, as far as the time goes."""
        costs = np.concatenate(self.costs)
        widths = np.array([len(columns) for columns, _ in self.lines], np.int64)
        matrix = Matrix(
            costs,
            np.zeros(self.size),
            np.concatenate(self.uppers),
            np.concatenate(self.integers),
            widths,
            np.concatenate([columns for columns, _ in self.lines]),
            np.concatenate([values for _, values in self.lines]),
            np.array(self.lower),
            np.array(self.upper),
        )
        found = minimize(matrix, None, max(seconds, 0.1), relative_gap, _COLUMNS_HERE)
        objective = math.inf if found.values is None else float(costs @ found.values)
        return ColumnValues(
            found.values, objective, found.bound, found.status == "optimal", found.status == "infeasible"
        )
