"""`bench/looped.py` on small sizes: the compiled modules receive the same bytes, in permutes."""

from __future__ import annotations

import pytest
from looped import PROGRAMS, WAYS, measure

SMALL = {"B": 16, "L": 2, "E": 64, "F": 128}


@pytest.mark.parametrize("name", ["ws1d", "wg-xyz"])
def test_compiled_modules(name: str) -> None:
    """Counted in HLO: K - 1 permutes for each collective over K chips and each layer, twice as many two ways."""
    assert name in PROGRAMS
    rows = {row.way: row for row in measure(name, 1, SMALL)}
    assert list(rows) == list(WAYS)
    plain = rows["plain"]
    assert plain.permutes == 0
    assert {row.bytes_received for row in rows.values()} == {plain.bytes_received}
    layers, products, K = 2, 2, 8
    assert [row.permutes for row in rows.values()] == [0, *(n * layers * products * (K - 1) for n in (1, 2, 1))]
    assert not any(row.other_collectives for way, row in rows.items() if way != "plain")


def test_gathered_weights_are_never_whole() -> None:
    """The largest temporary memory of a device, by XLA's count and by ours."""
    rows = {row.way: row for row in measure("wg-xyz", 1, {**SMALL, "E": 256, "F": 1024})}
    assert rows["one way"].temporary_bytes < 0.4 * rows["plain"].temporary_bytes
    assert rows["one way"].activation_bytes < 0.5 * rows["plain"].activation_bytes
