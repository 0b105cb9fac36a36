"""How collectives are written for a compiler that keeps them where each chip's part is whole tiles of memory.

libtpu holds arrays in tiles of 8 rows of 128 lanes, of the last two dimensions of their layout. Of a gather whose parts
are no whole tiles it makes an all-reduce of zeros; of such a reduce-scatter, whose parts it sends in two halves, an
all-reduce and a slice. So what is gathered or scattered comes to lie in tiles of its own (`backends/targets/tpus.toml`
has what was measured).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from shardwright.ir.types import DType


@dataclass(frozen=True)
class Front:
    """The scattered dimension first, the array as `shape`, in memory with its dimensions in this order, the last along
    the lanes. With `blocks` the array is cut into each chip's part before, and these are scattered."""

    shape: tuple[int, ...]
    order: tuple[int, ...]
    blocks: bool = False


@dataclass(frozen=True)
class AddendExchange:
    """Each chip gets everyone's addends of its own part, and sums them: for what is smaller than tiles."""


def scatter_form(shape: Sequence[int], at: int, chips: int, tile: tuple[int, int]) -> Front | AddendExchange | None:
    """How an array of this shape is scattered over chips along a dimension; None: as it is, less dimensions of one."""
    rows, lanes = tile
    n, part = shape[at], shape[at] // chips
    others = [size for i, size in enumerate(shape) if i != at and size > 1] or [1]
    minor, E = others[-1], prod(others)
    is_last = all(size == 1 for size in shape[at + 1 :])
    if is_last and part % (2 * lanes) == 0 and rows <= E:
        return None
    if part * E < 2 * rows * lanes:
        return AddendExchange()
    if not is_last and E // minor % rows == 0:
        return Front((n, E // minor, minor), (0, 1, 2))
    if minor % lanes == 0 and part % rows == 0 and part * minor % (2 * rows * lanes) == 0:
        return Front((n, E // minor, minor), (1, 0, 2)) if minor < E else Front((n, E), (0, 1))
    if not is_last and E % (rows * lanes) == 0:
        return Front((n, E // lanes, lanes), (0, 1, 2))
    if is_last and E % lanes == 0 and part % (2 * rows) == 0:
        return Front((n, E), (0, 1))
    if is_last and rows <= E and ceil(E / rows) * ceil(part / lanes) % 2 == 0:
        return Front((chips, E, part), (0, 1, 2), blocks=True)
    return AddendExchange()


# Emitted modules have the source of it (`cache_helpers`), so that it takes built-in types alone.
def order_on_tpu(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """The dimensions of an array with positions along an axis from major to minor, as libtpu lays it: positions are
    along the lanes where rows are no whole lanes, and behind the heads where these do not fill tiles."""
    others, last = [i for i in range(len(shape)) if i != axis], len(shape) - 1
    heads = shape[last - 1] if axis == last - 2 and shape[axis] % 8 == 0 else 8
    at = last if shape[last] % 128 else last - 1 if heads % 8 and heads not in (1, 2, 4) else axis
    return (*others[:at], axis, *others[at:])


def gather_form(shape: Sequence[int], dtype: DType, tile: tuple[int, int]) -> tuple[int, int] | None:
    """The rows of a tile into which each chip's part of a gather is laid, (0, 0) for each integer as its two halves;
    None where it stays as it is, as all but vectors do."""
    (rows, lanes), n = tile, prod(shape)
    if max(shape, default=1) < n or n % lanes == 0:
        return None
    if n % rows == 0 and n > rows:
        return (rows, n // rows)
    return (0, 0) if dtype in (DType.INT32, DType.UINT32) else None
