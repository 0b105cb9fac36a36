"""Statements of the papers come out within what was allowed beforehand."""

from __future__ import annotations

import pytest

from shardwright.reproduction.checks import Check
from shardwright.reproduction.claims import claims
from shardwright.reproduction.published_checks import chen, table_1


@pytest.fixture(scope="module")
def found() -> dict[str, Check]:
    return {check.row: check for check in claims()}


def test_formulas_exactly(found: dict[str, Check]) -> None:
    exact = [check for check in found.values() if check.tolerance == 0.0]
    assert len(exact) == 10
    assert all(check.relative_error == 0.0 for check in exact)
    assert found["fig3"].remark == "ws2d -> wg-x -> wg-xy -> wg-xyz"


def test_times_and_ratios(found: dict[str, Check]) -> None:
    assert [check.row for check in found.values() if not check.holds] == []
    assert abs(found["serial_vs_parallel"].relative_error) < 0.02
    assert abs(found["overall_mfu"].relative_error) < 0.02
    assert found["looped_einsum_gain"].tolerance is None


def test_the_longest_contexts_of_table_1() -> None:
    assert [check.predicted for check in table_1()] == [1332, 333, 666, 166, 42653, 10663]
    assert all(check.holds for check in table_1())


def test_chens_figures() -> None:
    checks = chen()
    assert len(checks) == 15
    assert [check.row for check in checks if not check.holds] == []
    assert {c.row: c.predicted for c in checks}["kv_52b"] == 2 * 2 * 64 * 8192
