"""Variable elimination of factor graphs against all choices, one by one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from shardwright.cost.choosing.factor_graph import FactorGraph
from shardwright.cost.choosing.factors import Costs, Factor, TableFactor

MOST = 1 << 20


def dense(variables: tuple[int, ...], costs: Costs) -> TableFactor:
    """A factor with a row for every combination of choices."""
    rows = np.array(list(np.ndindex(*costs.shape)), np.int64).reshape(-1, costs.ndim)
    return TableFactor(variables, rows, costs.ravel())


@pytest.mark.parametrize("seed", range(20))
def test_the_least_total_is_that_of_all_choices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(1, 4, size=6)]
    factors: list[tuple[tuple[int, ...], Costs]] = []
    for _ in range(7):
        variables = tuple(int(v) for v in rng.choice(6, size=int(rng.integers(1, 4)), replace=False))
        factors.append((variables, rng.integers(0, 9, size=[sizes[v] for v in variables]).astype(np.float64)))

    def total(choice: tuple[int, ...]) -> float:
        return sum(float(costs[tuple(choice[v] for v in variables)]) for variables, costs in factors)

    graph = FactorGraph(sizes, [dense(*factor) for factor in factors])
    found = graph.eliminated(MOST)
    assert found is not None
    assert found.cost == min(total(each) for each in product(*map(range, sizes)))
    assert total(found.choice) == found.cost
    every = {each: total(each) for each in product(*map(range, sizes))}
    marginals = graph.min_marginals(MOST)
    assert marginals is not None
    assert sorted(marginals) == sorted({v for variables, _ in factors for v in variables if sizes[v] > 1})
    for variable, costs in marginals.items():
        wanted = [min(t for each, t in every.items() if each[variable] == c) for c in range(sizes[variable])]
        assert costs.tolist() == wanted


def test_what_cannot_be_is_in_no_choice_and_costs_infinitely_much() -> None:
    cannot = TableFactor((0, 1), np.array([[0, 1], [1, 0], [1, 1]], np.int64), np.array([7.0, 2.0, 5.0]))
    graph = FactorGraph([2, 2, 2], [cannot, dense((1, 2), np.array([[8.0, 1e30], [0.0, 3.0]]))])
    found, marginals = graph.eliminated(MOST), graph.min_marginals(MOST)
    assert found is not None
    assert marginals is not None
    assert (found.choice, found.cost) == ((1, 1, 0), 5.0)
    assert {v: costs.tolist() for v, costs in marginals.items()} == {0: [7.0, 5.0], 1: [10.0, 5.0], 2: [5.0, 8.0]}
    nothing = TableFactor((0,), np.zeros((0, 1), np.int64), np.zeros(0))
    assert FactorGraph([2, 2, 2], [*graph.factors, nothing]).min_marginals(MOST) is None


def test_ties_go_to_the_earlier_choice() -> None:
    found = FactorGraph([3, 2], [dense((0, 1), np.zeros((3, 2)))]).eliminated(MOST)
    assert found is not None
    assert (found.choice, found.cost) == ((0, 0), 0.0)


def test_a_table_that_would_be_too_large() -> None:
    assert FactorGraph([9, 9], [dense((0, 1), np.zeros((9, 9)))]).eliminated(80) is None
    triangle: list[Factor] = [dense(pair, np.zeros((9, 9))) for pair in ((0, 1), (1, 2), (0, 2))]
    assert FactorGraph([9, 9, 9], triangle).eliminated(100) is None
