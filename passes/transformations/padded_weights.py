"""Padded arrays: blocks with zeros at their end, made of whole arrays or read box by box."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.ir.index_boxes import Index, box_shape
from shardwright.ir.weight_source import DerivedSource, WeightSource

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class PaddedDim:
    """How one dimension of an array grows.

    Along dimension number `index` the array consists of `blocks` blocks of `before` elements each, which become
    `after` elements: the added ones are zeros at the end of each block.
    """

    index: int
    blocks: int
    before: int
    after: int


@dataclass(frozen=True)
class Padding:
    """The recipe of a padding: for each weight, state and parameter that grows, its dimensions that do.

    `sizes` are the dimensions' new sizes, `parameters` how many elements the declared weights have more.
    """

    sizes: Mapping[str, int]
    arrays: Mapping[str, tuple[PaddedDim, ...]]
    parameters: int


def pad(recipe: Padding, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The arrays by name as the padded program takes them; those that do not grow are handed on as they are.

    Raises ValueError where an array has another size than the recipe was made for.
    """
    import numpy as np

    made = dict(arrays)
    for name, dims in recipe.arrays.items():
        if name not in arrays:
            continue
        array: npt.NDArray[Any] = arrays[name]
        for dim in dims:
            shape = array.shape
            if shape[dim.index] != dim.blocks * dim.before:
                raise ValueError(
                    f"{name} has {shape[dim.index]} elements along its dimension {dim.index},"
                    f" and the recipe is for {dim.blocks * dim.before}"
                )
            before, behind = shape[: dim.index], shape[dim.index + 1 :]
            padded: npt.NDArray[Any] = np.zeros((*before, dim.blocks, dim.after, *behind), array.dtype)
            kept = (slice(None),) * (dim.index + 1)
            padded[(*kept, slice(dim.before))] = array.reshape(*before, dim.blocks, dim.before, *behind)
            array = padded.reshape(*before, dim.blocks * dim.after, *behind)
        made[name] = array
    return made


class PaddedWeights(DerivedSource):
    """The weights of a program after `pad-heads`: `pad`, of which only what is asked for is read."""

    def __init__(self, recipe: Padding, source: WeightSource) -> None:
        super().__init__(source)
        self._dims = {name: {dim.index: dim for dim in dims} for name, dims in recipe.arrays.items()}
        for name in source.names:
            if name in self._dims:
                shape = list(source.shape(name))
                for index, dim in self._dims[name].items():
                    shape[index] = dim.blocks * dim.after
                self.declare(name, tuple(shape), source.dtype(name))

    def make(self, name: str, index: Index) -> npt.NDArray[Any]:
        import numpy as np

        made = np.zeros(box_shape(index), self.dtype(name))
        kept = [list(_kept(self._dims[name].get(i), taken)) for i, taken in enumerate(index)]
        for chosen in itertools.product(*kept):
            made[tuple(target for target, _ in chosen)] = self.source.read(name, tuple(taken for _, taken in chosen))
        return made


def _kept(dim: PaddedDim | None, taken: slice) -> Iterator[tuple[slice, slice]]:
    """The parts of a range that are not added, block by block: where it goes, and where it comes from."""
    if dim is None:
        yield slice(0, taken.stop - taken.start), taken
        return
    for block in range(taken.start // dim.after, -(-taken.stop // dim.after)):
        begin = block * dim.after
        low, high = max(taken.start, begin), min(taken.stop, begin + dim.before)
        if low < high:
            come = block * dim.before + low - begin
            yield slice(low - taken.start, high - taken.start), slice(come, come + high - low)
