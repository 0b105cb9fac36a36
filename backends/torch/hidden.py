"""The hidden states of a batch between stages: rows of the batch on device, host and disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shardwright.backends.torch.pieces import Rows, rows_on
from shardwright.backends.torch.tensors import Named
from shardwright.backends.torch.tiers import Tiers
from shardwright.ir.types import Tier

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class HiddenHome:
    """Where the hidden states of a batch lie between stages. Where all stay in memory that the device computes with
    they are left as they are, and their bytes are counted."""

    def __init__(self, tiers: Tiers, rows: tuple[Rows, ...], nbytes: int, what: str) -> None:
        """`nbytes` of one row of the batch, at most."""
        import torch

        self.tiers = tiers
        self.rows = rows
        self.row_bytes = nbytes
        self.what = what
        self.host: Tensor | None = None
        self.disk: int | None = None
        self.device: Tensor | None = None
        on_device, on_host = self.bytes_on(Tier.DEVICE), self.bytes_on(Tier.HOST)
        if not self.moves:
            tiers.count(what, self._counted)
            return
        if on_device:
            self.device = tiers.on_device(what, (on_device,), torch.uint8)
        if on_host:
            self.host = tiers.on_host(what, (on_host,), torch.uint8)
        if self.bytes_on(Tier.DISK):
            self.disk = tiers.spill.region(what, self.bytes_on(Tier.DISK))

    @property
    def moves(self) -> bool:
        """Whether some of them leave the memories that the device computes with."""
        return any(rows.tier not in self.tiers.at_hand for rows in self.rows)

    @property
    def _counted(self) -> dict[Tier, int]:
        return {rows.tier: self.bytes_on(rows.tier) for rows in self.rows}

    def bytes_on(self, tier: Tier) -> int:
        return rows_on(self.rows, tier).count * self.row_bytes

    def store(self, values: Sequence[Named], for_disk: Tensor | None) -> list[Named]:
        """Each row where it belongs, those of the disk in a buffer; gives the values' shapes, with no memory."""
        import torch

        for value, part, piece in self._pieces([v.tensor for v in values], for_disk):
            piece.copy_(value[part.start : part.stop], non_blocking=True)
            if value.is_cuda:  # made on the stream of computations, which must not have its memory back before
                value.record_stream(torch.cuda.current_stream())
        return [Named(v.tensor.new_empty(0, *v.tensor.shape[1:]), v.names, v.dtype) for v in values]

    def load(self, shapes: Sequence[Named], from_disk: Tensor | None, into: Tensor) -> list[Named]:
        """The whole values in a buffer on the device, of what `store` gave."""
        n = max(part.stop for part in self.rows)
        made: list[Named] = []
        at = 0
        for shape in shapes:
            extents = (n, *shape.tensor.shape[1:])
            made.append(Named(_view(into, at, extents, shape.tensor.dtype), shape.names, shape.dtype))
            at += made[-1].tensor.numel() * made[-1].tensor.element_size()
        for value, part, piece in self._pieces([v.tensor for v in made], from_disk):
            value[part.start : part.stop].copy_(piece, non_blocking=True)
        return made

    def _pieces(self, values: Sequence[Tensor], staging: Tensor | None) -> Iterator[tuple[Tensor, Rows, Tensor]]:
        """Of each value the rows in each memory, and the place for them there; `staging` is that for the disk."""
        homes = {Tier.DEVICE: self.device, Tier.HOST: self.host, Tier.DISK: staging}
        at = dict.fromkeys(Tier, 0)
        for value in values:
            for part in self.rows:
                home = homes[part.tier]
                assert home is not None
                piece = _view(home, at[part.tier], (part.count, *value.shape[1:]), value.dtype)
                at[part.tier] += piece.numel() * piece.element_size()
                yield value, part, piece

    def write_disk(self, buffer: Tensor) -> None:
        assert self.disk is not None
        self.tiers.spill.write(self.what, buffer, self.disk)

    def read_disk(self, buffer: Tensor) -> None:
        assert self.disk is not None
        self.tiers.spill.read(self.what, buffer, self.disk)

    def release(self) -> None:
        if not self.moves:
            self.tiers.count_off(self._counted)
        if self.device is not None:
            self.tiers.free_on_device(self.device)
        if self.host is not None:
            self.tiers.free_on_host(self.host)
        if self.disk is not None:
            self.tiers.spill.release(self.disk, self.bytes_on(Tier.DISK))
        self.device = self.host = self.disk = None


def _view(buffer: Tensor, at: int, extents: Sequence[int], dtype: torch.dtype) -> Tensor:
    nbytes = dtype.itemsize
    for extent in extents:
        nbytes *= extent
    return buffer[at : at + nbytes].view(dtype).reshape(*extents)
