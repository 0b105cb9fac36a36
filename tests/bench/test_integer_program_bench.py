"""The bench of the integer program: its problems can be solved, and memory matters in them."""

from __future__ import annotations

from integer_program import layers

from shardwright.cost.integer_program.solve import solve


def test_problems_are_those_described() -> None:
    problem = layers(96, 5)
    assert len(problem) == 96
    assert max(map(len, problem.costs)) == 5
    assert len(problem.memory.times) > 0
    found = solve(problem, 20)
    assert found.status == "optimal"
    assert found.choice is not None
    assert problem.memory.excess(problem, found.choice) == 0
