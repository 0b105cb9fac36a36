"""The integer program itself, solved by HiGHS through MathOpt.

A one-hot variable for each strategy of a node, and one for each pair of an edge whose sums by row and by column
equal those of the two nodes; the memory alive at each time at most the limit. Node variables are integers, those of
edges need not be: with the nodes fixed the rows leave them no choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from typing import Any

import numpy as np

from shardwright.cost.integer_program.problem import Choice, Floats, Problem

MOST_ENTRIES = 1 << 21
"""Of the matrix in rows of memory that have every strategy that is alive."""


@dataclass(frozen=True)
class Solved:
    """What the solver found: a choice or None, a lower bound, and whether it proved the choice to be the best."""

    choice: Choice | None
    bound: float
    optimal: bool
    infeasible: bool


def solve_integer_program(
    problem: Problem, seconds: float, cutoff: float | None = None, hint: Choice | None = None
) -> Solved:
    """Solves a problem, or its part below the cost `cutoff`, within a time. Infinite costs must be gone from nodes."""
    from ortools.math_opt import model_pb2, sparse_containers_pb2
    from ortools.math_opt.python import mathopt

    made = _Columns(problem)
    proto: Any = model_pb2.ModelProto(name="strategies")
    n = len(made.costs)
    proto.variables.ids.extend(range(n))
    proto.variables.lower_bounds.extend([0.0] * n)
    proto.variables.upper_bounds.extend(made.upper.tolist())
    proto.variables.integers.extend([k < made.n_nodes for k in range(n)])
    proto.variables.names.extend([""] * n)
    proto.objective.linear_coefficients.ids.extend(range(n))
    proto.objective.linear_coefficients.values.extend(made.costs.tolist())
    rows, lower, upper = made.rows(cutoff)
    proto.linear_constraints.ids.extend(range(len(lower)))
    proto.linear_constraints.lower_bounds.extend(lower)
    proto.linear_constraints.upper_bounds.extend(upper)
    proto.linear_constraints.names.extend([""] * len(lower))
    proto.linear_constraint_matrix.CopyFrom(
        sparse_containers_pb2.SparseDoubleMatrixProto(
            row_ids=rows[0].tolist(), column_ids=rows[1].tolist(), coefficients=rows[2].tolist()
        )
    )
    model: Any = mathopt.Model.from_model_proto(proto)
    hints: list[Any] = []
    if hint is not None:
        values = {model.get_variable(k): v for k, v in made.values(hint).items()}
        hints.append(mathopt.SolutionHint(variable_values=values))
    result = mathopt.solve(
        model,
        mathopt.SolverType.HIGHS,
        params=mathopt.SolveParameters(time_limit=timedelta(seconds=max(seconds, 0.1)), relative_gap_tolerance=0.0),
        model_params=mathopt.ModelSolveParameters(solution_hints=hints),
    )
    reason = result.termination.reason
    bound = float(result.termination.objective_bounds.dual_bound)
    choice: Choice | None = None
    if result.solutions and result.solutions[0].primal_solution is not None:
        found = result.variable_values()
        chosen = np.array([found[model.get_variable(k)] for k in range(made.n_nodes)])
        choice = tuple(
            int(np.argmax(chosen[start:stop])) for start, stop in zip(made.starts[:-1], made.starts[1:], strict=True)
        )
    return Solved(
        choice,
        bound,
        reason == mathopt.TerminationReason.OPTIMAL,
        reason in (mathopt.TerminationReason.INFEASIBLE, mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED),
    )


class _Columns:
    """Nodes' strategies first, then the pairs of the edges, then the memory at each time where rows would be too long.

    `levels` says how many of the last there are: none, or one for each time, as a share of the limit.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.starts = list(accumulate((len(costs) for costs in problem.costs), initial=0))
        self.n_nodes = self.starts[-1]
        self.edge_starts = list(accumulate((edge.costs.size for edge in problem.edges), initial=self.n_nodes))
        costs = np.concatenate([*problem.costs, *(e.costs.ravel() for e in problem.edges)])
        self.upper = np.where(np.isfinite(costs), 1.0, 0.0)
        self.costs: Floats = np.where(np.isfinite(costs), costs, 0.0)
        widest = max(map(len, problem.costs), default=1)
        self.levels = len(problem.memory.times) if problem.memory.entries * widest > MOST_ENTRIES else 0
        self.upper = np.concatenate([self.upper, np.ones(self.levels)])
        self.costs = np.concatenate([self.costs, np.zeros(self.levels)])

    def values(self, choice: Choice) -> dict[int, float]:
        return {self.starts[i] + s: 1.0 for i, s in enumerate(choice)}

    def rows(self, cutoff: float | None) -> tuple[tuple[Any, Any, Any], list[float], list[float]]:
        """The matrix as coordinates, sorted by row, and the bounds of its rows."""
        problem = self.problem
        at: list[Any] = []
        columns: list[Any] = []
        values: list[Any] = []
        lower: list[float] = []
        upper: list[float] = []

        def block(widths: Any, cols: Any, coefficients: Any, low: float, high: float) -> None:
            """Rows of these widths, one after the other."""
            n = len(widths)
            at.append(np.repeat(len(lower) + np.arange(n), widths))
            columns.append(cols)
            values.append(coefficients)
            lower.extend([low] * n)
            upper.extend([high] * n)

        block(np.diff(self.starts), np.arange(self.n_nodes), np.ones(self.n_nodes), 1.0, 1.0)
        for edge, start in zip(problem.edges, self.edge_starts[:-1], strict=True):
            pairs: Any = start + np.arange(edge.costs.size).reshape(edge.costs.shape)
            for node, lines in ((edge.a, pairs), (edge.b, pairs.T)):
                n, width = len(lines), len(lines[0])
                own = self.starts[node] + np.arange(n)
                signs = np.ones((n, width + 1))
                signs[:, 0] = -1.0
                cols = np.concatenate([own[:, None], lines], axis=1)
                block(np.full(n, width + 1), cols.ravel(), signs.ravel(), 0.0, 0.0)
        usages = np.concatenate(problem.usages)
        node_of = np.repeat(np.arange(len(problem)), np.diff(self.starts))
        limit = problem.memory.limit
        scale = max(1.0, limit)  # rows of one size with the others
        first, last = problem.memory.first[node_of], problem.memory.last[node_of]
        counted = (first < last) & (usages != 0)
        come, gone = (np.flatnonzero(counted)[np.argsort(rows[counted], kind="stable")] for rows in (first, last))
        bounds = np.arange(len(problem.memory.times) + 1)
        comes, goes = np.searchsorted(first[come], bounds), np.searchsorted(last[gone], bounds)
        for row in range(len(problem.memory.times)):
            if self.levels:  # the level is that before, and what comes, without what goes
                level = len(self.costs) - self.levels + row
                came = come[comes[row] : comes[row + 1]]
                went = gone[goes[row] : goes[row + 1]]
                cols = np.concatenate([came, went, np.array([level - 1, level][row == 0 :])])
                signs = np.concatenate([usages[came] / scale, -usages[went] / scale, np.array([1.0, -1.0][row == 0 :])])
                order = np.argsort(cols)
                block(np.array([len(cols)]), cols[order], signs[order], 0.0, 0.0)
                continue
            alive = (problem.memory.first <= row) & (row < problem.memory.last)
            cols = np.flatnonzero(alive[node_of] & (usages != 0))
            block(np.array([len(cols)]), cols, usages[cols] / scale, -np.inf, limit / scale)
        if cutoff is not None:
            kept = np.flatnonzero(self.costs)
            block(np.array([len(kept)]), kept, self.costs[kept], -np.inf, cutoff)
        return (np.concatenate(at), np.concatenate(columns), np.concatenate(values)), lower, upper
