"""Digits: which global indices a chip holds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.ir.digits import Order, global_indices, is_contiguous, local_digits, order_size, ordered
from shardwright.ir.mesh import Mesh

MESH = Mesh.of(x=2, y=3, z=1)


def indices(order: Order, axes: str, size: int = 12, **chip: int) -> list[int]:
    return global_indices(size, order, axes, {"x": 0, "y": 0, "z": 0, **chip}, MESH).tolist()


def test_the_first_digit_is_the_most_significant() -> None:
    assert indices(("x", "y"), "x", x=1) == [6, 7, 8, 9, 10, 11]
    assert indices(("x", "y"), "y", y=1) == [2, 3, 8, 9]
    assert indices(("x", "y"), "xy", x=1, y=2) == [10, 11]
    assert indices(("y", "x"), "xy", x=1, y=2) == [10, 11]
    assert indices(("y", "x"), "x", x=1) == [2, 3, 6, 7, 10, 11]
    assert indices(("x", "y"), "") == list(range(12))


def test_numbers_in_an_order_are_digits_that_no_axis_splits() -> None:
    assert indices((3, "x"), "x", x=1) == [2, 3, 6, 7, 10, 11]
    assert indices(("x", 3), "x", x=1) == [6, 7, 8, 9, 10, 11]
    assert order_size(("x", 3, "z"), MESH) == 6
    assert local_digits((3, "x"), "x", 12, MESH) == [(3, 3), (0, 2)]
    assert local_digits((3, "x"), "", 12, MESH) == [(3, 3), ("x", 2), (0, 2)]


@pytest.mark.parametrize(
    ("order", "axes", "contiguous"),
    [
        (("x", "y"), "x", True),
        (("x", "y"), "xy", True),
        (("x", "y"), "y", False),
        (("z", "x", "y"), "x", True),
        ((3, "x"), "x", False),
        ((1, "x"), "x", True),
        ((), "", True),
        (("x", "y"), "", True),
        (("x", "y"), "z", True),
    ],
)
def test_prefixes_are_contiguous(order: Order, axes: str, contiguous: bool) -> None:
    assert is_contiguous(order, axes, MESH) == contiguous


def test_axes_in_the_order_of_their_digits() -> None:
    assert ordered(("y", 3, "x"), ("x", "y")) == ("y", "x")


@given(st.permutations(["x", "y", "z", 2]), st.sets(st.sampled_from("xyz")))
def test_chips_share_out_all_indices_evenly(order: list[str | int], axes: set[str]) -> None:
    held: dict[int, int] = {}
    for chip in MESH.chips():
        found = global_indices(24, tuple(order), axes, chip, MESH).tolist()
        assert len(found) == len(set(found)) == 24 // MESH.product(axes)
        assert found == sorted(found)
        for index in found:
            held[index] = held.get(index, 0) + 1
        blocks = found == list(range(found[0], found[0] + len(found)))
        assert not is_contiguous(tuple(order), axes, MESH) or blocks
    assert held == dict.fromkeys(range(24), 6 // MESH.product(axes))
