"""Tensors as bytes, for what is sent and what is written to disk."""

from __future__ import annotations

import pytest
import torch

from shardwright.backends.torch.tensors import bytes_of


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
