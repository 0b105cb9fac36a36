"""Values of programs that live elsewhere than on the device: pieces of a chip's shard on device, host and disk."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.backends.torch.tensors import Named
from shardwright.backends.torch.tiers import Tiers
from shardwright.ir.memory_shares import Rows, rows_of
from shardwright.ir.types import Placement, Tier

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Part = tuple[int | slice, ...]
"""Which slice of a value: an index or all of each dimension."""


class Home:
    """Memory for a tensor of these extents, each share of the dimension number `along` in its tier."""

    def __init__(
        self, tiers: Tiers, what: str, extents: Sequence[int], dtype: torch.dtype, placement: Placement, along: int
    ) -> None:
        """Raises a `DiagnosticError` that names `what` where there is no memory for it."""
        self.tiers = tiers
        self.what = what
        self.extents = tuple(extents)
        self.dtype = dtype
        self.along = along
        self.rows = rows_of(placement, extents[along] if extents else 1)
        self._kept: dict[Tier, Tensor] = {}
        self._disk: int | None = None
        disk_bytes = 0
        for rows in self.rows:
            shape = tuple(self._shape(rows))
            if rows.tier is Tier.DISK:
                disk_bytes = math.prod(shape) * dtype.itemsize
                self._disk = tiers.spill.region(what, disk_bytes)
            else:
                make = tiers.on_device if rows.tier is Tier.DEVICE else tiers.on_host
                self._kept[rows.tier] = make(what, shape, dtype)
        weakref.finalize(self, _give_back, tiers, self._kept, self._disk, disk_bytes)

    def _shape(self, rows: Rows) -> list[int]:
        return [rows.count if i == self.along else extent for i, extent in enumerate(self.extents)]

    def save(self, tensor: Tensor, part: Part) -> None:
        """Writes a slice from the device."""
        at = self._axis(part)
        for rows, within in self._parts(part):
            source = tensor if at is None else tensor.narrow(at, rows.start, rows.count)
            if rows.tier is not Tier.DISK:
                self._kept[rows.tier][within].copy_(source)
                continue
            whole = self._from_disk(rows) if within != (slice(None),) * len(part) else source.cpu().contiguous()
            whole[within].copy_(source)
            assert self._disk is not None
            self.tiers.spill.write(self.what, whole, self._disk)

    def load(self, part: Part) -> Tensor:
        """A slice, on the device."""
        import torch

        pieces: list[Tensor] = []
        for rows, within in self._parts(part):
            kept = self._from_disk(rows) if rows.tier is Tier.DISK else self._kept[rows.tier]
            pieces.append(kept[within].to(self.tiers.device, copy=True))
        at = self._axis(part)
        return pieces[0] if len(pieces) == 1 or at is None else torch.cat(pieces, dim=at)

    def _from_disk(self, rows: Rows) -> Tensor:
        import torch

        read = torch.empty(self._shape(rows), dtype=self.dtype)
        assert self._disk is not None
        self.tiers.spill.read(self.what, read, self._disk)
        return read

    def _parts(self, part: Part) -> Iterator[tuple[Rows, Part]]:
        """The rows that have something of a slice, and which slice of them that is: one index along the dimension that
        is shared out is in one of the memories."""
        index = part[self.along] if part else slice(None)
        for rows in self.rows:
            if isinstance(index, slice):
                yield rows, part
            elif rows.start <= index < rows.start + rows.count:
                yield rows, (*part[: self.along], index - rows.start, *part[self.along + 1 :])

    def _axis(self, part: Part) -> int | None:
        """The dimension of the slice along which it is spread, where it is."""
        if not self.extents or len(self.rows) == 1 or not isinstance(part[self.along], slice):
            return None
        return sum(isinstance(index, slice) for index in part[: self.along])


def _give_back(tiers: Tiers, kept: dict[Tier, Tensor], disk: int | None, nbytes: int) -> None:
    for tier, tensor in kept.items():
        (tiers.free_on_device if tier is Tier.DEVICE else tiers.free_on_host)(tensor)
    if disk is not None:
        tiers.spill.release(disk, nbytes)


@dataclass(frozen=True, slots=True)
class Away(Named):
    """A value that lives elsewhere, or a slice of one. Its tensor has its extents and no memory."""

    home: Home | None = None
    part: Part = ()

    def load(self) -> Tensor:
        assert self.home is not None
        return self.home.load(self.part)

    def save(self, tensor: Tensor) -> None:
        assert self.home is not None
        self.home.save(tensor, self.part)

    def sliced(self, part: Part, names: tuple[str, ...]) -> Away:
        """The slice at `part` of its own dimensions, which leaves `names`."""
        rest = iter(part)
        whole = tuple(next(rest) if isinstance(index, slice) else index for index in self.part)
        held = None if self.held is None else self.held.without(name for name in self.names if name not in names)
        return Away(self.tensor[part], names, self.dtype, held, self.home, whole)
