"""Bytes and durations as people read them: three digits and a unit, which follows the rounding."""

from __future__ import annotations

import pytest

from shardwright.cost.movements.movement import duration_text
from shardwright.ir.text.table import bytes_text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1535, "1.53 kB"), (999_400, "999 kB"), (999_700, "1 MB"), (1.2345e15, "1230 TB")],
)
def test_bytes(nbytes: float, text: str) -> None:
    assert bytes_text(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ns"), (5e-12, "< 0.1 ns"), (999.7e-9, "1 µs"), (999.7e-6, "1 ms"), (0.9994, "999 ms"), (1234.5, "1230 s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
