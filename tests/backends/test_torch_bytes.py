"""Tensors as bytes, for what is sent and what is written to disk, and the memory that they lie in."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch

from shardwright.backends.torch.buffers import Buffers
from shardwright.backends.torch.tensors import bytes_of
from shardwright.ir.types import Tier


@pytest.mark.parametrize("tensor", [
    torch.arange(6.0).reshape(2, 3),
    torch.arange(6.0).reshape(2, 3).T,
    torch.arange(4.0)[1::2],
    torch.arange(4.0)[2::2],
    torch.arange(4.0)[::2][1:],
    torch.arange(6.0).reshape(2, 3)[1:, 2:],
    torch.arange(6.0).reshape(2, 3).T[2:],
    torch.zeros(0, 3),
    torch.tensor(5.0),
    torch.tensor([True, False])[1:],
])  # fmt: skip
def test_elements_are_one_after_the_other(tensor: torch.Tensor) -> None:
    """Slices of one element, too, which count as contiguous with any strides."""
    assert bytes_of(tensor).numpy().tobytes() == tensor.numpy().tobytes()


def test_what_is_contiguous_is_not_copied() -> None:
    tensor = torch.zeros(4)
    bytes_of(tensor[2:3])[:] = 1
    assert tensor[2] != 0


def test_a_small_tensor_just_below_a_buffer_does_not_lie_in_it() -> None:
    """Buffers of host memory begin at a page, somewhere in the storage that they are of."""
    page = 4096
    bytes_there = np.zeros(4 * page, np.uint8)
    begin = page + -bytes_there.ctypes.data % page

    def tensor(offset: int, count: int) -> torch.Tensor:
        return torch.frombuffer(bytes_there, dtype=torch.uint8, offset=begin + offset, count=count)

    class HostTier:
        def on_host(self, *_: object) -> torch.Tensor:
            return tensor(0, page)

    buffers = Buffers(cast(Any, HostTier()))
    buffer = buffers.take(Tier.HOST, "weights", page)
    assert buffers.of(tensor(0, 8)) is buffers.of(tensor(-64, page + 64)[64:]) is buffer
    assert buffers.of(tensor(-64, 64)) is None
