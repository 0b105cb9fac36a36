"""The pages of a cache that rows have, for programs that keep keys and values in pages of a pool."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from shardwright.ir.diagnostics import fault
from shardwright.ir.program import Program
from shardwright.models.value_types import Pages

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
    sizes, rows = program.sizes(), table.type.dims[0].size
    missing = [name for name in ("T1", "T2", "T3") if name not in sizes]
    if missing:
        raise fault(
            "no-dimension",
            f"there is no dimension {missing[0]} here; T1 is pages of a row, T2 slots of a page, T3 pages of the pool",
            table.span,
            "shardwright import CHECKPOINT --cache T --page-size S -o FILE writes such a program",
        )
    return PoolSizes(rows, sizes["T1"], sizes["T2"], sizes["T3"])


def cache_sizes(program: Program, cache: int) -> dict[str, int]:
    """The dimension, with its size, that gives each row of a program so many positions, or the pages for them."""
    pool = pool_sizes(program)
    return {"T": cache} if pool is None else {"T1": Pages(pool.page).of_row(cache)}


@dataclass(frozen=True)
class _Content:
    """Tokens whose keys and values a page holds. `key` has them, after the number of what the page before them holds, 0
    where there is none; `scores` are log-probabilities of the tokens after each, where these are known."""

    number: int
    key: tuple[int, tuple[int, ...]]
    scores: tuple[float, ...]


class PageTable:
    """Which pages each row has, which no row has, and what the pages of prompts hold.

    A row is given the pages of its whole text before it is read, so that no text has to wait in its middle. Those that
    hold what the text begins with are given as they are, whichever row had them read, and are not read again; a page
    that no row has keeps what it holds until another text needs it, the one left longest first. Where prompts are
    scored, a page is the same for two texts only if the token after it is.
    """

    def __init__(self, sizes: PoolSizes, *, scored: bool) -> None:
        self.sizes = sizes
        self.free = deque(range(sizes.pages))
        self._after = 1 if scored else 0
        self._held = [0] * sizes.pages
        self._numbers = count(1)
        self._contents: dict[int, _Content] = {}
        self._page_of: dict[tuple[int, tuple[int, ...]], int] = {}
        self._of_rows = np.full((sizes.rows, sizes.per_row), NO_PAGE, np.int32)

    @property
    def array(self) -> npt.NDArray[np.int32]:
        """The table as functions take it."""
        return self._of_rows.copy()

    def fitting(self, texts: Sequence[tuple[Sequence[int], int]]) -> int:
        """For how many of these texts, the first ones, there are pages: the tokens of each that are known, and the
        positions that it may need. Of several, an estimate: seating one may take what another could have had as it
        is."""
        left, kept, number = len(self.free), set[int](), 0
        for tokens, positions in texts:
            known = self._known(tokens)
            woken = {page for page in known if not self._held[page]} - kept
            left -= self._pages(positions) - len(known) + len(woken)
            if left < 0:
                break
            kept |= woken
            number += 1
        return number

    def seat(self, row: int, tokens: Sequence[int], positions: int) -> tuple[int, list[float]]:
        """Gives a row that has none the pages of so many positions. The result is how many of the tokens lie in them,
        at most all but the last, and the log-probabilities that are known of those after them."""
        known = self._known(tokens)
        for page in known:
            self._hold(page)
        fresh = [self._fresh() for _ in range(self._pages(positions) - len(known))]
        self._of_rows[row, : len(known) + len(fresh)] = [*known, *fresh]
        return len(known) * self.sizes.page, [score for page in known for score in self._contents[page].scores]

    def read(self, row: int, tokens: Sequence[int], end: int, scores: Sequence[float]) -> None:
        """The pages of a row hold the tokens before `end` now; `scores` are of the tokens after the first."""
        size, before = self.sizes.page, 0
        for number, at in enumerate(range(size, min(end, len(tokens) - self._after) + 1, size)):
            page = int(self._of_rows[row, number])
            key = (before, tuple(tokens[at - size : at + self._after]))
            if key not in self._page_of:
                self._contents[page] = _Content(next(self._numbers), key, tuple(scores[at - size : at]))
                self._page_of[key] = page
            before = self._contents[self._page_of[key]].number

    def release(self, row: int) -> None:
        """The row has its pages no more. Those that hold nothing go first, then those of the end of its text."""
        for page in reversed([int(page) for page in self._of_rows[row] if page != NO_PAGE]):
            self._held[page] -= 1
            if self._held[page] == 0 and page in self._contents:
                self.free.append(page)
            elif self._held[page] == 0:
                self.free.appendleft(page)
        self._of_rows[row] = NO_PAGE

    def _pages(self, positions: int) -> int:
        return -(-positions // self.sizes.page)

    def _known(self, tokens: Sequence[int]) -> list[int]:
        """The pages that hold what a text begins with, but for its last token, which has to be read."""
        size, before, found = self.sizes.page, 0, list[int]()
        for at in range(size, len(tokens), size):
            page = self._page_of.get((before, tuple(tokens[at - size : at + self._after])))
            if page is None:
                break
            found.append(page)
            before = self._contents[page].number
        return found

    def _hold(self, page: int) -> None:
        if self._held[page] == 0:
            self.free.remove(page)
        self._held[page] += 1

    def _fresh(self) -> int:
        """A free page, which holds nothing from now on."""
        page = self.free.popleft()
        if page in self._contents:
            del self._page_of[self._contents.pop(page).key]
        self._held[page] = 1
        return page
