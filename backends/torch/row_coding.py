"""Numbers of 4 bits, two in a byte: how what is `int4` in the text lies in memory and on disk."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.backends.torch.tensors import held_as
from shardwright.ir.types import DType

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def packed(rows: Tensor) -> Tensor:
    """Rows [..., C] of integers from -8 to 7 as bytes [..., C/2 rounded up], the first of two in the lower bits."""
    import torch

    if rows.shape[-1] % 2:
        rows = torch.nn.functional.pad(rows, (0, 1))
    return rows[..., 0::2] & 15 | rows[..., 1::2] << 4


def unpacked(kept: Tensor, elements: int) -> Tensor:
    """Rows [..., elements] in int8 of what `packed` made of such."""
    import torch

    # A shift to the right keeps the sign, so that the lower number comes from the upper bits, too.
    return torch.stack([kept << 4 >> 4, kept >> 4], dim=-1).reshape(*kept.shape[:-1], -1)[..., :elements]


@dataclass(frozen=True)
class RowCoding:
    """How rows of `elements` numbers in a format are kept: as they are, those of 4 bits packed."""

    elements: int
    dtype: DType

    @property
    def packs(self) -> bool:
        return self.dtype is DType.INT4

    @property
    def width(self) -> int:
        """Extent of a row as it is kept."""
        return math.ceil(self.elements / 2) if self.packs else self.elements

    @property
    def kept_as(self) -> torch.dtype:
        return held_as(self.dtype)

    @property
    def row_bytes(self) -> int:
        return self.width * self.kept_as.itemsize

    @property
    def element_bytes(self) -> float:
        return self.row_bytes / self.elements

    def encode(self, rows: Tensor) -> Tensor:
        return packed(rows) if self.packs else rows

    def decode(self, kept: Tensor) -> Tensor:
        """The rows as numbers: themselves, or one in a byte."""
        return unpacked(kept, self.elements) if self.packs else kept
