"""The order in which the elements of arrays lie in memory, as layouts in HLO's text say it, and what bitcasts keep."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shardwright.backends.hlo.module import Array, HloModule, Instruction


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
    return any(array.tiles for instruction in every for array in instruction.arrays)


def bitcast_orders(operand: Instruction, made: Instruction) -> tuple[MemoryOrder, MemoryOrder] | None:
    """The orders of a bitcast's operand and of its result, whose elements are the same one after the other; None where
    a tile is partly filled, so that they are none of whole factors. Tiles that both have alike are left out. Where the
    elements of one are bytes of the other's, the bytes of an element are one more dimension of both."""
    sides = [each.arrays[0] for each in (operand, made)]
    laid = [[Factor(dim, array.extents[dim]) for dim in array.order] for array in sides]
    tiles = [array.tiles if array.extents else () for array in sides]
    rank = len(tiles[0][0]) if tiles[0] else 0
    if tiles[0] == tiles[1] and (not rank or _inner(laid[0], rank) == _inner(laid[1], rank)):
        tiles = [(), ()]
    orders = [_tiled(factors, each) for factors, each in zip(laid, tiles, strict=True)]
    bytes_too = sides[0].bits != sides[1].bits
    first, second = (_order(factors, array, bytes_too=bytes_too) for factors, array in zip(orders, sides, strict=True))
    if first is None or second is None or math.prod(first.extents) != math.prod(second.extents):
        return None
    return first, second


def _order(factors: Sequence[Factor] | None, array: Array, *, bytes_too: bool) -> MemoryOrder | None:
    if factors is None:
        return None
    rank = len(array.extents)
    return MemoryOrder((*factors, *([Factor(rank, array.bits // 8)] if bytes_too else [])), rank + bytes_too)


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
