"""Packed weights: several in one array, block by block, made of whole arrays or read box by box."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.ir.index_boxes import Index, box_shape, boxes
from shardwright.ir.weight_source import DerivedSource, WeightSource

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class PackedPart:
    """A weight before it was packed: its dimensions, and those among them that the packed dimension holds."""

    weight: str
    dims: tuple[str, ...]
    packed: tuple[str, ...]


@dataclass(frozen=True)
class PackedWeight:
    """A packed weight. `blocks` is how many blocks of the packed dimension hold a block of each part, in turn.

    `func` names the function whose parameter it is; None for a weight of the program.
    """

    name: str
    func: str | None
    dims: tuple[str, ...]
    dim: str
    by: tuple[str, ...]
    blocks: int
    parts: tuple[PackedPart, ...]


Packing = tuple[PackedWeight, ...]
"""Which weights go where."""


def pack(
    recipe: Packing, arrays: Mapping[str, npt.ArrayLike], func: str | None = None
) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays with packed ones in place of their parts, global shapes as the program declares them.

    `arrays` are the weights of the program; or with `func` the arguments of that function. KeyError for a part
    that is not among them.
    """
    import numpy as np

    made: dict[str, npt.NDArray[np.generic]] = {name: np.asarray(array) for name, array in arrays.items()}
    for packed in recipe:
        if packed.func != func:
            continue
        at = packed.dims.index(packed.dim)
        blocks: list[npt.NDArray[np.generic]] = []
        for part in packed.parts:
            array = made.pop(part.weight)
            wanted = [d for dim in packed.dims for d in (part.packed if dim == packed.dim else (dim,))]
            array = array.transpose([part.dims.index(dim) for dim in wanted])
            shape = (*array.shape[:at], packed.blocks, -1, *array.shape[at + len(part.packed) :])
            blocks.append(array.reshape(shape))
        whole = np.concatenate(blocks, axis=at + 1)
        made[packed.name] = whole.reshape(*whole.shape[:at], -1, *whole.shape[at + 2 :])
    return made


class PackedWeights(DerivedSource):
    """The weights of a program after `fuse-parallel-block`: `pack`, of which only what is asked for is read."""

    def __init__(self, recipe: Packing, source: WeightSource) -> None:
        import numpy as np

        self._recipes = {packed.name: packed for packed in recipe if packed.func is None}
        super().__init__(source, dropped=[part.weight for packed in self._recipes.values() for part in packed.parts])
        for name, packed in self._recipes.items():
            first = packed.parts[0]
            extents = dict(zip(first.dims, source.shape(first.weight), strict=True))
            size = sum(math.prod(self._extents(part)) for part in packed.parts)
            shape = tuple(size if dim == packed.dim else extents[dim] for dim in packed.dims)
            self.declare(name, shape, np.result_type(*(source.dtype(part.weight) for part in packed.parts)))

    def _extents(self, part: PackedPart) -> list[int]:
        """The sizes of the dimensions that are packed."""
        sizes = dict(zip(part.dims, self.source.shape(part.weight), strict=True))
        return [sizes[dim] for dim in part.packed]

    def make(self, name: str, index: Index) -> npt.NDArray[Any]:
        import numpy as np

        packed = self._recipes[name]
        made = np.empty(box_shape(index), self.dtype(name))
        at = packed.dims.index(packed.dim)
        view = np.moveaxis(made, at, 0)
        done = 0
        for part, box in self._pieces(packed, index[at].start, index[at].stop):
            wanted = dict(zip(packed.dims, index, strict=True)) | dict(zip(part.packed, box, strict=True))
            array = self.source.read(part.weight, tuple(wanted[dim] for dim in part.dims))
            others = [dim for dim in packed.dims if dim != packed.dim]
            array = array.transpose([part.dims.index(dim) for dim in (*part.packed, *others)])
            array = array.reshape(-1, *array.shape[len(part.packed) :])
            view[done : done + len(array)] = array
            done += len(array)
        return made

    def _pieces(self, packed: PackedWeight, start: int, stop: int) -> Iterator[tuple[PackedPart, Index]]:
        """The pieces in a range of the packed dimension: boxes of the parts' packed dimensions."""
        extents = [self._extents(part) for part in packed.parts]
        shares = [math.prod(sizes) // packed.blocks for sizes in extents]  # of a part in a block
        block = sum(shares)
        for number in range(start // block, -(-stop // block)):
            begin = number * block
            for part, sizes, share in zip(packed.parts, extents, shares, strict=True):
                low, high = max(start, begin), min(stop, begin + share)
                first = number * share - begin
                for box in boxes(sizes, first + low, first + high) if low < high else ():
                    yield part, box
                begin += share
