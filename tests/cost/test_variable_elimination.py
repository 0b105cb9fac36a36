"""Variable elimination against all choices, one by one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from shardwright.cost.variable_elimination import TooLargeError, eliminate, min_marginals


@pytest.mark.parametrize("seed", range(20))
def test_the_least_total_is_that_of_all_choices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(1, 4, size=6)]
    factors = []
    for _ in range(7):
        variables = tuple(int(v) for v in rng.choice(6, size=int(rng.integers(1, 4)), replace=False))
        factors.append((variables, rng.integers(0, 9, size=[sizes[v] for v in variables]).astype(np.float64)))

    def total(choice: tuple[int, ...]) -> float:
        return sum(float(costs[tuple(choice[v] for v in variables)]) for variables, costs in factors)

    choice, least = eliminate(factors)
    assert least == min(total(each) for each in product(*map(range, sizes)))
    assert total(tuple(choice.get(v, 0) for v in range(6))) == least
    every = {each: total(each) for each in product(*map(range, sizes))}
    marginals = min_marginals(factors)
    assert sorted(marginals) == sorted({v for variables, _ in factors for v in variables})
    for variable, costs in marginals.items():
        wanted = [min(t for each, t in every.items() if each[variable] == c) for c in range(sizes[variable])]
        assert costs.tolist() == wanted


def test_ties_go_to_the_earlier_choice() -> None:
    assert eliminate([((0, 1), np.zeros((3, 2)))]) == ({0: 0, 1: 0}, 0.0)


def test_a_table_that_would_be_too_large() -> None:
    with pytest.raises(TooLargeError):
        eliminate([((0, 1), np.zeros((9, 9)))], most=80)
