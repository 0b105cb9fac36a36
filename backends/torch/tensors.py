"""Values as the kernels of this backend see them: torch tensors whose dimensions have names, and number formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.ir.operation import Number
from shardwright.ir.types import DType

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from shardwright.backends.torch.chip import Held


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor with a name for each of its dimensions, in the number format `dtype`; on one chip of a mesh, what the
    chip has `held` of a value."""

    tensor: torch.Tensor
    names: tuple[str, ...]
    dtype: DType
    held: Held | None = None

    def size(self, name: str) -> int:
        return int(self.tensor.shape[self.names.index(name)])


Argument = Named | Number


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor one after the other as bytes: its own memory where they lie so.

    PyTorch calls a tensor of one element contiguous whatever its strides are, and views none as bytes whose stride is
    not 1.
    """
    import torch

    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def held_as(dtype: DType) -> torch.dtype:
    """In which format of torch values are held: integers all in int64, within the range of their own format."""
    import torch

    if dtype is DType.BOOL:
        return torch.bool
    return {DType.F32: torch.float32, DType.BF16: torch.bfloat16, DType.F16: torch.float16}.get(dtype, torch.int64)


def rounded(tensor: torch.Tensor, dtype: DType) -> torch.Tensor:
    """A result as a value of `dtype`: rounded to nearest even, or wrapped around as two's complement does."""
    import torch

    if tensor.is_complex():  # a partial softmax: the mean, and the logarithm of the sum
        return torch.complex(tensor.real.to(held_as(dtype)).float(), tensor.imag)
    if dtype.is_integer:
        low, high = dtype.integer_range
        return ((tensor.to(held_as(dtype)) - low) & (high - low)) + low
    return tensor.to(held_as(dtype))


def aligned(value: Named, names: Sequence[str]) -> torch.Tensor:
    """The tensor with its dimensions in the order of `names`, extent 1 where the value lacks one."""
    order = [value.names.index(name) for name in names if name in value.names]
    tensor = value.tensor if order == list(range(len(order))) else value.tensor.permute(order)
    if len(order) == len(names):
        return tensor
    return tensor[tuple(slice(None) if name in value.names else None for name in names)]


def from_numpy(array: npt.NDArray[Any], device: Any = "cpu") -> torch.Tensor:
    """A tensor of the numpy array's numbers; ml_dtypes' bfloat16 is told by its name. Shares memory where it can."""
    import numpy as np
    import torch

    owned = array.flags.c_contiguous and array.flags.writeable
    given = array if owned else array.copy(order="C")
    if given.dtype.name == "bfloat16":
        return torch.as_tensor(given.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.as_tensor(given).to(device)
