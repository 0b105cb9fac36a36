"""Shares of a value that indices draw: matrices of experts, pages of a pool."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Indices = TypeVar("Indices", float, NDArray[np.float64])
"""How many indices a chip has, in one layout or in many."""


@dataclass(frozen=True, slots=True)
class Draws:
    """The matrices that a grouped product reads of its operand `slot`: those that indices draw out of so many
    `matrices`. All are equally likely, since nothing is known of the router."""

    slot: int
    matrices: int

    def share(self, indices: Indices) -> Indices:
        """The share of the matrices that so many indices, each a number, can be expected to draw."""
        missed = cast(Indices, (1 - 1 / self.matrices) ** indices)
        return 1 - missed


@dataclass(frozen=True, slots=True)
class PagesRead:
    """Pages that a table of so many `entries` names, the operand `slot` of attention: those of the rows on a chip."""

    slot: int
    entries: int

    def share(self, indices: Indices) -> Indices:
        """The share of what all rows read, for a chip that has so many entries of the table."""
        return indices / self.entries
