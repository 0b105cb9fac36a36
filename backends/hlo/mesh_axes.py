"""Groups of devices told by the axes of a mesh, whose devices are numbered row by row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from shardwright.backends.hlo.groups import Groups, connected, rows_along

IRREGULAR = ("irregular",)
"""Stands for groups that are no product of axes and parts of axes."""


def axes_of_groups(groups: Groups, mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The mesh axes that the groups lie along, a part of one as `model:(2)2`: what lies outside it, and its size.

    Parts are written as Shardy writes them. `("irregular",)` where groups are no product of axes.
    """
    sizes = tuple(mesh.values())
    grid = np.arange(math.prod(sizes)).reshape(sizes)
    first = next((group for group in groups if 0 in group), ())
    places = np.array(np.unravel_index(sorted(first), sizes)).reshape(len(sizes), -1)
    names: list[str] = []
    extents: list[int] = []
    varying: list[int] = []
    for (axis, size), along in zip(mesh.items(), places, strict=True):
        parts = _parts(sorted(set(map(int, along))), size)
        if parts is None:
            return IRREGULAR
        left = size
        for stride, count in parts:  # the outermost first
            before = left // (stride * count)
            extents += [before, count]
            varying.append(len(extents) - 1)
            names.append(axis if count == size else f"{axis}:({size // (stride * count)}){count}")
            left = stride
        extents.append(left)
    regular = set(map(frozenset, rows_along(grid.reshape(extents), varying))) == set(map(frozenset, groups))
    return tuple(names) if regular else IRREGULAR


def axes_of_pairs(pairs: Sequence[tuple[int, int]], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which messages go: those of the groups that they join, or else all that differ anywhere."""
    sizes = tuple(mesh.values())
    axes = axes_of_groups(connected(pairs, math.prod(sizes)), mesh)
    if axes != IRREGULAR:
        return axes
    source, target = (np.unravel_index([pair[end] for pair in pairs], sizes) for end in (0, 1))
    return tuple(axis for axis, a, b in zip(mesh, source, target, strict=True) if np.any(a != b))


def _parts(along: list[int], size: int) -> list[tuple[int, int]] | None:
    """Places along one axis as (stride, count) of its parts, the outermost first; None where they are no product."""
    parts: list[tuple[int, int]] = []
    while len(along) > 1:
        stride, count = along[1], 1
        while count < len(along) and along[count] == count * stride:
            count += 1
        if along[0] or size % (stride * count) or len(along) % count:
            return None
        parts.append((stride, count))
        along = [place for place in along if place % (stride * count) == 0]
    return parts[::-1]
