"""What a kernel is given: operands, the shapes of its results, and the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.backends.torch.tensors import Argument, Named, aligned, held_as, rounded
from shardwright.ir.operation import Arg, Number
from shardwright.ir.types import Dim, DType, Shape

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from shardwright.backends.torch.chip import Held


@dataclass(frozen=True)
class Call:
    """What a kernel is given beside its operation: operands, the shapes of the results, and the device. On one chip of
    a mesh the shapes are those on the chip, and `held` says what it has of the first result."""

    args: Sequence[Argument]
    results: Sequence[Shape]
    device: torch.device
    held: Held | None = None

    @property
    def result(self) -> Shape:
        return self.results[0]

    def tensor(self, at: int) -> Named:
        argument = self.args[at]
        assert isinstance(argument, Named)
        return argument


Kernel = Callable[[Any, Call], "Tensor | tuple[Tensor, ...]"]


def literal(number: Number, dtype: DType, device: torch.device) -> Tensor:
    """A number as a scalar of the format that it meets: filled in on the device, since a copy from the host would wait
    for all that the device has still to do."""
    import torch

    if dtype.is_float:
        return torch.full((), float(number.value), dtype=held_as(dtype), device=device)
    if dtype is DType.BOOL:
        return torch.full((), number.value != 0, device=device)
    return rounded(torch.full((), int(number.value), device=device), dtype)


def operand(argument: Argument, dtype: DType, names: Sequence[str], device: torch.device) -> Tensor:
    if isinstance(argument, Number):
        return literal(argument, dtype, device)
    return aligned(argument, names)


def as_arg(argument: Argument) -> Arg:
    if isinstance(argument, Number):
        return Arg(str(argument), None, argument)

    dims = tuple(Dim(name, size) for name, size in zip(argument.names, argument.tensor.shape, strict=True))
    return Arg("", Shape(argument.dtype, dims))


def positions(size: int, dim: str, names: Sequence[str], device: torch.device, held: Held | None = None) -> Tensor:
    """The indices along `dim`, aligned to `names`; on a chip those of the whole value that the chip holds."""
    import torch

    shape = [1] * len(names)
    shape[names.index(dim)] = size
    indices = torch.arange(size, device=device) if held is None else held.indices_on(device, dim)
    return indices.reshape(shape)


def whole_size(value: Named, dim: str) -> int:
    """The extent of a dimension on all chips together."""
    return value.size(dim) if value.held is None else value.held.size(dim)


def in_blocks(value: Named, dim: str, by: Sequence[str]) -> tuple[Tensor, int]:
    """The tensor with the dimension as [its blocks on this chip, what one block holds], and how many blocks there are
    on all."""
    n, here = (1, 1) if value.held is None else value.held.blocks(dim, by)
    at = value.names.index(dim)
    shape = value.tensor.shape
    return value.tensor.reshape(*shape[:at], here, shape[at] // here, *shape[at + 1 :]), n


def axes(value: Named, dims: Sequence[str]) -> tuple[int, ...]:
    return tuple(value.names.index(name) for name in dims)
