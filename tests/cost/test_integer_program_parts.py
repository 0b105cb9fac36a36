"""The parts of the solver of strategies: each keeps a best choice, or bounds it from below, on every small problem."""

from __future__ import annotations

import itertools
import math
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from oracles.whole_integer_programs import solve_integer_program

from shardwright.cost.integer_program import highs
from shardwright.cost.integer_program import solve as solving
from shardwright.cost.integer_program.elimination import Order, eliminate
from shardwright.cost.integer_program.frontier import frontier
from shardwright.cost.integer_program.highs import STOPPED, Matrix, RunningSolver, linear_minimum, minimize
from shardwright.cost.integer_program.mathopt import SolverOutcome, SolverRun
from shardwright.cost.integer_program.multipliers import best_prices
from shardwright.cost.integer_program.neighbourhood import Neighbourhoods
from shardwright.cost.integer_program.problem import Choice, Edge, Problem
from shardwright.cost.integer_program.reduction import reduce
from shardwright.cost.integer_program.solve import solve


def copied_problem(seed: int) -> Problem:
    """Five nodes in a tree with one more edge, four that copy or follow another, memory tight or not."""
    rng = np.random.default_rng(seed)
    sizes = [int(s) for s in rng.integers(2, 4, 5)]
    edges: list[Edge] = []
    for b in range(1, 5):
        a = int(rng.integers(b))
        edges.append(Edge(a, b, rng.integers(0, 40, (sizes[a], sizes[b])).astype(float)))
    edges.append(Edge(0, 4, rng.integers(0, 40, (sizes[0], sizes[4])).astype(float)))
    for k in range(4):
        source = int(rng.integers(len(sizes)))
        n = sizes[source] if k % 2 == 0 else max(1, sizes[source] - 1)
        strategy = rng.permutation(n) if n == sizes[source] else rng.integers(0, n, sizes[source])
        table = np.full((sizes[source], n), math.inf)
        table[np.arange(sizes[source]), strategy] = rng.integers(0, 5)
        edges.append(Edge(source, len(sizes), table) if rng.random() < 0.5 else Edge(len(sizes), source, table.T))
        sizes.append(n)
    costs = tuple(rng.integers(0, 50, s).astype(float) for s in sizes)
    usages = tuple(rng.integers(0, 20, s).astype(float) * (rng.random() < 0.7) for s in sizes)
    starts = [int(start) for start in rng.integers(0, 9, len(sizes))]
    intervals = tuple((start, int(rng.integers(start, 10))) for start in starts)
    limit = float(int(sum(float(u.mean()) for u in usages) * (0.25, 0.4, 0.6)[seed % 3]))
    return Problem("copied", intervals, costs, usages, tuple(edges), None if seed % 10 == 0 else limit)


def best_of(problem: Problem) -> tuple[float, Choice | None]:
    """By looking at every choice, memory counted moment by moment."""
    most = max(end for _, end in problem.intervals) if problem.intervals else 0
    best: tuple[float, Choice | None] = (math.inf, None)
    for choice in itertools.product(*[range(len(costs)) for costs in problem.costs]):
        cost = problem.cost(choice)
        if cost >= best[0]:
            continue
        taken: NDArray[np.float64] = np.zeros(most)
        terms = [(i, problem.intervals[i], usages) for i, usages in enumerate(problem.usages)]
        terms += [(held.node, held.interval, held.usages) for held in problem.held]
        for node, (start, end), usages in terms:
            taken[start:end] += usages[choice[node]]
        if problem.usage_limit is None or (taken <= problem.usage_limit).all():
            best = (cost, choice)
    return best


@pytest.mark.parametrize("seed", range(60))
def test_nodes_that_follow_others_are_removed(seed: int) -> None:
    problem = copied_problem(seed)
    reduced = reduce(problem)
    least, _ = best_of(problem)
    assert len(reduced.problem) + len(reduced.removed) == len(problem)
    if all(len(costs) for costs in reduced.problem.costs):
        assert sum(len(costs) > 1 for costs in reduced.problem.costs) <= 5
        found, choice = best_of(reduced.problem)
        assert found == least
        if choice is not None:
            original = reduced.original(choice)
            assert problem.cost(original) == least
            assert problem.memory.excess(problem, original) == 0
            again = reduced.of(original)
            assert again is not None
            assert reduced.problem.cost(again) == least
    else:
        assert least == math.inf
    solved = solve(problem, 20)
    assert solved.cost == least
    assert solved.status == ("infeasible" if least == math.inf else "optimal")


@pytest.mark.parametrize("seed", range(60))
def test_bounds_are_valid(seed: int) -> None:
    """Prices and frontiers, wide and narrow, exact and not, are at most the optimum; wide and exact ones reach it."""
    problem = reduce(copied_problem(seed)).problem
    least, _ = best_of(problem)
    if least == math.inf:
        return
    sizes = [len(costs) for costs in problem.costs]
    for most_entries in (4, 1 << 20):
        order = Order.of(sizes, problem.edges, most_entries)
        dual = best_prices(problem, order, lambda _: False, lambda: False)
        assert dual.bound <= least + 1e-6
        assert dual.upward is not None
        every = np.arange(len(problem.memory.times))
        for rows, most_labels in itertools.product((every[:1], every), (1, 3, 10_000)):
            found = frontier(problem, dual.upward, dual.prices, rows, least + 1, most_labels, 100)
            assert found is not None
            assert found.bound <= least + 1e-6
            if most_labels == 10_000 and len(rows) == len(every):
                assert found.complete
                if order.exact:
                    assert found.bound == pytest.approx(least)
                    assert problem.cost(found.choices[0]) == least
                    assert problem.memory.excess(problem, found.choices[0]) == 0


def test_a_frontier_that_is_out_of_time() -> None:
    problem = reduce(copied_problem(1)).problem
    order = Order.of([len(costs) for costs in problem.costs], problem.edges)
    dual = best_prices(problem, order, lambda _: False, lambda: False)
    assert dual.upward is not None
    assert frontier(problem, dual.upward, dual.prices, np.zeros(0, np.int64), 1e9, 10, 100, lambda: True) is None


@pytest.mark.parametrize("seed", range(20))
def test_beliefs_are_the_least_costs(seed: int) -> None:
    problem = copied_problem(seed)
    order = Order.of([len(costs) for costs in problem.costs], problem.edges)
    upward = eliminate(order, problem.costs, problem.edges)
    for _, belief in upward.beliefs():
        assert belief.min() == upward.least


@pytest.mark.parametrize("seed", range(20))
def test_a_window_is_what_it_changes(seed: int) -> None:
    """A choice of the window costs and takes, up to what stays, what it does in the whole."""
    problem = copied_problem(3 * seed + 2)
    least, choice = best_of(problem)
    if choice is None:
        return
    assert least < math.inf
    neighbourhoods = Neighbourhoods(problem)
    window = neighbourhoods.window(3)
    assert len(window) <= 3
    part = neighbourhoods.part(choice, problem.memory.usage(problem, choice), window)
    own = (*(choice[node] for node in window), 0)
    for strategies in itertools.product(*[range(len(problem.costs[node])) for node in window]):
        whole = list(choice)
        for node, s in zip(window, strategies, strict=True):
            whole[node] = s
        changed = part.cost((*strategies, 0)) - part.cost(own)
        assert changed == problem.cost(whole) - least
        fits = problem.memory.excess(problem, whole) == 0
        assert (part.memory.excess(part, (*strategies, 0)) == 0) == fits


@pytest.mark.parametrize("seed", range(20))
def test_as_many_nodes_are_solved(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """HiGHS beside it from the beginning, branching before frontiers, and none of these for its own sake."""
    monkeypatch.setattr(solving, "MANY_NODES", 0)
    monkeypatch.setattr(solving, "FEW_COLUMNS", 0)
    problem = copied_problem(seed)
    least, _ = best_of(problem)
    found = solve(problem, 20, most_entries=8)
    assert found.cost == least
    assert found.status == ("infeasible" if least == math.inf else "optimal")


@pytest.mark.parametrize("seed", range(20))
def test_without_time(seed: int) -> None:
    """Whatever is said holds."""
    problem = copied_problem(seed)
    least, _ = best_of(problem)
    found = solve(problem, 0.0)
    assert found.bound <= least <= found.cost
    if found.choice is not None:
        assert problem.memory.excess(problem, found.choice) == 0
        assert math.isfinite(found.bound)


# ---------------------------------------------------------------- HiGHS in a process of its own


def knapsack(n: int) -> Matrix:
    """Whole numbers that cost less than nothing under one row: the best is the first half of them."""
    ones = np.ones(n)
    costs = -np.arange(n, 0.0, -1.0)
    return Matrix(
        costs, 0 * ones, ones, np.ones(n, np.bool_), np.array([n]), np.arange(n), ones, np.array([0.0]),
        np.array([float(n // 2)]),
    )  # fmt: skip


@pytest.mark.parametrize("n", [10, highs.MOST_COLUMNS_HERE + 1])
def test_here_and_there(n: int) -> None:
    found = minimize(knapsack(n), np.zeros(n), 20)
    assert found.status == "optimal"
    assert found.values is not None
    assert found.values.round().tolist() == [1.0] * (n // 2) + [0.0] * (n - n // 2)
    assert found.bound == pytest.approx(-sum(range(n, n - n // 2, -1)))


def test_a_linear_program() -> None:
    costs, ones, below = np.array([-1.0, -1.0]), np.ones((1, 2)), np.array([-np.inf])
    bounds = np.array([0.0, -5.0]), np.array([2.0, 9.0])
    found = linear_minimum(costs, *bounds, ones, below, np.array([4.0]))
    assert found is not None
    assert found.sum() == pytest.approx(4.0)
    assert linear_minimum(costs, *bounds, ones, below, np.array([-6.0])) is None


def test_what_does_not_stop_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\ncat > /dev/null\nexec sleep 60\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(sleeper))
    monkeypatch.setattr(highs, "GRACE", 0.05)
    with RunningSolver(knapsack(2000), None, 0.3) as running:
        assert running.result(0.0) is None
        assert running.result(20) is STOPPED
        process = running.process
    assert process is not None
    assert process.returncode is not None


def test_an_interrupt_ends_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(sleeper))
    running = RunningSolver(knapsack(2000), None, 50)
    with pytest.raises(KeyboardInterrupt), running:
        raise KeyboardInterrupt
    assert running.process is not None
    assert running.process.returncode is not None


def test_a_process_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is lost but what it would have found."""
    failing = tmp_path / "python"
    failing.write_text("#!/bin/sh\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(failing))
    monkeypatch.setattr(highs, "MOST_COLUMNS_HERE", 0)
    problem = copied_problem(4)
    assert minimize(knapsack(20), None, 20) is STOPPED
    assert solve_integer_program(reduce(problem).problem, 20) == SolverOutcome(
        None, -math.inf, optimal=False, infeasible=False
    )
    assert solve(problem, 5).cost == best_of(problem)[0]


def test_an_error_of_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    from ortools.math_opt.python import mathopt

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("kError")

    monkeypatch.setattr(mathopt, "solve", fail)
    assert minimize(knapsack(5), np.zeros(5), 5) is STOPPED


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """HiGHS prints where a start is not whole."""
    minimize(knapsack(50), np.full(50, 0.3), 5)
    assert capfd.readouterr().out == ""


def test_a_program_beside_other_work() -> None:
    problem = copied_problem(7)
    small = reduce(problem).problem
    with SolverRun(small, 20) as solving:
        found = None
        while found is None:
            found = solving.result(0.01)
            time.sleep(0.01)
    assert found.optimal
    assert found.choice is not None
    assert small.cost(found.choice) == best_of(problem)[0]
