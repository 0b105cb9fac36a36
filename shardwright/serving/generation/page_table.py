"""The pages of a cache that rows have, for programs that keep keys and values in pages of a pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from shardwright.ir.diagnostics import fault
from shardwright.ir.program import Program

NO_PAGE = -1
"""The entry of a table where a row has no page: nothing is written there, and nothing seen."""


@dataclass(frozen=True)
class PoolSizes:
    """How many rows a table has and how many pages each may have, the positions of a page, and the pages of the pool;
    the dimensions B, T1, T2 and T3 of a program."""

    rows: int
    per_row: int
    page: int
    pages: int


def pool_sizes(program: Program) -> PoolSizes | None:
    """The pages of a program whose decode takes a table of them; None where it takes none.

    Raises where a program with such a table has not the dimensions that say how large its pages are.
    """
    table = next((value for value in program.func("decode").params if value.name == "pages"), None)
    if table is None:
        return None
    sizes = program.sizes()
    missing = [name for name in ("T1", "T2", "T3") if name not in sizes]
    if missing:
        raise fault(
            "no-dimension",
            f"there is no dimension {missing[0]} here; T1 is pages of a row, T2 slots of a page, T3 pages of the pool",
            table.span,
            "shardwright import CHECKPOINT --cache T --page-size S -o FILE writes such a program",
        )
    return PoolSizes(sizes["B"], sizes["T1"], sizes["T2"], sizes["T3"])


def cache_sizes(program: Program, cache: int) -> dict[str, int]:
    """The dimension, with its size, that gives each row of a program so many positions, or the pages for them."""
    pool = pool_sizes(program)
    return {"T": cache} if pool is None else {"T1": -(-cache // pool.page)}


class PageTable:
    """Which pages each row has, those that no row has, and those that all rows have in common.

    A row is given the pages of its whole text before it is read, so that no text has to wait in its middle.
    """

    def __init__(self, sizes: PoolSizes) -> None:
        self.sizes = sizes
        self.free = list(range(sizes.pages))[::-1]
        self.shared: list[int] = []
        self._of_rows = np.full((sizes.rows, sizes.per_row), NO_PAGE, np.int32)

    @property
    def array(self) -> npt.NDArray[np.int32]:
        """The table as functions take it."""
        return self._of_rows.copy()

    def share(self, positions: int) -> int:
        """Takes pages for the first positions of every text, whole ones alone, and says of how many they are. The
        first row has them at once, in which they are read."""
        count = positions // self.sizes.page
        self.shared = [self.free.pop() for _ in range(count)]
        self._of_rows[0, :count] = self.shared
        return count * self.sizes.page

    def own(self, positions: int) -> int:
        """So many pages has a text of its own, beside those that are shared."""
        return max(0, -(-positions // self.sizes.page) - len(self.shared))

    def fitting(self, texts: Sequence[int]) -> int:
        """For how many of these texts, the first ones, by their positions, there are pages."""
        needed = accumulate(self.own(positions) for positions in texts)
        return sum(1 for pages in needed if pages <= len(self.free))

    def give(self, row: int, positions: int) -> None:
        """Gives a row that has none the pages of so many positions, the shared ones first."""
        pages = [*self.shared, *(self.free.pop() for _ in range(self.own(positions)))]
        self._of_rows[row, : len(pages)] = pages

    def take_back(self, row: int) -> None:
        """The pages of a row's own are free again."""
        own = [int(page) for page in self._of_rows[row] if page != NO_PAGE and page not in self.shared]
        self.free += own[::-1]
        self._of_rows[row] = NO_PAGE
