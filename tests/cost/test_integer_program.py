"""Choosing strategies: equal to enumeration on every small problem, whatever way the solver has to take."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from oracles.whole_integer_programs import solve_integer_program

from shardwright.cost.integer_program.elimination import Order, eliminate
from shardwright.cost.integer_program.json_format import problem_of, read_problem
from shardwright.cost.integer_program.problem import Choice, Edge, Problem
from shardwright.cost.integer_program.reduction import reduce
from shardwright.cost.integer_program.solve import solve
from shardwright.ir.diagnostics import DiagnosticError


def random_problem(seed: int, *, fractional: bool = False) -> Problem:
    """Six nodes with up to four strategies, eight edges, a tenth of the pairs forbidden, memory tight or not."""
    rng = np.random.default_rng(seed)
    n = 6
    sizes = [int(s) for s in rng.integers(1, 5, n)]
    scale = 0.25 if fractional else 1.0

    def numbers(most: int, *shape: int) -> NDArray[np.float64]:
        return rng.integers(0, most, shape).astype(np.float64)

    costs = tuple(numbers(50, s) * scale for s in sizes)
    usages = tuple(numbers(20, s) for s in sizes)
    starts = [int(start) for start in rng.integers(0, n, n)]
    intervals = tuple((start, int(rng.integers(start, n + 1))) for start in starts)
    edges: list[Edge] = []
    for _ in range(8):
        a, b = (int(node) for node in rng.choice(n, 2, replace=False))
        table = numbers(60, sizes[a], sizes[b]) * scale
        table[rng.random(table.shape) < 0.1] = math.inf
        edges.append(Edge(a, b, table))
    share = (0.2, 0.3, 0.45, 0.75)[int(rng.integers(4))]
    limit = float(int(sum(float(u.mean()) for u in usages) * share))
    return Problem("random", intervals, costs, usages, tuple(edges), None if seed % 7 == 0 else limit)


def choices(problem: Problem) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*[range(len(costs)) for costs in problem.costs])


def fits(problem: Problem, choice: tuple[int, ...]) -> bool:
    """Memory counted moment by moment."""
    return problem.usage_limit is None or all(
        sum(problem.usages[i][choice[i]] for i, (a, b) in enumerate(problem.intervals) if a <= t < b)
        <= problem.usage_limit
        for t in range(max(end for _, end in problem.intervals))
    )


def least(problem: Problem) -> float:
    return min((problem.cost(c) for c in choices(problem) if fits(problem, c)), default=math.inf)


@pytest.mark.parametrize("seed", range(120))
def test_equal_to_enumeration(seed: int) -> None:
    problem = random_problem(seed, fractional=seed % 3 == 0)
    found = solve(problem, 20, most_entries=(4, 16, 1 << 20)[seed % 3])
    best = least(problem)
    assert found.status == ("infeasible" if best == math.inf else "optimal")
    assert found.cost == pytest.approx(best)
    if found.choice is not None:
        assert fits(problem, found.choice)
        assert found.bound == found.cost == problem.cost(found.choice)
        assert found.gap == 0


@pytest.mark.parametrize("seed", range(40))
def test_integer_program_alone(seed: int) -> None:
    """The formulation that HiGHS gets has the same optimum, without anything before it."""
    problem = reduce(random_problem(seed)).problem
    if all(len(costs) for costs in problem.costs):
        best = least(random_problem(seed))
        found = solve_integer_program(problem, 20)
        assert found.infeasible == (best == math.inf)
        if best < math.inf:
            assert found.optimal
            assert found.choice is not None
            assert problem.cost(found.choice) == best == pytest.approx(found.bound)


@pytest.mark.parametrize("seed", range(40))
def test_min_marginals(seed: int) -> None:
    problem = random_problem(seed)
    order = Order.of([len(costs) for costs in problem.costs], problem.edges)
    assert order.exact
    found = eliminate(order, problem.costs, problem.edges)
    every = {c: problem.cost(c) for c in choices(problem)}
    assert found.least == min(every.values())
    if found.least == math.inf:
        return
    assert every[found.choice()] == found.least
    nodes, pairs = found.min_marginals()
    for i, marginal in enumerate(nodes):
        assert marginal.tolist() == [min(v for c, v in every.items() if c[i] == s) for s in range(len(marginal))]
    for edge, marginal in zip(problem.edges, pairs, strict=True):
        for s, t in np.ndindex(*marginal.shape):
            assert marginal[s, t] == min(v for c, v in every.items() if c[edge.a] == s and c[edge.b] == t)


@pytest.mark.parametrize("seed", range(40))
def test_mini_buckets_are_lower_bounds(seed: int) -> None:
    problem = random_problem(seed)
    every = {c: problem.cost(c) for c in choices(problem)}
    order = Order.of([len(costs) for costs in problem.costs], problem.edges, 4)
    found = eliminate(order, problem.costs, problem.edges)
    assert found.least <= min(every.values())
    if not math.isfinite(found.least):
        return
    nodes, _ = found.min_marginals()
    for i, marginal in enumerate(nodes):
        for s, bound in enumerate(marginal):
            assert bound <= min(v for c, v in every.items() if c[i] == s) + 1e-9


@pytest.mark.parametrize("seed", range(60))
def test_reduction_keeps_a_best_choice(seed: int) -> None:
    problem = random_problem(seed)
    reduced = reduce(problem)
    small = reduced.problem
    found = min(
        ((small.cost(c), c) for c in choices(small) if fits(small, c)), default=(math.inf, ()), key=lambda p: p[0]
    )
    assert found[0] == least(problem)
    if found[1]:
        original: Choice = reduced.original(found[1])
        assert problem.cost(original) == found[0]
        assert fits(problem, original)


def chain(layers: int) -> Problem:
    """Values in a row with skips, as in a stack of layers: weights alive throughout, activations for a while."""
    rng = np.random.default_rng(3)
    n, k = 6 * layers, 6
    costs = tuple(rng.integers(0, 300, k).astype(float) for _ in range(n))
    usages = tuple(np.exp2(rng.integers(0, 6, k)).astype(np.float64) * 10 for _ in range(n))
    intervals = tuple((0, n) if i % 6 < 3 else (i, min(n, i + 6)) for i in range(n))
    edges = [Edge(i - 1, i, rng.integers(0, 200, (k, k)).astype(float)) for i in range(1, n)]
    edges += [Edge(i - 4, i, rng.integers(0, 200, (k, k)).astype(float)) for i in range(4, n, 4)]
    return Problem("chain", intervals, costs, usages, tuple(edges), 240.0 * layers)


def test_a_long_chain_under_a_memory_limit() -> None:
    """120 nodes: the whole integer program, which HiGHS is given as it is, has the same optimum."""
    problem = chain(20)
    found = solve(problem, 60)
    alone = solve_integer_program(problem, 60)
    assert alone.choice is not None
    assert alone.optimal
    assert found.status == "optimal"
    assert found.cost == problem.cost(alone.choice)
    assert problem.memory.excess(problem, alone.choice) == 0


# ---------------------------------------------------------------- the file

SMALL: dict[str, Any] = {
    "problem": {
        "name": "two",
        "nodes": {"intervals": [[0, 2], [1, 3]], "costs": [[15, 20], [0, 5]], "usages": [[10, 4], [8, 2]]},
        "edges": {"nodes": [[0, 1]], "costs": [[0, 7, 3, 0]]},
        "usage_limit": 15,
    }
}


def test_small_by_hand() -> None:
    """(0, 0) takes 18 > 15 at moment 1; (0, 1) costs 15 + 5 + 7 = 27, (1, 0) 20 + 0 + 3 = 23, (1, 1) 25."""
    found = solve(problem_of(SMALL))
    assert (found.choice, found.cost, found.status) == ((1, 0), 23, "optimal")


def test_both_ends_at_one_node() -> None:
    value = json.loads(json.dumps(SMALL))
    value["problem"]["edges"] = {"nodes": [[0, 0]], "costs": [[0, 9, 9, 100]]}
    assert problem_of(value).costs[0].tolist() == [15, 120]


def test_nothing_to_choose() -> None:
    nothing: dict[str, Any] = {
        "nodes": {"intervals": [], "costs": [], "usages": []},
        "edges": {"nodes": [], "costs": []},
    }
    found = solve(problem_of({"problem": {**nothing, "usage_limit": 5}}))
    assert (found.choice, found.cost, found.status) == ((), 0, "optimal")


@pytest.mark.parametrize("seed", range(40))
def test_numbers_that_floats_do_not_hold(seed: int) -> None:
    """Costs of up to 10^17 that differ by little, and usages in units of 2^50, to the last digit."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 4, 4)
    base, unit = 10 ** int(rng.integers(9, 18)), 2 ** int(rng.integers(0, 51))

    def row(n: int) -> list[int]:
        return [10**18 if rng.random() < 0.1 else base + int(rng.integers(100)) for _ in range(n)]

    costs = [row(n) for n in sizes]
    usages = [[unit * int(rng.integers(9)) for _ in range(n)] for n in sizes]
    pairs = [(0, 1), (1, 2), (2, 3), (0, 1)]
    tables = [row(sizes[a] * sizes[b]) for a, b in pairs]
    limit = unit * int(rng.integers(8, 24)) + unit - 1
    best = None
    for choice in itertools.product(*map(range, sizes)):
        paid = [row[s] for row, s in zip(costs, choice, strict=True)]
        paid += [row[choice[a] * sizes[b] + choice[b]] for (a, b), row in zip(pairs, tables, strict=True)]
        if sum(row[s] for row, s in zip(usages, choice, strict=True)) <= limit and max(paid) < 10**18:
            best = sum(paid) if best is None else min(best, sum(paid))
    nodes = {"intervals": [[0, 1]] * 4, "costs": costs, "usages": usages}
    value = {"problem": {"nodes": nodes, "edges": {"nodes": [*map(list, pairs)], "costs": tables}}}
    value["problem"]["usage_limit"] = limit  # pyright: ignore[reportArgumentType]
    found = solve(problem_of(value), 20)
    if best is None:
        assert found.status == "infeasible"
    else:
        assert (found.status, found.cost) == ("optimal", best)


def test_costs_too_far_apart_to_be_compared_forbid_nothing() -> None:
    problem = problem_of(changed("problem", "nodes", "costs", 0, to=[10**17, 0]))
    assert (solve(problem).cost, solve(problem).choice) == (3, (1, 0))
    only = changed("problem", "edges", "costs", 0, to=[10**17, 10**17, 10**18, 10**18])
    forced: Any = json.loads(json.dumps(only))
    forced["problem"]["nodes"]["costs"][0] = [10**17, 0]
    assert solve(problem_of(forced)).status == "unknown"


def changed(*path: str | int, to: object) -> object:
    value: Any = json.loads(json.dumps(SMALL))
    at = value
    for key in path[:-1]:
        at = at[key]
    if to is None:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return value


WRONG: list[tuple[object, str]] = [
    ([], "the file is [], not an object"),
    ({}, 'the file has no "problem"'),
    (changed("problem", "nodes", to=None), '"problem" has no "nodes"'),
    (changed("problem", "nodes", "usages", to=[[1, 2]]), '"nodes" has 2 intervals, 2 rows of costs and 1 of usages'),
    (changed("problem", "nodes", "costs", 1, to=[1, "x"]), '"costs" of node 1 has "x", not a number'),
    (
        changed("problem", "nodes", "costs", 1, to=[1, float("nan")]),
        '"costs" of node 1 has a number that is not finite',
    ),
    (changed("problem", "nodes", "costs", 1, to=[1]), "node 1 has 1 costs and 2 usages"),
    (changed("problem", "nodes", "usages", 0, to=[-1, 2]), "node 0 has a usage below 0"),
    (changed("problem", "nodes", "intervals", 0, to=[0]), "the interval of node 0 is [0], not two whole numbers"),
    (changed("problem", "edges", "nodes", 0, to=[0, 2]), "edge 0 joins node 2, and there are 2 nodes, from 0 on"),
    (changed("problem", "edges", "nodes", 0, to=[0]), "edge 0 joins [0], not two nodes"),
    (changed("problem", "edges", "costs", 0, to=[1, 2, 3]), "edge 0 has 3 costs for 2 x 2 pairs of strategies"),
    (changed("problem", "edges", "costs", to=[]), '"edges" has 1 pairs of nodes and 0 rows of costs'),
    (changed("problem", "usage_limit", to="much"), '"usage_limit" is "much", not a number from 0 on'),
    (changed("problem", "nodes", "costs", 1, to=[1, -(10**400)]), '"costs" of node 1 has a number that is not finite'),
]


@pytest.mark.parametrize(("value", "message"), WRONG)
def test_wrong_files(value: object, message: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        problem_of(value)
    assert caught.value.diagnostics[0].message == message


def test_a_limit_under_another_name_is_not_ignored() -> None:
    body = dict(SMALL["problem"])
    body["usage_limits"] = body.pop("usage_limit")
    with pytest.raises(DiagnosticError) as caught:
        problem_of({"problem": body})
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.message == '"problem" has "usage_limits", which is no key of it'
    assert [note.message for note in diagnostic.notes] == ['did you mean "usage_limit"?']


def test_not_json(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    path.write_text('{"problem": \n  }')
    with pytest.raises(DiagnosticError) as caught:
        read_problem(path)
    found = caught.value.diagnostics[0]
    assert (found.message, found.span.line, found.span.column) == ("not JSON: expecting value", 2, 3)
