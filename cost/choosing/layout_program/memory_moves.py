"""Movements as rows of memory see them: the bytes of a tree's layouts, and those before and after each step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.layout_program.formulation import Arcs, Tree
from shardwright.cost.choosing.layout_program.timeline import Bytes, Lifetime
from shardwright.cost.choosing.time_placement import Floats


@dataclass(frozen=True, eq=False)
class TreeMoves:
    """A tree's arcs: the bytes of its layouts, and which moves are between chips."""

    tree: Tree
    nbytes: Floats
    between: NDArray[np.bool_]
    arriving: Floats
    """The bytes after a collective from a layout to another: addends are only made by who reads them."""
    layouts: NDArray[np.int64]
    padded: NDArray[np.bool_]
    """The moves that make addends."""

    def there(self, arcs: Arcs, sent: NDArray[np.bool_]) -> Floats:
        """The bytes that arrive by these arcs."""
        return self.arriving[arcs.source[sent], arcs.target[sent]]

    def sent(self, arcs: Arcs) -> NDArray[np.bool_]:
        """The arcs that are collectives."""
        return self.between[arcs.source, arcs.target]

    def sliced(self, arcs: Arcs) -> NDArray[np.bool_]:
        """The arcs that change the layout without one."""
        return (arcs.source != arcs.target) & ~self.between[arcs.source, arcs.target]


@dataclass(frozen=True)
class MoveSteps:
    """A movement's bytes before and after each of its steps."""

    sizes: tuple[float, ...]

    def during(self, value: Lifetime) -> float:
        """The most at once, beside what others count."""
        if value.bytes is Bytes.ELSEWHERE:
            return max([self.sizes[1], *(x + y for x, y in pairwise(self.sizes[1:]))])
        return max(x + y for x, y in pairwise(self.sizes))
