"""A mixed-integer program as columns and sparse rows, solved by HiGHS through MathOpt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Columns = NDArray[np.int64]


@dataclass(frozen=True)
class Solved:
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

    def equal_sums(self, line: Sequence[tuple[Columns, NDArray[np.int64], float]], n: int, constant: float) -> None:
        """n rows: of each (columns, row of each, sign) the sums together are `constant`."""
        columns = np.concatenate([c for c, _, _ in line])
        rows = np.concatenate([r for _, r, _ in line])
        signs = np.concatenate([np.full(len(c), sign) for c, _, sign in line])
        order = np.argsort(rows, kind="stable")
        cuts = np.searchsorted(rows[order], np.arange(n + 1))
        columns, signs = columns[order], signs[order]
        for low, high in pairwise(cuts.tolist()):
            if low < high or constant:
                self.row(Linear([columns[low:high]], [signs[low:high]]), constant, constant)

    @property
    def entries(self) -> int:
        return sum(len(columns) for columns, _ in self.lines)

    def solve(self, seconds: float, relative_gap: float, threads: int | None = None) -> Solved:
        """The least cost, to within a share of it, as far as the time goes."""
        from ortools.math_opt import model_pb2, sparse_containers_pb2
        from ortools.math_opt.python import mathopt

        proto: Any = model_pb2.ModelProto(name="layouts")
        costs = np.concatenate(self.costs)
        proto.variables.ids.extend(range(self.size))
        proto.variables.lower_bounds.extend([0.0] * self.size)
        proto.variables.upper_bounds.extend(np.concatenate(self.uppers).tolist())
        proto.variables.integers.extend(np.concatenate(self.integers).tolist())
        proto.variables.names.extend([""] * self.size)
        paid = np.flatnonzero(costs)
        proto.objective.linear_coefficients.ids.extend(paid.tolist())
        proto.objective.linear_coefficients.values.extend(costs[paid].tolist())
        proto.linear_constraints.ids.extend(range(len(self.lines)))
        proto.linear_constraints.lower_bounds.extend(self.lower)
        proto.linear_constraints.upper_bounds.extend(self.upper)
        proto.linear_constraints.names.extend([""] * len(self.lines))
        widths = [len(columns) for columns, _ in self.lines]
        proto.linear_constraint_matrix.CopyFrom(
            sparse_containers_pb2.SparseDoubleMatrixProto(
                row_ids=np.repeat(np.arange(len(widths)), widths).tolist(),
                column_ids=np.concatenate([columns for columns, _ in self.lines]).tolist(),
                coefficients=np.concatenate([values for _, values in self.lines]).tolist(),
            )
        )
        model: Any = mathopt.Model.from_model_proto(proto)
        result = mathopt.solve(
            model,
            mathopt.SolverType.HIGHS,
            params=mathopt.SolveParameters(
                time_limit=timedelta(seconds=max(seconds, 0.1)), relative_gap_tolerance=relative_gap, threads=threads
            ),
        )
        reason = result.termination.reason
        values: Floats | None = None
        objective = math.inf
        if result.solutions and result.solutions[0].primal_solution is not None:
            found = result.variable_values()
            values = np.array([found[model.get_variable(k)] for k in range(self.size)])
            objective = float(costs @ values)
        return Solved(
            values,
            objective,
            float(result.termination.objective_bounds.dual_bound),
            reason == mathopt.TerminationReason.OPTIMAL,
            reason in (mathopt.TerminationReason.INFEASIBLE, mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED),
        )
