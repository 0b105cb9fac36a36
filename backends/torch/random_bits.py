"""The generator threefry2x32 on torch, bit for bit as in `backends.random_bits`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = 0x1BD11BDA
_WORD = 0xFFFFFFFF


def threefry2x32(key: tuple[Tensor, Tensor], counter: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Two random words for each key and counter, all words of 32 bits in int64: 20 rounds (Salmon et al. 2011)."""
    k0, k1 = key
    schedule = k0, k1, k0 ^ k1 ^ _PARITY
    x0, x1 = counter[0] + k0 & _WORD, counter[1] + k1 & _WORD
    for i in range(5):
        for turn in _ROTATIONS[i % 2]:
            x0 = x0 + x1 & _WORD
            x1 = ((x1 << turn | x1 >> 32 - turn) & _WORD) ^ x0
        x0 = x0 + schedule[(i + 1) % 3] & _WORD
        x1 = x1 + schedule[(i + 2) % 3] + i + 1 & _WORD
    return x0, x1


def uniform(key: Tensor, at: Tensor, index: Tensor) -> Tensor:
    """Numbers between 0 and 1 in f32, both exclusive, for the key (key, at) and the counter (0, index), broadcast."""
    import torch

    words, _ = threefry2x32((key & _WORD, at & _WORD), (torch.zeros_like(index), index & _WORD))
    made = (words.to(torch.float32) + 0.5) * 2.0**-32
    return made.clamp(max=1 - 2.0**-24)
