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

    from shardwright.backends.torch.chip import RankShard


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor with a name for each of its dimensions, in the number format `dtype`; on one chip of a mesh, what the
    chip has `held` of a value. A piece of source in its place has `extents`."""

    tensor: torch.Tensor
    names: tuple[str, ...]
    dtype: DType
    held: RankShard | None = None
    extents: Sequence[int] | None = None

    @property
    def shape(self) -> Sequence[int]:
        return self.tensor.shape if self.extents is None else self.extents

    def size(self, name: str) -> int:
        return int(self.shape[self.names.index(name)])


Argument = NamedTensor | Number


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's elements in order: its own memory if they lie in that order, else a copy.

    PyTorch calls a tensor of one element contiguous whatever its strides are, and views none as bytes whose stride is
    not 1.
    """
    import torch

    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


_HELD_AS = {
    DType.F32: "float32", DType.BF16: "bfloat16", DType.F16: "float16", DType.BOOL: "bool", DType.INT32: "int32",
    DType.F8E4M3: "float8_e4m3fn", DType.F8E5M2: "float8_e5m2", DType.INT8: "int8", DType.INT4: "int8",
    DType.UINT32: "int64",
}  # fmt: skip


def held_as(dtype: DType, torch: Any = None) -> Any:
    """In which format of torch values are held; of `torch` as a piece of source the piece that names it."""
    if torch is None:
        import torch
    return getattr(torch, _HELD_AS[dtype])


def in_range(number: Any, dtype: DType) -> Any:
    """An integer, or integers, wrapped around as two's complement does."""
    low, high = dtype.integer_range
    return number & high if not low else ((number - low) & (high - low)) + low


def rounded(tensor: Any, dtype: DType, torch: Any = None) -> Any:
    """A result as a value of `dtype`: rounded to nearest even, or wrapped around as two's complement does."""
    if dtype in (DType.INT4, DType.UINT32):
        tensor = in_range(tensor.long(), dtype)
    return tensor.to(held_as(dtype, torch))


def aligned(value: NamedTensor, names: Sequence[str]) -> torch.Tensor:
    """The tensor with its dimensions in the order of `names`, extent 1 where the value lacks one."""
    order = [value.names.index(name) for name in names if name in value.names]
    tensor = value.tensor if order == list(range(len(order))) else value.tensor.permute(*order)
    if len(order) == len(names):
        return tensor
    return tensor[tuple(slice(None) if name in value.names else None for name in names)]


def from_numpy(array: npt.NDArray[Any]) -> torch.Tensor:
    """A tensor of the numpy array's numbers; ml_dtypes' formats are told by their names. Shares memory where it can."""
    import numpy as np
    import torch

    owned = array.flags.c_contiguous and array.flags.writeable
    given = array if owned else array.copy(order="C")
    if given.dtype.name == "bfloat16":
        return torch.as_tensor(given.view(np.int16)).view(torch.bfloat16)
    if given.dtype.name.startswith("float8"):
        return torch.as_tensor(given.view(np.uint8)).view(getattr(torch, given.dtype.name))
    return torch.as_tensor(given)
