"""Combinations of parameters of a test, of which `make test` runs some and `make test-all` all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest


def all_with_slow(*choices: Iterable[Any], chosen: Callable[..., bool]) -> list[Any]:
    """Every combination of the choices; those that are not chosen are among the slow tests."""
    return slow_unless(chosen, product(*choices))


def slow_unless(chosen: Callable[..., bool], cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """The cases, each the values of several parameters; those that are not chosen are among the slow tests."""
    return [pytest.param(*each, marks=() if chosen(*each) else pytest.mark.slow) for each in cases]
