"""The KV cache of one batch in one layer, in pieces of positions on device, host and disk.

A piece is [positions, 2, rows, width]: for each position the keys, then the values, of every row of the batch, so that
what is filled of a piece is one range of its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.backends.torch.pieces import Rows, rows_on
from shardwright.backends.torch.quantization import Coding
from shardwright.backends.torch.tiers import Tiers
from shardwright.ir.types import Tier

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CacheShape:
    """What all caches of a batch have in common: `heads` K and `size` D of a head, how rows [K D] are kept, and which
    positions lie where."""

    rows: int
    heads: int
    size: int
    coding: Coding
    pieces: tuple[Rows, ...]

    @property
    def position_bytes(self) -> int:
        """Of one position of all rows: keys and values."""
        return 2 * self.rows * self.coding.row_bytes

    def filled(self, tier: Tier, positions: int) -> int:
        """How many of the first `positions` lie on the tier."""
        rows = rows_on(self.pieces, tier)
        return max(0, min(rows.stop, positions) - rows.start)

    def decoded(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [rows, positions, K, D] of a piece [positions, 2, rows, width]."""
        whole = self.coding.decode(kept)
        whole = whole.reshape(*whole.shape[:3], self.heads, self.size)
        keys, values = whole.permute(1, 2, 0, 3, 4).unbind(0)
        return keys, values


class LayerCache:
    """The cache of one batch in one layer.

    It is all 0 to begin with: shorter rows have positions that nothing is written to and that attention masks, and what
    is no number would outlast being multiplied by 0.
    """

    def __init__(self, tiers: Tiers, shape: CacheShape, what: str) -> None:
        self.tiers = tiers
        self.shape = shape
        self.device: Tensor | None = None
        self.host: Tensor | None = None
        self.disk: int | None = None
        self.taken = dict.fromkeys(Tier, 0)
        for rows in shape.pieces:
            extents = (rows.count, 2, shape.rows, shape.coding.width)
            self.taken[rows.tier] = rows.count * shape.position_bytes
            if rows.tier is Tier.DEVICE:
                self.device = tiers.on_device(what, extents, shape.coding.kept_as).zero_()
            elif rows.tier is Tier.HOST:
                self.host = tiers.on_host(what, extents, shape.coding.kept_as).zero_()
            else:
                self.disk = tiers.spill.region(what, rows.count * shape.position_bytes)

    def kept(self, tier: Tier, positions: int) -> Tensor | None:
        """What of the first `positions` is in the memory of the device or the host."""
        n = self.shape.filled(tier, positions)
        piece = self.device if tier is Tier.DEVICE else self.host
        return None if piece is None or not n else piece[:n]

    def read(self, into: Tensor, positions: int) -> Tensor | None:
        """What of the first `positions` is on disk, read into a buffer of bytes on the host."""
        n = self.shape.filled(Tier.DISK, positions)
        if not n or self.disk is None:
            return None
        nbytes = n * self.shape.position_bytes
        self.tiers.spill.read(into[:nbytes], self.disk)
        return into[:nbytes].view(self.shape.coding.kept_as).reshape(n, 2, self.shape.rows, -1)

    # ------------------------------------------------------------ new positions

    def encoded(self, keys: Tensor, values: Tensor) -> Tensor:
        """New keys and values [rows, positions, K, D] as they are kept, [positions, 2, rows, width]."""
        import torch

        both = torch.stack([keys, values]).flatten(3).permute(2, 0, 1, 3)
        return self.shape.coding.encode(both.contiguous())

    def write_device(self, new: Tensor, at: Sequence[int]) -> None:
        self._write(self.device, Tier.DEVICE, new, at)

    def write_host(self, new: Tensor, at: Sequence[int]) -> None:
        self._write(self.host, Tier.HOST, new, at)

    def _write(self, piece: Tensor | None, tier: Tier, new: Tensor, at: Sequence[int]) -> None:
        """New positions of each row b from at[b] on; those that lie elsewhere are left out."""
        import torch

        if piece is None:
            return
        rows = rows_on(self.shape.pieces, tier)
        if len(set(at)) == 1:
            start, stop = max(at[0], rows.start), min(at[0] + new.shape[0], rows.stop)
            if stop > start:
                piece[start - rows.start : stop - rows.start].copy_(
                    new[start - at[0] : stop - at[0]], non_blocking=True
                )
            return
        for l in range(new.shape[0]):  # noqa: E741
            held = [b for b, begin in enumerate(at) if rows.start <= begin + l < rows.stop]
            if held:
                where = torch.tensor([at[b] + l - rows.start for b in held], device=piece.device)
                chosen = torch.tensor(held, device=piece.device)
                piece[where, :, chosen] = new[l][:, chosen].transpose(0, 1)

    def write_disk(self, new: Tensor, at: Sequence[int]) -> None:
        """The same for what lies on disk; `new` is on the host."""
        if self.disk is None:
            return
        rows, shape = rows_on(self.shape.pieces, Tier.DISK), self.shape
        if len(set(at)) == 1:
            start, stop = max(at[0], rows.start), min(at[0] + new.shape[0], rows.stop)
            if stop > start:
                place = self.disk + (start - rows.start) * shape.position_bytes
                self.tiers.spill.write(new[start - at[0] : stop - at[0]], place)
            return
        row_bytes = shape.coding.row_bytes
        for l in range(new.shape[0]):  # noqa: E741
            for b, begin in enumerate(at):
                if rows.start <= begin + l < rows.stop:
                    position = self.disk + (begin + l - rows.start) * shape.position_bytes
                    for half in range(2):
                        self.tiers.spill.write(new[l, half, b], position + (half * shape.rows + b) * row_bytes)

    def release(self) -> None:
        """Gives the memory back."""
        for tier, nbytes in self.taken.items():
            if tier is Tier.DISK:
                if self.disk is not None:
                    self.tiers.spill.release(self.disk, nbytes)
            else:
                self.tiers.memories[tier].give_back(nbytes)
        self.device = self.host = self.disk = None
