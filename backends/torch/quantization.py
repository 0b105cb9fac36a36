"""Numbers in 8 or 4 bits: groups with a scale and a least value each, asymmetric (Sheng et al. 2023, section 5)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.cost.offloading.group_quantization import INT4, GroupQuantization

if TYPE_CHECKING:
    import torch
    from torch import Tensor


_WIDENED = 1 << 20
"""Numbers that are widened at a time on the CPU."""


def quantized_bytes(elements: int, quantized: GroupQuantization = INT4) -> int:
    """The bytes of a row of so many elements: their bits, an even number of bytes in all, and 4 for each group. The
    last group may have fewer than 64."""
    return _code_bytes(elements, quantized) + 4 * math.ceil(elements / quantized.group)


def _code_bytes(elements: int, quantized: GroupQuantization) -> int:
    """Bytes of a row's numbers: those of 16 bits after them begin at even bytes."""
    return 2 * math.ceil(elements * quantized.bits / 16)


def quantize(rows: Tensor, quantized: GroupQuantization = INT4) -> Tensor:
    """Rows [..., C] as bytes [..., quantized_bytes(C)]: the numbers, of which a byte has the first in its lowest bits,
    then scales, then least values in f16. A number is within half a scale of what it was."""
    import torch

    *outer, C = rows.shape
    groups, each = math.ceil(C / quantized.group), 8 // quantized.bits
    wide = rows.float()
    if groups * quantized.group != C:  # the last value again: it changes neither the least nor the greatest
        wide = torch.cat([wide, wide[..., -1:].expand(*outer, groups * quantized.group - C)], dim=-1)
    wide = wide.reshape(*outer, groups, quantized.group)
    # Rounded so that the steps reach from the least value to the greatest: in 8 bits a unit in the last place of a
    # scale below 2^-14 is more than half a step, 255 times.
    least16 = _rounded_down(wide.amin(dim=-1, keepdim=True))
    scale16 = _rounded_up((wide.amax(dim=-1, keepdim=True) - least16.float()) / quantized.levels)
    steps = torch.where(scale16 == 0, 1.0, scale16.float())
    codes = ((wide - least16.float()) / steps).round().clamp(0, quantized.levels).to(torch.uint8)
    codes = codes.reshape(*outer, groups * quantized.group)[..., : each * _code_bytes(C, quantized)]
    packed = codes[..., 0::each]
    for i in range(1, each):
        packed = packed | codes[..., i::each] << quantized.bits * i
    tails = [t.reshape(*outer, groups).contiguous().view(torch.uint8) for t in (scale16, least16)]
    return torch.cat([packed, *tails], dim=-1)


def _rounded_up(numbers: Tensor) -> Tensor:
    """Numbers from 0 up in f16, not smaller. As integers floats are in their own order, away from 0."""
    import torch

    near = numbers.to(torch.float16)
    return torch.where(near.float() < numbers, (near.view(torch.int16) + 1).view(torch.float16), near)


def _rounded_down(numbers: Tensor) -> Tensor:
    """In f16, not greater. What is below 0 and rounds to it becomes -0, from which the next is below."""
    import torch

    near = numbers.to(torch.float16)
    bits = near.view(torch.int16)
    below = torch.where(near > 0, bits - 1, bits + 1).view(torch.float16)
    return torch.where(near.float() > numbers, below, near)


def dequantize(coded: Tensor, elements: int, dtype: torch.dtype, quantized: GroupQuantization = INT4) -> Tensor:
    """Rows [..., elements] of what `quantize` made of such."""
    import torch

    *outer, _ = coded.shape
    groups, code_bytes = math.ceil(elements / quantized.group), _code_bytes(elements, quantized)
    packed = coded[..., :code_bytes]
    numbers = coded[..., code_bytes:].contiguous().view(torch.float16).float()
    scale, least = numbers[..., :groups, None], numbers[..., groups:, None]
    shifts = range(0, 8, quantized.bits)
    codes = torch.stack([packed >> shift & quantized.levels for shift in shifts], dim=-1).reshape(*outer, -1)
    codes = torch.nn.functional.pad(codes, (0, groups * quantized.group - codes.shape[-1]))
    codes = codes.reshape(*outer, groups, quantized.group)
    return (codes * scale + least).reshape(*outer, groups * quantized.group)[..., :elements].to(dtype)


@dataclass(frozen=True)
class RowCoding:
    """How rows of `elements` numbers are kept: as they are, or `quantized`."""

    elements: int
    dtype: torch.dtype
    quantized: GroupQuantization | None = None

    @property
    def width(self) -> int:
        """Extent of a row as it is kept."""
        return quantized_bytes(self.elements, self.quantized) if self.quantized else self.elements

    @property
    def kept_as(self) -> torch.dtype:
        import torch

        return torch.uint8 if self.quantized else self.dtype

    @property
    def row_bytes(self) -> int:
        return self.width * self.kept_as.itemsize

    @property
    def element_bytes(self) -> float:
        return self.row_bytes / self.elements

    def encode(self, rows: Tensor) -> Tensor:
        return quantize(rows, self.quantized) if self.quantized else rows

    def decode(self, kept: Tensor) -> Tensor:
        """The rows as numbers: themselves, or widened, on the CPU some at a time, so that what they go through is
        little beside what they become."""
        if not self.quantized:
            return kept
        step = max(1, _WIDENED // max(1, self.elements))
        if kept.dim() != 2 or kept.device.type != "cpu" or len(kept) <= step:
            return dequantize(kept, self.elements, self.dtype, self.quantized)
        made = kept.new_empty((len(kept), self.elements), dtype=self.dtype)
        for at in range(0, len(kept), step):
            made[at : at + step] = dequantize(kept[at : at + step], self.elements, self.dtype, self.quantized)
        return made
