"""Numbers in 4 bits: groups of 64 with a scale and a least value each, asymmetric (Sheng et al. 2023, section 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


GROUP = 64
LEVELS = 15
"""A group's least value is 0, its greatest 15."""


def quantized_bytes(elements: int) -> int:
    """Of a row of so many elements: half a byte each, an even number of bytes in all, and 4 for each group. The last
    group may have fewer than 64."""
    return _halves(elements) + 4 * math.ceil(elements / GROUP)


def _halves(elements: int) -> int:
    """Bytes of a row's numbers: those of 16 bits after them begin at even bytes."""
    return 2 * math.ceil(elements / 4)


def quantize(rows: Tensor) -> Tensor:
    """Rows [..., C] as bytes [..., quantized_bytes(C)]: the halves of bytes, then scales, then least values in f16."""
    import torch

    *outer, C = rows.shape
    groups = math.ceil(C / GROUP)
    wide = rows.float()
    if groups * GROUP != C:  # the last value again: it changes neither the least nor the greatest of its group
        wide = torch.cat([wide, wide[..., -1:].expand(*outer, groups * GROUP - C)], dim=-1)
    wide = wide.reshape(*outer, groups, GROUP)
    least = wide.amin(dim=-1, keepdim=True)
    # Rounded as they will be read, and a scale that rounding made too small would cut off the greatest.
    least16 = least.to(torch.float16)
    scale16 = ((wide.amax(dim=-1, keepdim=True) - least16.float()) / LEVELS).to(torch.float16)
    steps = torch.where(scale16 == 0, 1.0, scale16.float())
    codes = ((wide - least16.float()) / steps).round().clamp(0, LEVELS).to(torch.uint8)
    codes = codes.reshape(*outer, groups * GROUP)[..., : 2 * _halves(C)]
    packed = codes[..., 0::2] | codes[..., 1::2] << 4
    tails = [t.reshape(*outer, groups).contiguous().view(torch.uint8) for t in (scale16, least16)]
    return torch.cat([packed, *tails], dim=-1)


def dequantize(coded: Tensor, elements: int, dtype: torch.dtype) -> Tensor:
    """Rows [..., elements] of what `quantize` made of such."""
    import torch

    *outer, _ = coded.shape
    groups, halves = math.ceil(elements / GROUP), _halves(elements)
    packed = coded[..., :halves]
    numbers = coded[..., halves:].contiguous().view(torch.float16).float()
    scale, least = numbers[..., :groups, None], numbers[..., groups:, None]
    codes = torch.stack([packed & LEVELS, packed >> 4], dim=-1).reshape(*outer, 2 * halves)
    codes = torch.nn.functional.pad(codes, (0, groups * GROUP - 2 * halves)).reshape(*outer, groups, GROUP)
    return (codes * scale + least).reshape(*outer, groups * GROUP)[..., :elements].to(dtype)


@dataclass(frozen=True)
class Coding:
    """How rows of `elements` numbers are kept: as they are, or in 4 bits."""

    elements: int
    dtype: torch.dtype
    in_4_bits: bool = False

    @property
    def width(self) -> int:
        """Extent of a row as it is kept."""
        return quantized_bytes(self.elements) if self.in_4_bits else self.elements

    @property
    def kept_as(self) -> torch.dtype:
        import torch

        return torch.uint8 if self.in_4_bits else self.dtype

    @property
    def row_bytes(self) -> int:
        return self.width * self.kept_as.itemsize

    def encode(self, rows: Tensor) -> Tensor:
        return quantize(rows) if self.in_4_bits else rows

    def decode(self, kept: Tensor) -> Tensor:
        return dequantize(kept, self.elements, self.dtype) if self.in_4_bits else kept
