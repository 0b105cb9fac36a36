"""Values that were read of state before it is set anew: they are what they were, and so must not lie in its memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from shardwright.backends.torch.entries import TensorEntry
from shardwright.backends.torch.homes import Home, Part
from shardwright.ir.types import Tier

if TYPE_CHECKING:
    from torch import Tensor


def lying_in(
    values: Mapping[str, TensorEntry], home: Home, part: Part, written: TensorEntry | None = None
) -> Iterator[str]:
    """The names, but for the home's own, of what lies in a part of it; of what this is `written` to it is the same
    before and after."""
    memory = home.whole.get(Tier.DEVICE)
    first, last = _bounds(memory) if memory is not None else (0, 0)
    for name, entry in values.items():
        if entry.home is not None and entry.home is not home:
            continue
        if name == home.value.name or (written is not None and same(entry, written)):
            continue
        tensor = entry.tensor if entry.tensor is not None else entry.raw
        if tensor is None:
            found = entry.home is home and meet(entry.part, part)
        else:
            found = first <= tensor.data_ptr() < last and _overlap(tensor, home, part)
        if found:
            yield name


def lies_at_home(tensor: Tensor, homes: Iterable[Home]) -> bool:
    """True if a tensor lies in the memory of a home, where another number may be written to it."""
    memories = (memory for home in homes if (memory := home.whole.get(Tier.DEVICE)) is not None)
    return any(first <= tensor.data_ptr() < last for first, last in map(_bounds, memories))


def same(entry: TensorEntry, written: TensorEntry) -> bool:
    """True if both are one tensor, or one part with the same new rows."""
    if entry.tensor is not None and written.tensor is not None and _alike(entry.tensor, written.tensor):
        return True
    one, other = entry.rows, written.rows
    if (entry.home, entry.part) != (written.home, written.part):
        return False
    if one is None or other is None:
        return one is other and entry.tensor is written.tensor is None and entry.raw is written.raw is None
    return (one.dim, one.positions) == (other.dim, other.positions) and _alike(one.new, other.new)


def _alike(one: Tensor, other: Tensor) -> bool:
    return (one.data_ptr(), one.shape, one.stride()) == (other.data_ptr(), other.shape, other.stride())


def memory_at(tensor: Tensor) -> int:
    """Where the memory begins that a tensor lies in, maybe with others."""
    return tensor.untyped_storage().data_ptr()


def meet(one: Part, other: Part) -> bool:
    """True if two parts of a home have something in common."""
    return all(a == b for a, b in zip(one, other, strict=True) if isinstance(a, int) and isinstance(b, int))


def _overlap(tensor: Tensor, home: Home, part: Part) -> bool:
    first, last = _bounds(tensor)
    slices = (_bounds(home.kept[index, Tier.DEVICE]) for index in home.covered(part))
    return any(first < end and begin < last for begin, end in slices)


def _bounds(tensor: Tensor) -> tuple[int, int]:
    """The addresses where a tensor begins and ends."""
    begin, sizes = tensor.data_ptr(), zip(tensor.shape, tensor.stride(), strict=True)
    return begin, begin + (1 + sum((n - 1) * step for n, step in sizes)) * tensor.element_size()
