"""Fewer cases in `make test` than in `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(number: int, cases: Iterable[Any]) -> list[Any]:
    """The cases for `parametrize`, all but one in so many of them slow; tuples are the values of several parameters."""
    return [case if at % number == 0 else _slow(case) for at, case in enumerate(cases)]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
