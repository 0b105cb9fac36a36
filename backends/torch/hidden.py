"""The hidden states of a batch between stages: rows of the batch on device, host and disk."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shardwright.backends.torch.pieces import Rows, rows_on
from shardwright.backends.torch.tensors import Named
from shardwright.backends.torch.tiers import Tiers
from shardwright.ir.types import Tier

if TYPE_CHECKING:
    from torch import Tensor


class HiddenHome:
    """Where the hidden states of a batch lie between stages."""

    def __init__(self, tiers: Tiers, rows: tuple[Rows, ...], nbytes: int, what: str) -> None:
        """`nbytes` of one row of the batch, at most."""
        import torch

        self.tiers = tiers
        self.rows = rows
        self.row_bytes = nbytes
        self.host: Tensor | None = None
        self.disk: int | None = None
        on_host, on_disk = rows_on(rows, Tier.HOST), rows_on(rows, Tier.DISK)
        if on_host.count:
            self.host = tiers.on_host(what, (on_host.count * nbytes,), torch.uint8)
        if on_disk.count:
            self.disk = tiers.spill.region(what, on_disk.count * nbytes)

    def bytes_on(self, tier: Tier) -> int:
        return rows_on(self.rows, tier).count * self.row_bytes

    def store(self, values: Sequence[Named], for_disk: Tensor | None) -> list[Named]:
        """Rows that live on the host go there, those of the disk to a buffer; what stays on the device."""
        import torch

        at = {Tier.HOST: 0, Tier.DISK: 0}
        kept: list[Named] = []
        for value in values:
            rows = value.tensor
            for part, buffer in self._away(for_disk):
                source = rows[part.start : part.stop]
                nbytes = source.numel() * source.element_size()
                begin = at[part.tier]
                buffer[begin : begin + nbytes].view(source.dtype).reshape(source.shape).copy_(source)
                at[part.tier] += nbytes
            if rows.device.type == "cuda":
                rows.record_stream(torch.cuda.current_stream())
            kept.append(Named(rows[: rows_on(self.rows, Tier.DEVICE).stop].clone(), value.names, value.dtype))
        return kept

    def load(self, kept: Sequence[Named], from_disk: Tensor | None) -> list[Named]:
        """The whole values on the device, of the rows there, those on the host and those in a buffer from disk."""
        import torch

        at = {Tier.HOST: 0, Tier.DISK: 0}
        made: list[Named] = []
        for value in kept:
            pieces = [value.tensor]
            for part, buffer in self._away(from_disk):
                shape = (part.count, *value.tensor.shape[1:])
                nbytes = torch.Size(shape).numel() * value.tensor.element_size()
                begin = at[part.tier]
                source = buffer[begin : begin + nbytes].view(value.tensor.dtype).reshape(shape)
                pieces.append(source.to(self.tiers.device, non_blocking=True))
                at[part.tier] += nbytes
            made.append(Named(torch.cat(pieces), value.names, value.dtype))
        return made

    def _away(self, staging: Tensor | None) -> Iterator[tuple[Rows, Tensor]]:
        """The rows that are not on the device, each with the memory on the host that they go through."""
        for tier, buffer in ((Tier.HOST, self.host), (Tier.DISK, staging)):
            part = rows_on(self.rows, tier)
            if part.count:
                assert buffer is not None
                yield part, buffer

    def write_disk(self, buffer: Tensor) -> None:
        assert self.disk is not None
        self.tiers.spill.write(buffer, self.disk)

    def read_disk(self, buffer: Tensor) -> None:
        assert self.disk is not None
        self.tiers.spill.read(buffer, self.disk)

    def release(self) -> None:
        if self.host is not None:
            self.tiers.memories[Tier.HOST].give_back(self.host.numel())
        if self.disk is not None:
            self.tiers.spill.release(self.disk, self.bytes_on(Tier.DISK))
        self.host = self.disk = None
