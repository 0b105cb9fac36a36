"""The arguments that a kernel is given: operands, the shapes of its results, and the library that it computes with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from shardwright.backends.torch.tensors import Argument, NamedTensor, aligned, held_as, in_range
from shardwright.ir.operation import Arg, Number
from shardwright.ir.types import Dim, DType, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from shardwright.backends.torch.chip import RankShard


def _itself(value: Any, *_names: str) -> Any:
    return value


@dataclass(frozen=True)
class TensorCall:
    """The arguments that a kernel is given beside its operation: operands, the shapes of the results, and the device.
    On one chip of a mesh the shapes are those on the chip, and `held` says what it has of the first result.

    `torch` and `functions` are PyTorch and `backends.torch.functions`; or pieces of source, as operands then are, too:
    a kernel uses attributes, calls and operators of tensors alone, and of their shapes what names say, so that it can
    be written down. `named` gives what it computes names in such source; several, where it is as many tensors.
    """

    args: Sequence[Argument]
    results: Sequence[Shape]
    device: Any
    held: RankShard | None
    torch: Any
    functions: Any
    named: Callable[..., Any] = _itself

    @property
    def result(self) -> Shape:
        return self.results[0]

    def tensor(self, at: int) -> NamedTensor:
        argument = self.args[at]
        assert isinstance(argument, NamedTensor)
        return argument

    def number(self, number: Number, dtype: DType) -> Tensor:
        """A number as a scalar of the format that it meets: filled in on the device, since a copy from the host would
        wait for all that the device has still to do."""
        if dtype.is_float:
            value = number.as_float(dtype)
        else:
            value = number.value != 0 if dtype is DType.BOOL else in_range(int(number.value), dtype)
        return self.torch.full((), value, dtype=held_as(dtype, self.torch), device=self.device)

    def operand(self, at: int, dtype: DType, names: Sequence[str] | None = None) -> Tensor:
        """An operand aligned to `names`, those of the result without them; a scalar and, in this format, a number is
        left as it is."""
        argument = self.args[at]
        if isinstance(argument, Number):
            return self.number(argument, dtype)
        return aligned(argument, self.result.names if names is None else names) if argument.names else argument.tensor

    def index(self, at: int, names: Sequence[str]) -> Tensor | int:
        """As `operand`, of an integer."""
        argument = self.args[at]
        return int(argument.value) if isinstance(argument, Number) else self.operand(at, argument.dtype, names)

    def positions(self, value: NamedTensor, dim: str, names: Sequence[str]) -> Tensor:
        """The indices of a value along `dim`, aligned to `names`; on a chip those of the whole value that it holds."""
        return self._positions(value.size(dim), dim, names, value.held)

    def own_positions(self, dim: str, names: Sequence[str]) -> Tensor:
        """As `positions`, of the result."""
        return self._positions(self.result.size(dim), dim, names, self.held)

    def _positions(self, size: int, dim: str, names: Sequence[str], held: RankShard | None) -> Tensor:
        indices = self.torch.arange(size, device=self.device) if held is None else held.indices_on(self.device, dim)
        return reshaped(indices, (size,), [size if name == dim else 1 for name in names])


Kernel = Callable[[Any, TensorCall], "Tensor | tuple[Tensor, ...]"]


def as_arg(argument: Argument) -> Arg:
    if isinstance(argument, Number):
        return Arg(str(argument), None, argument)

    dims = tuple(Dim(name, size) for name, size in zip(argument.names, argument.shape, strict=True))
    return Arg("", Shape(argument.dtype, dims))


def reshaped(tensor: Tensor, before: Sequence[int], shape: Sequence[int]) -> Tensor:
    """A tensor of the shape `before` in another one."""
    return tensor if list(before) == list(shape) else tensor.reshape(tuple(shape))


def whole_size(value: NamedTensor, dim: str) -> int:
    """The extent of a dimension on all chips together."""
    return value.size(dim) if value.held is None else value.held.size(dim)


def on_chip(index: Tensor, value: NamedTensor, dim: str, call: TensorCall) -> Tensor:
    """Indices of a value's whole dimension as those of what the chip holds, -1 for what it does not."""
    if value.held is None or not value.held.kind.split(dim):
        return index
    here = value.held.indices_on(call.device, dim)
    at = call.torch.searchsorted(here, index).clamp(max=len(here) - 1)
    return call.torch.where(here[at] == index, at, -1)


def in_blocks(value: NamedTensor, dim: str, by: Sequence[str]) -> tuple[Tensor, int, int]:
    """The tensor with the dimension as [its blocks on this chip, what one block holds], where there are several on it;
    how many blocks there are on all; and the axis of what one block holds."""
    n, here = (1, 1) if value.held is None else value.held.blocks(dim, by)
    at, shape = value.names.index(dim), value.shape
    if here == 1:
        return value.tensor, n, at
    return value.tensor.reshape((*shape[:at], here, shape[at] // here, *shape[at + 1 :])), n, at + 1


def axes(value: NamedTensor, dims: Sequence[str]) -> tuple[int, ...]:
    return tuple(value.names.index(name) for name in dims)


def visible(
    call: TensorCall, t: Tensor, queries: tuple[NamedTensor, str] | None, window: Tensor | int | None,
    names: Sequence[str], pos: Tensor | int = 0, length: Tensor | int | None = None,
) -> Tensor | None:  # fmt: skip
    """Tells which positions t queries see, aligned to `names`, extent 1 where a dimension does not matter: those up to
    their own number, of a window the last so many, and those below `length`. None: all."""
    t, seen = call.named(t, "t"), list[Any]()
    if queries is not None:
        last = call.named(call.positions(*queries, names), "last")
        last = last if isinstance(pos, int) and pos == 0 else call.named(last + pos, "last")
        seen.append(t <= last)
        if window is not None:
            seen.append(t > last - window)
    if length is not None:
        seen.append(t < length)
    return reduce(lambda a, b: a & b, seen) if seen else None
