"""A value on its way to the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.backends.torch.buffers import Buffer
from shardwright.backends.torch.homes import Home, Job, Part

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Transfer:
    """A part of a home, or a tensor on the host, on its way to a buffer on the device: by one on the host where it
    comes from disk. `held` is the buffer that it lies in meanwhile."""

    source: Home | Tensor
    part: Part
    raw: Tensor
    staged: Tensor | None = None
    staging: Buffer | None = None
    held: Buffer | None = None

    def disk_reads(self) -> tuple[list[Job], int]:
        """Jobs that read what lies on disk, and how many bytes."""
        if not isinstance(self.source, Home):
            return [], 0
        staged = self.staged is not None
        return self.source.disk_reads(self.part, self.staged if staged else self.raw, staged=staged)

    def copy(self) -> int:
        """The bytes that came from the host."""
        if isinstance(self.source, Home):
            return self.source.copy(self.part, self.raw, self.staged)
        self.raw.copy_(self.source, non_blocking=True)
        return self.raw.numel() * self.raw.element_size()
