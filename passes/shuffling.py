"""Weights stored in the order in which looped collectives read them: which, and how their arrays are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class Shuffled:
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

    def blocks(self) -> npt.NDArray[np.int64]:
        """The block that is read: [trips, halves, chips]."""
        import numpy as np

        K = next(size for row in self.factors for name, size in row if name == self.block)
        trip, chip = np.arange(K)[:, None, None], np.arange(K)[None, None, :]
        way = np.array([1] if self.halves is None else [1, -1])[None, :, None]
        return (chip - way * (trip + self.late)) % K


Shuffling = tuple[Shuffled, ...]
"""How the weights of a program are stored; those that are not named stay as they are."""


def shuffle(recipe: Shuffling, arrays: Mapping[str, npt.ArrayLike]) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of a program's weights as `loop-collectives{weights=shuffled}` stores them, global shapes.

    Every element is there once, at another place. KeyError for a weight that is missing.
    """
    import numpy as np

    made: dict[str, npt.NDArray[np.generic]] = {name: np.asarray(array) for name, array in arrays.items()}
    for entry in recipe:
        names = [name for row in entry.factors for name, _ in row]
        array = made[entry.weight].reshape([size for row in entry.factors for _, size in row])
        front = [entry.block, entry.chip, *([entry.halves] if entry.halves else [])]
        rest = [name for name in names if name not in front]
        array = array.transpose([names.index(name) for name in (*front, *rest)])
        blocks = entry.blocks()
        chips = np.arange(blocks.shape[2])[None, None, :]
        halves = np.arange(blocks.shape[1])[None, :, None]
        taken = array[blocks, chips, halves] if entry.halves else array[blocks, chips][:, 0]
        now = [entry.trip, *([entry.halves] if entry.halves else []), entry.chip, *rest]
        made[entry.weight] = np.ascontiguousarray(taken.transpose([now.index(name) for name in entry.dims]))
    return made
