"""The part of a source's arrays that one process holds: of each dimension the indices of its shard or its layers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardwright.ir.index_boxes import Index, box_shape
from shardwright.ir.weight_source import FileRange, FileSource, WeightSource

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Runs = Sequence[tuple[int, int]]
"""Ascending indices of a dimension, as ranges `(start, stop)`."""


def runs_of(indices: npt.NDArray[np.int64]) -> Runs:
    """Ascending indices as the fewest ranges."""
    import numpy as np

    if not len(indices):
        return ()
    ends = [int(end) for end in np.flatnonzero(np.diff(indices) != 1)]
    starts, stops = [0, *(end + 1 for end in ends)], [*ends, len(indices) - 1]
    return tuple((int(indices[i]), int(indices[j]) + 1) for i, j in zip(starts, stops, strict=True))


class SourcePart:
    """A source of some indices of another's arrays, `held` by name: for each dimension its ranges. An array that is not
    named is all there."""

    def __init__(self, source: FileSource, held: Mapping[str, tuple[Runs, ...]]) -> None:
        self._source = source
        self._held = dict(held)

    @property
    def names(self) -> tuple[str, ...]:
        return self._source.names

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._held:
            return self._source.shape(name)
        return tuple(sum(stop - start for start, stop in runs) for runs in self._held[name])

    def dtype(self, name: str) -> np.dtype[Any]:
        return self._source.dtype(name)

    def read(self, name: str, index: Index) -> npt.NDArray[Any]:
        if name not in self._held:
            return self._source.read(name, index)
        return read_runs(self._source, name, self._held[name], index)

    def file_ranges(self, name: str, index: Index) -> list[FileRange] | None:
        """None too where the box is several of the source's."""
        boxes = [index] if name not in self._held else [box for _, box in _boxes(self._held[name], index)]
        return self._source.file_ranges(name, boxes[0]) if len(boxes) == 1 else None


def read_runs(source: WeightSource, name: str, held: Sequence[Runs], index: Index) -> npt.NDArray[Any]:
    """A box of these ranges of each dimension of an array, which are numbered one behind the other."""
    import numpy as np

    boxes = list(_boxes(held, index))
    if len(boxes) == 1:
        return source.read(name, boxes[0][1])
    made = np.empty(box_shape(index), source.dtype(name))
    for place, box in boxes:
        made[place] = source.read(name, box)
    return made


def _boxes(held: Sequence[Runs], index: Index) -> Iterator[tuple[Index, Index]]:
    """The boxes of the array that make up a box of the ranges, each with its place there."""
    pieces = [list(_pieces(runs, taken)) for runs, taken in zip(held, index, strict=True)]
    for chosen in itertools.product(*pieces):
        yield tuple(place for place, _ in chosen), tuple(taken for _, taken in chosen)


def _pieces(runs: Runs, taken: slice) -> Iterator[tuple[slice, slice]]:
    """The ranges that a slice of the part's indices is made of, each with its place in the slice."""
    at = 0
    for start, stop in runs:
        first, last = max(taken.start, at), min(taken.stop, at + stop - start)
        if first < last:
            place = slice(first - taken.start, last - taken.start)
            yield place, slice(start + first - at, start + last - at)
        at += stop - start
