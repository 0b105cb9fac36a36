"""Shares of a value that indices draw: matrices of experts, pages of a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Draws:
    """Matrices of which those are read that indices draw, the operand `slot` of a grouped product: each of them any of
    so many `matrices` as likely as another, since a router is not known."""

    slot: int
    matrices: int

    @overload
    def share(self, indices: float) -> float: ...
    @overload
    def share(self, indices: NDArray[np.float64]) -> NDArray[np.float64]: ...
    def share(self, indices: float | NDArray[np.float64]) -> float | NDArray[np.float64]:
        """The share of the matrices that so many indices, each a number, can be expected to draw."""
        return 1 - (1 - 1 / self.matrices) ** indices


@dataclass(frozen=True, slots=True)
class PagesRead:
    """Pages that a table of so many `entries` names, the operand `slot` of attention: those of the rows on a chip."""

    slot: int
    entries: int

    @overload
    def share(self, indices: float) -> float: ...
    @overload
    def share(self, indices: NDArray[np.float64]) -> NDArray[np.float64]: ...
    def share(self, indices: float | NDArray[np.float64]) -> float | NDArray[np.float64]:
        """The share of what all rows read, for a chip that has so many entries of the table."""
        return indices / self.entries
