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


def pieces(box: Index, most: int) -> Iterator[Index]:
    """The box cut into boxes of at most `most` elements (one at least), in row-major order."""
    if math.prod(box_shape(box)) <= max(1, most):
        yield box
        return
    first, *rest = box
    inner = math.prod(box_shape(tuple(rest)))
    step = max(1, most // inner) if inner else first.stop - first.start
    for start in range(first.start, first.stop, step):
        taken = slice(start, min(start + step, first.stop))
        yield from ((taken, *inside) for inside in (pieces(tuple(rest), most) if step == 1 else [tuple(rest)]))


def whole(extents: Sequence[int]) -> Index:
    """The box that is all of the array."""
    return tuple(slice(0, extent) for extent in extents)


def box_shape(box: Index) -> tuple[int, ...]:
    """The extents of the box."""
    return tuple(taken.stop - taken.start for taken in box)
