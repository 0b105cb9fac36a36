"""HiGHS through MathOpt, stopped at its time whatever it does: larger programs run in a process of their own.

HiGHS looks at the clock between steps, and presolve or the first linear program of a million columns can be one step.
A process can be ended; it also leaves this one free to be interrupted. It reads the program from its standard input
and writes what was found to its standard output, as the arrays of an .npz file.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.own_processes import module_command, own_environment

Floats = NDArray[np.float64]

MOST_COLUMNS_HERE = 1000
"""Of a program that this process solves itself, which saves the start of another."""

GRACE = 1.0
"""Seconds after the limit before the process is ended."""

TOLERANCE = 1e-9
"""By which a variable may miss a whole number, and a row its bounds. At HiGHS's own 1e-6 many variables together gain
the few bytes that a tight memory lacks; presolve then drops the choices that do fit, and proves a worse one least."""

STATUSES = ("optimal", "infeasible", "feasible", "stopped")


@dataclass(frozen=True, eq=False)
class Matrix:
    """Minimise costs @ x for lower <= x <= upper, x whole where `whole`, row_lower <= A x <= row_upper, A by row."""

    costs: Floats
    lower: Floats
    upper: Floats
    whole: NDArray[np.bool_]
    widths: NDArray[np.int64]
    columns: NDArray[np.int64]
    values: Floats
    row_lower: Floats
    row_upper: Floats


@dataclass(frozen=True, eq=False)
class Minimum:
    """`optimal`, `infeasible`, `feasible` (the time ran out) or `stopped` (and what was found is lost)."""

    status: str
    values: Floats | None
    bound: float


STOPPED = Minimum("stopped", None, -np.inf)


class RunningSolver:
    """A program that is being solved to within the share `gap` of its least cost, in a process of its own where it is
    large: with more columns than `here`. To be left through `with`."""

    def __init__(
        self, matrix: Matrix, start: Floats | None, seconds: float, gap: float = 0.0, here: int | None = None
    ) -> None:
        self.end = time.monotonic() + seconds
        self.process: subprocess.Popen[bytes] | None = None
        self.found: Minimum | None = None
        if len(matrix.costs) <= (MOST_COLUMNS_HERE if here is None else here):
            with _nothing_printed():
                self.found = solve_here(matrix, start, self.end, gap=gap)
            return
        sent = {field.name: getattr(matrix, field.name) for field in fields(Matrix)}
        if start is not None:
            sent["start"] = start
        program = io.BytesIO()
        np.savez(program, allow_pickle=False, **sent)
        # In a session of its own: an interrupt at the terminal is this process's to handle.
        self.process = subprocess.Popen(
            [*module_command(__name__), str(os.getpid()), str(self.end - time.monotonic()), str(gap)],
            env=own_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.answer = b""
        self.reader = threading.Thread(target=self._talk, args=(program.getvalue(),), daemon=True)
        self.reader.start()

    def __enter__(self) -> RunningSolver:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.reader.join()

    def _talk(self, program: bytes) -> None:
        assert self.process is not None
        try:
            self.answer = self.process.communicate(program)[0]
        except (OSError, ValueError):  # it was ended
            self.answer = b""

    def result(self, seconds: float) -> Minimum | None:
        """The solution found, after waiting for so long at most; None while it is being solved and has time left."""
        if self.found is None and self.process is not None:
            stop = self.end + GRACE
            self.reader.join(max(0.0, min(seconds, stop - time.monotonic())))
            if not self.reader.is_alive():
                self.found = _read(self.answer)
            elif time.monotonic() >= stop - 0.01:
                self.found = STOPPED
        return self.found


def minimize(
    matrix: Matrix, start: Floats | None, seconds: float, gap: float = 0.0, here: int | None = None
) -> Minimum:
    """Solves within a time, from these values of the variables if there are any; the rest as for `RunningSolver`."""
    with RunningSolver(matrix, start, seconds, gap, here) as running:
        return running.result(seconds + 2 * GRACE) or STOPPED


def import_solver() -> None:
    """Raises ModuleNotFoundError before any work is done where the solver's library is missing."""
    import_module("ortools")
    import_module("ortools.math_opt.python.mathopt")


def _read(answer: bytes) -> Minimum:
    if not answer:
        return STOPPED
    with np.load(io.BytesIO(answer), allow_pickle=False) as found:
        values = found["values"]
        return Minimum(STATUSES[int(found["status"])], values if len(values) else None, float(found["bound"]))


def linear_minimum(
    costs: Floats, lower: Floats, upper: Floats, matrix: Floats, row_lower: Floats, row_upper: Floats
) -> Floats | None:
    """The variables of a linear program's minimum, by GLOP; None where it finds none."""
    n_rows, n = len(row_lower), len(costs)
    columns, whole = np.tile(np.arange(n), n_rows), np.zeros(n, np.bool_)
    program = Matrix(costs, lower, upper, whole, np.full(n_rows, n), columns, matrix.ravel(), row_lower, row_upper)
    found = solve_here(program, None, time.monotonic() + 60, linear=True)
    return found.values if found.status == "optimal" else None


def solve_here(matrix: Matrix, start: Floats | None, end: float, *, linear: bool = False, gap: float = 0.0) -> Minimum:
    """In this process, until the clock says `end`, or a little longer."""
    from ortools.math_opt import model_pb2, sparse_containers_pb2
    from ortools.math_opt.python import mathopt
    from ortools.math_opt.solvers import highs_pb2

    tolerances = {"mip_feasibility_tolerance": TOLERANCE, "primal_feasibility_tolerance": TOLERANCE}
    proto: Any = model_pb2.ModelProto(name="strategies")
    n, n_rows = len(matrix.costs), len(matrix.widths)
    proto.variables.ids.extend(range(n))
    proto.variables.lower_bounds.extend(matrix.lower.tolist())
    proto.variables.upper_bounds.extend(matrix.upper.tolist())
    proto.variables.integers.extend(matrix.whole.tolist())
    proto.variables.names.extend([""] * n)
    proto.objective.linear_coefficients.ids.extend(range(n))
    proto.objective.linear_coefficients.values.extend(matrix.costs.tolist())
    proto.linear_constraints.ids.extend(range(n_rows))
    proto.linear_constraints.lower_bounds.extend(matrix.row_lower.tolist())
    proto.linear_constraints.upper_bounds.extend(matrix.row_upper.tolist())
    proto.linear_constraints.names.extend([""] * n_rows)
    rows = np.repeat(np.arange(n_rows), matrix.widths)
    order = np.lexsort((matrix.columns, rows))
    proto.linear_constraint_matrix.CopyFrom(
        sparse_containers_pb2.SparseDoubleMatrixProto(
            row_ids=rows.tolist(),
            column_ids=matrix.columns[order].tolist(),
            coefficients=matrix.values[order].tolist(),
        )
    )
    model: Any = mathopt.Model.from_model_proto(proto)
    hints: list[Any] = []
    if start is not None:
        values = {model.get_variable(k): float(x) for k, x in enumerate(start)}
        hints.append(mathopt.SolutionHint(variable_values=values))
    result: Any = None
    while result is None:
        left = end - time.monotonic()
        if left <= 0:
            return STOPPED
        try:
            result = mathopt.solve(
                model,
                mathopt.SolverType.GLOP if linear else mathopt.SolverType.HIGHS,
                params=mathopt.SolveParameters(
                    time_limit=timedelta(seconds=left),
                    relative_gap_tolerance=gap,
                    highs=highs_pb2.HighsOptionsProto(double_options=tolerances),
                ),
                model_params=mathopt.ModelSolveParameters(solution_hints=hints),
            )
        except (RuntimeError, ValueError, AttributeError):  # an error of the solver, and one in reporting it
            if not hints:
                return STOPPED
            hints = []
    reason = result.termination.reason
    infeasible = (mathopt.TerminationReason.INFEASIBLE, mathopt.TerminationReason.INFEASIBLE_OR_UNBOUNDED)
    status = "feasible"
    if reason == mathopt.TerminationReason.OPTIMAL:
        status = "optimal"
    elif reason in infeasible:
        status = "infeasible"
    found: Floats | None = None
    if result.has_primal_feasible_solution():
        values = result.variable_values()
        found = np.array([values[model.get_variable(k)] for k in range(n)])
    return Minimum(status, found, float(result.termination.objective_bounds.dual_bound))


@contextmanager
def _nothing_printed() -> Generator[None]:
    """Keeps what HiGHS prints, whatever it was asked, from this process's output."""
    sys.stdout.flush()
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _exit_with(parent: int) -> None:
    """Ends this process when the one that started it is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _main() -> None:
    end = time.monotonic() + float(sys.argv[2])
    threading.Thread(target=_exit_with, args=(int(sys.argv[1]),), daemon=True).start()
    answer = os.dup(1)
    os.dup2(2, 1)  # what solvers print is not the answer
    with np.load(io.BytesIO(sys.stdin.buffer.read()), allow_pickle=False) as sent:
        matrix = Matrix(*(sent[field.name] for field in fields(Matrix)))
        start = sent.get("start")
    # Some time stays for what HiGHS does after its limit, and for the answer to be written.
    left = end - time.monotonic()
    found = solve_here(matrix, start, end - 0.2 - 0.03 * left - 2e-6 * len(matrix.costs), gap=float(sys.argv[3]))
    written = io.BytesIO()
    values = np.zeros(0) if found.values is None else found.values
    np.savez(written, allow_pickle=False, status=STATUSES.index(found.status), values=values, bound=found.bound)
    with os.fdopen(answer, "wb") as out:
        out.write(written.getvalue())
    os._exit(0)  # without taking a program of millions of columns apart


if __name__ == "__main__":
    _main()
