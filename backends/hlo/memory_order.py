"""The order in which the elements of arrays lie in memory, as layouts in HLO's text say it, and what bitcasts keep."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardwright.backends.hlo.module import HloModule, Instruction

_LAYOUT = re.compile(r"\]\{([\d,]*)(?::((?:T\((?:[\d,]+)\)(?:\([\d,]+\))*)?))?")
_TILE = re.compile(r"\(([\d,]+)\)")


class Factor(NamedTuple):
    """One of the factors that a dimension has in memory, and how many of the dimension's indices a step of it is."""

    dim: int
    extent: int
    stride: int = 1


@dataclass(frozen=True)
class MemoryOrder:
    """The factors of an array's dimensions from the outermost in memory to the innermost. Dimensions and extents of
    `bf16[64,8,512]{2,1,0:T(8,128)(2,1)}`: 0 64, 1 1, 2 4, 1 4, 2 128, 1 2, 2 1."""

    factors: tuple[Factor, ...]
    rank: int

    def parts(self) -> list[list[int]]:
        """The places among the factors of those of each dimension, from major to minor."""
        places = [[at for at, each in enumerate(self.factors) if each.dim == dim] for dim in range(self.rank)]
        return [sorted(each, key=lambda at: -self.factors[at].stride) for each in places]

    @property
    def extents(self) -> list[int]:
        return [each.extent for each in self.factors]


def is_tiled(module: HloModule) -> bool:
    """Tells whether arrays lie in tiles, as libtpu lays them."""
    every = (i for each in module.computations.values() for i in each.instructions.values())
    return any(":T(" in instruction.type for instruction in every)


def bitcast_orders(operand: Instruction, made: Instruction) -> tuple[MemoryOrder, MemoryOrder] | None:
    """The orders of a bitcast's operand and of its result, whose elements are the same one after the other; None where
    a tile is partly filled, so that they are none of whole factors. Tiles that both have alike are left out. Where the
    elements of one are bytes of the other's, the bytes of an element are one more dimension of both."""
    (before, tiles), (after, other) = _laid(operand), _laid(made)
    rank = len(tiles[0]) if tiles else 0
    if tiles == other and (not rank or _inner(before, rank) == _inner(after, rank)):
        tiles = other = ()
    orders = _tiled(before, tiles), _tiled(after, other)
    if orders[0] is None or orders[1] is None:
        return None
    sides = [each.arrays[0] for each in (operand, made)]
    first, second = (
        MemoryOrder(tuple(factors), len(array.extents))
        if sides[0].bits == sides[1].bits
        else MemoryOrder((*factors, Factor(len(array.extents), array.bits // 8)), len(array.extents) + 1)
        for factors, array in zip(orders, sides, strict=True)
        if factors is not None
    )
    return (first, second) if math.prod(first.extents) == math.prod(second.extents) else None


def _laid(instruction: Instruction) -> tuple[list[Factor], tuple[tuple[int, ...], ...]]:
    """The dimensions from the outermost in memory, which XLA writes last, and the tiles."""
    extents = instruction.arrays[0].extents
    found = _LAYOUT.search(instruction.type)
    named = [int(word) for word in found[1].split(",") if word] if found else []
    order = named[::-1] if len(named) == len(extents) else range(len(extents))
    tiles = _TILE.findall(found[2] or "") if found and extents else []
    return [Factor(dim, extents[dim]) for dim in order], tuple(tuple(map(int, tile.split(","))) for tile in tiles)


def _inner(factors: Sequence[Factor], count: int) -> list[int]:
    return [each.extent for each in factors[-count:]]


def _tiled(factors: Sequence[Factor], tiles: Sequence[Sequence[int]]) -> list[Factor] | None:
    """Each tile parts the innermost factors; the parts within a tile come innermost."""
    made = list(factors)
    for tile in tiles:
        if len(tile) > len(made):
            return None
        outer, parted = made[: len(made) - len(tile)], made[len(made) - len(tile) :]
        inner = list[Factor]()
        for (dim, extent, stride), side in zip(parted, tile, strict=True):
            if extent > side and extent % side:
                return None
            outer.append(Factor(dim, max(1, extent // side), stride * min(extent, side)))
            inner.append(Factor(dim, min(extent, side), stride))
        made = outer + inner
    return made
