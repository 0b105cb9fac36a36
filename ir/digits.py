"""Digits: which global indices of a dimension a chip holds (see docs/digits.md).

A dimension's index is a mixed-radix number with one digit for each mesh axis that splits the dimension
anywhere in the program, most significant first, and a remainder. A chip holds the indices whose digits of
the splitting axes equal its coordinates. An order is written `x 2 y`: axes, and integers for digits that
no axis splits (they arise where `K_xG_y` merges to `H_xy` and K has a remainder of its own).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

Order = tuple[str | int, ...]


def radix(digit: str | int, mesh: Mapping[str, int]) -> int:
    """The number of values that one digit takes."""
    return mesh[digit] if isinstance(digit, str) else digit


def order_size(order: Order, mesh: Mapping[str, int]) -> int:
    """What a dimension's size must be divisible by."""
    return math.prod(radix(digit, mesh) for digit in order)


def local_digits(order: Order, axes: Iterable[str], size: int, mesh: Mapping[str, int]) -> list[tuple[str | int, int]]:
    """The digits that stay on the chip when `axes` split the dimension, with radices, remainder last (digit 0)."""
    split = set(axes)
    kept = [(digit, radix(digit, mesh)) for digit in order if digit not in split]
    return [*kept, (0, size // order_size(order, mesh))]


def is_contiguous(order: Order, axes: Iterable[str], mesh: Mapping[str, int]) -> bool:
    """Whether every chip's indices are one block, in the order that `prefix_axes` gives."""
    split = {axis for axis in axes if mesh[axis] > 1}
    digits = [digit for digit in order if radix(digit, mesh) > 1]
    return set(digits[: len(split)]) == split


def ordered(order: Order, axes: Iterable[str]) -> tuple[str, ...]:
    """The axes in the order of their digits, most significant first."""
    wanted = set(axes)
    return tuple(digit for digit in order if isinstance(digit, str) and digit in wanted)


def global_indices(
    size: int, order: Order, axes: Iterable[str], chip: Mapping[str, int], mesh: Mapping[str, int]
) -> np.ndarray:
    """The global indices that a chip holds, in the order of its local array: int64, [size / product of axes]."""
    import numpy as np

    split = set(axes)
    indices = np.zeros(1, np.int64)
    for digit in order:
        n = radix(digit, mesh)
        values = np.array([chip[digit]]) if isinstance(digit, str) and digit in split else np.arange(n)
        indices = (indices[:, None] * n + values[None, :]).reshape(-1)
    rest = size // order_size(order, mesh)
    return (indices[:, None] * rest + np.arange(rest)[None, :]).reshape(-1)
