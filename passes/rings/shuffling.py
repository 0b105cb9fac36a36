"""Weights stored in the order in which looped collectives read them: which, and how their arrays are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from shardwright.ir.index_boxes import Index, box_shape
from shardwright.ir.weight_source import DerivedSource, WeightSource

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class ShuffledWeight:
    """How one weight is stored for a ring of K chips.

    `factors` are the weight's dimensions, each as the factors (name, size) of its index. Of these `block` tells the
    blocks of the ring's dimension, `chip` whose columns (or rows) they meet, and `halves`, if any, what goes round
    the other way. Stored, `block` gives way to the trip in which a chip reads it, which comes after the leading
    dimensions of loops, then the halves: in trip j chip s reads block s - j - `late`, or s + j + `late` of what goes
    the other way, modulo K. `dims` are the stored dimensions.
    """

    weight: str
    factors: tuple[tuple[tuple[str, int], ...], ...]
    block: str
    chip: str
    trip: str
    halves: str | None
    late: int
    dims: tuple[str, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """The extents of the stored dimensions, and of `block`."""
        made = {name: size for row in self.factors for name, size in row}
        return {**made, self.trip: made[self.block]}

    def read_block(self, trip: int, half: int, chip: int) -> int:
        """The block that a chip reads in a trip, of the half that goes up (0) or down (1)."""
        moved = trip + self.late
        return (chip - moved if half == 0 else chip + moved) % self.sizes[self.block]


Shuffling = tuple[ShuffledWeight, ...]
"""How the weights of a program are stored; those that are not named stay as they are."""


def shuffle(recipe: Shuffling, arrays: Mapping[str, npt.ArrayLike]) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of a program's weights as `loop-collectives{shuffle=true}` stores them, global shapes.

    Every element is there once, at another place. KeyError for a weight that is missing.
    """
    import numpy as np

    made: dict[str, npt.NDArray[np.generic]] = {name: np.asarray(array) for name, array in arrays.items()}
    for entry in recipe:
        names = [name for row in entry.factors for name, _ in row]
        array = made[entry.weight].reshape([size for row in entry.factors for _, size in row])
        halves = () if entry.halves is None else (entry.halves,)
        front = (entry.block, entry.chip, *halves)
        rest = [name for name in names if name not in front]
        array = array.transpose([names.index(name) for name in (*front, *rest)])
        K, ways = array.shape[0], 2 if halves else 1
        read = np.array([[[entry.read_block(j, h, s) for s in range(K)] for h in range(ways)] for j in range(K)])
        if halves:
            taken = array[read, np.arange(K)[None, None, :], np.arange(ways)[None, :, None]]
        else:
            taken = array[read[:, 0], np.arange(K)[None, :]]
        now = [entry.trip, *halves, entry.chip, *rest]
        made[entry.weight] = np.ascontiguousarray(taken.transpose([now.index(name) for name in entry.dims]))
    return made


class ShuffledWeights(DerivedSource):
    """The weights of a program after `loop-collectives{shuffle=true}`: `shuffle`, of which only what is asked for is
    read, block by block."""

    def __init__(self, recipe: Shuffling, source: WeightSource) -> None:
        super().__init__(source)
        self._entries = {entry.weight: entry for entry in recipe}
        for entry in recipe:
            sizes = entry.sizes
            self.declare(entry.weight, tuple(sizes[name] for name in entry.dims), source.dtype(entry.weight))

    def make(self, name: str, index: Index) -> npt.NDArray[Any]:
        import numpy as np

        entry = self._entries[name]
        made = np.empty(box_shape(index), self.dtype(name))
        wanted = dict(zip(entry.dims, index, strict=True))
        halves = range(1) if entry.halves is None else _numbers(wanted[entry.halves])
        for trip, half, chip in product(_numbers(wanted[entry.trip]), halves, _numbers(wanted[entry.chip])):
            digits = {entry.trip: trip, entry.chip: chip, entry.block: entry.read_block(trip, half, chip)}
            if entry.halves is not None:
                digits[entry.halves] = half
            for rows in product(*(_rows(row, wanted, digits) for row in entry.factors)):
                at = {**digits, **{key: value for _, known, _ in rows for key, value in known.items()}}
                ranges = [last for _, _, last in rows if last is not None]
                block = self.source.read(name, tuple(box for box, _, _ in rows))
                block = block.reshape([wanted[last].stop - wanted[last].start for last in ranges])
                order = [ranges.index(dim) for dim in entry.dims if dim in ranges]
                place = tuple(slice(None) if dim in ranges else at[dim] - wanted[dim].start for dim in entry.dims)
                made[place] = block.transpose(order)
        return made


def _numbers(taken: slice) -> range:
    return range(taken.start, taken.stop)


def _rows(
    row: tuple[tuple[str, int], ...], wanted: Mapping[str, slice], digits: Mapping[str, int]
) -> Iterator[tuple[slice, dict[str, int], str | None]]:
    """Contiguous stretches of a dimension that are wanted: where, at which digits, and the factor that runs along it.

    Factors in `digits` have one value; of the others all that are wanted, the last as a stretch.
    """
    *leading, (last, extent) = row
    choices = [[digits[name]] if name in digits else _numbers(wanted[name]) for name, _ in leading]
    for values in product(*choices):
        start = 0
        for value, (_, size) in zip(values, leading, strict=True):
            start = start * size + value
        known = {name: value for value, (name, _) in zip(values, leading, strict=True)}
        if last in digits:
            at = start * extent + digits[last]
            yield slice(at, at + 1), known, None
        else:
            yield slice(start * extent + wanted[last].start, start * extent + wanted[last].stop), known, last
