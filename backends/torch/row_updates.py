"""Rows written into caches in place: from one position on, or for each row of a batch from a position of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Positions:
    """Where new rows begin: of row b of a batch at `begins[b]`, or all at one position."""

    begins: tuple[int, ...]

    @property
    def level(self) -> bool:
        return len(set(self.begins)) == 1

    def less(self, start: int) -> Positions:
        """Counted from `start` on."""
        return Positions(tuple(begin - start for begin in self.begins))


def put_rows(cache: Tensor, new: Tensor, positions: Positions) -> None:
    """Writes `new` [L, ...] or, where positions differ, [L, B, ...] into a cache [T, ...] or [T, B, ...]; what would
    come before its beginning or after its end is dropped."""
    import torch

    T, L = cache.shape[0], new.shape[0]
    if positions.level:
        begin = positions.begins[0]
        start, stop = max(0, begin), min(begin + L, T)
        if start < stop:
            cache[start:stop].copy_(new[start - begin : stop - begin], non_blocking=True)
        return
    starts = enumerate(positions.begins)
    written = [(begin + at, at, b) for b, begin in starts for at in range(L) if 0 <= begin + at < T]
    if written:
        t, row, b = torch.tensor(written, device=cache.device).unbind(1)
        cache[t, b] = new[row, b]


def begins_of(positions: Tensor, names: Sequence[str]) -> Positions:
    """The begins in a tensor of positions, a scalar or one for each row."""
    return Positions(tuple(int(each) for each in positions.reshape(-1)) if names else (int(positions),))
