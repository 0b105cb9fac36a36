"""Boxes of indices in an array and ranges of its flattened index: each as a few of the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

Index = tuple[slice, ...]
"""A box: for each dimension a slice with start and stop, and without a step."""


def ranges(extents: Sequence[int], box: Index) -> list[tuple[int, int]]:
    """The box as ascending ranges `(start, stop)` of the row-major flattened index, as few as there are."""
    found, inner = [(0, 1)], 1
    for extent, taken in zip(reversed(extents), reversed(box), strict=True):
        if found == [(0, inner)]:
            found = [(taken.start * inner, taken.stop * inner)]
        else:
            found = [(i * inner + a, i * inner + b) for i in range(taken.start, taken.stop) for a, b in found]
        inner *= extent
    return found


def boxes(extents: Sequence[int], start: int, stop: int) -> Iterator[Index]:
    """The range of the row-major flattened index as boxes, in its order: no more than twice the dimensions."""
    if start >= stop:
        return
    if not extents:
        yield ()
        return
    inner = math.prod(extents[1:])
    first, last = -(-start // inner), stop // inner
    if start // inner == (stop - 1) // inner and (start % inner or stop % inner):
        row = start // inner
        for rest in boxes(extents[1:], start - row * inner, stop - row * inner):
            yield (slice(row, row + 1), *rest)
        return
    yield from boxes(extents, start, first * inner)
    if first < last:
        yield (slice(first, last), *whole(extents[1:]))
    yield from boxes(extents, last * inner, stop)


def whole(extents: Sequence[int]) -> Index:
    """The box that is all of the array."""
    return tuple(slice(0, extent) for extent in extents)


def box_shape(box: Index) -> tuple[int, ...]:
    """The extents of the box."""
    return tuple(taken.stop - taken.start for taken in box)
