"""Digits: which global indices of a dimension a chip holds (see docs/concepts/digits.md).

A dimension's index is a mixed-radix number with one digit for each mesh axis that splits the dimension
anywhere in the program, most significant first, and a remainder. A chip holds the indices whose digits of
the splitting axes equal its coordinates. An order is written `x 2 y`: axes, and integers for digits that
no axis splits (they arise where `K_xG_y` merges to `H_xy` and K has a remainder of its own).

The digits of all types together need not divide a dimension's extent, which may also be less than declared (after
`take`): a type has those digits of the order that fit (`fitting_order`), or blocks where its own are not among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from shardwright.ir.diagnostics import fault

if TYPE_CHECKING:
    import numpy as np

    from shardwright.ir.types import TensorType

Order = tuple[str | int, ...]


def radix(digit: str | int, mesh: Mapping[str, int]) -> int:
    """The number of values that one digit takes."""
    return mesh[digit] if isinstance(digit, str) else digit


def blocks_of(kind: TensorType, dim: str, by: Sequence[str], mesh: Mapping[str, int]) -> tuple[int, int]:
    """The number of blocks into which the digits `by` divide a dimension, and how many of them one chip holds. Raises
    where they do not divide it."""
    n, size = math.prod(mesh[axis] for axis in by), kind.shape.size(dim)
    if size % n:
        raise fault("not-divisible", f"{dim}={size} is not divisible by the {n} blocks of {' '.join(by)}")
    return n, math.prod(mesh[axis] for axis in by if axis not in kind.split(dim))


def order_size(order: Order, mesh: Mapping[str, int]) -> int:
    """The number by which a dimension's size must be divisible."""
    return math.prod(radix(digit, mesh) for digit in order)


def local_digits(order: Order, axes: Iterable[str], size: int, mesh: Mapping[str, int]) -> list[tuple[str | int, int]]:
    """The digits that stay on the chip when `axes` split the dimension, with radices, remainder last (digit 0)."""
    split = set(axes)
    kept = [(digit, radix(digit, mesh)) for digit in order if digit not in split]
    return [*kept, (0, size // order_size(order, mesh))]


def fitting_order(order: Order, axes: Iterable[str], size: int, mesh: Mapping[str, int]) -> Order:
    """The digits of a dimension of this extent in a type that splits it over `axes`.

    The digits of the order that fit into the extent, taken one after the other, where those of the axes are among
    them. Otherwise the axes alone, as they stand in the order: contiguous blocks.
    """
    split = set(axes)
    kept: list[str | int] = []
    fitting = 1
    for digit in order:
        if size % (fitting * radix(digit, mesh)) == 0:
            fitting *= radix(digit, mesh)
            kept.append(digit)
    return tuple(kept) if split.issubset(kept) else blocks_order(order, split, mesh)


def blocks_order(order: Order, axes: Iterable[str], mesh: Mapping[str, int]) -> Order:
    """The digits of contiguous blocks over these axes, numbered as the axes stand in the order."""
    split = set(axes)
    return (*ordered(order, split), *(axis for axis in mesh if axis in split and axis not in order))


def chip_digits(order: Order, axes: Iterable[str], size: int, mesh: Mapping[str, int]) -> tuple[str | int, ...]:
    """Which chip has which indices, each way of laying them out written in one way only.

    Axes for the digits that chips have, and numbers for what is local before, between and after them, most
    significant first. Local numbers are multiplied; axes of one chip and local digits of one value are left out.
    """
    split = set(axes)
    made: list[str | int] = []
    for digit in (*order, size // order_size(order, mesh)):
        n = radix(digit, mesh)
        if n == 1:
            continue
        if isinstance(digit, str) and digit in split:
            made.append(digit)
        elif made and isinstance(made[-1], int):
            made[-1] *= n
        else:
            made.append(n)
    return tuple(made)


def common_order(
    order: Order, before: Iterable[str], after: Iterable[str], size: int, mesh: Mapping[str, int]
) -> Order | None:
    """Digits in which a dimension can be read both when split over `before` and when split over `after`.

    A digit that goes from a chip to its array, or from there to a chip, then leaves all indices as they are. None
    where there are no such digits, and indices would change with the split.
    """
    was, becomes = set(before), set(after)
    both = was | becomes
    if both.issubset(order) and size % order_size(order, mesh) == 0:
        return order
    chips = math.prod(mesh[axis] for axis in both)
    if size % chips:
        return None
    joint = fitting_order(order, both, size, mesh)
    for axes in (was, becomes):
        own = fitting_order(order, axes, size, mesh)
        if chip_digits(own, axes, size, mesh) != chip_digits(joint, axes, size, mesh):
            return None
    return joint


def digit_values(order: Order, axis: str, indices: np.ndarray, size: int, mesh: Mapping[str, int]) -> np.ndarray:
    """The digit of an axis in each of these global indices."""
    stride = size
    for digit in order:
        stride //= radix(digit, mesh)
        if digit == axis:
            return indices // stride % mesh[axis]
    raise ValueError(f"{axis} is no digit of {order}")


def is_contiguous(order: Order, axes: Iterable[str], mesh: Mapping[str, int]) -> bool:
    """Tells whether every chip's indices are one block, in the order that `prefix_axes` gives."""
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
