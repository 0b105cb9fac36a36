"""Shares of several memories: which rows of a dimension lie where, and where what is read of them lies."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.ir.types import Placement, Shape, Tier


@dataclass(frozen=True, slots=True)
class TierRows:
    """Rows `start` to `stop` of a dimension, in one memory."""

    tier: Tier
    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.start


def rows_of(placement: Placement, size: int) -> tuple[TierRows, ...]:
    """The rows in each memory, device first, then host, then disk: each share is kept to within a row."""
    shares = dict.fromkeys(Tier, 0.0)
    for tier, percent in placement.shares:
        shares[tier] += percent
    made: list[TierRows] = []
    start, total = 0, 0.0
    for tier in Tier:
        total += shares[tier]
        stop = min(size, round(size * total / 100))
        if stop > start:
            made.append(TierRows(tier, start, stop))
        start = max(start, stop)
    return tuple(made)


def home_of_rows(placement: Placement, size: int, start: int, stop: int) -> Placement | None:
    """The memory in which rows `start` to `stop` of a dimension of this size lie, None where they are in several."""
    tier = next((rows.tier for rows in rows_of(placement, size) if rows.start <= start and stop <= rows.stop), None)
    return None if tier is None else Placement(((tier, 100.0),))


def home_along(placement: Placement, source: Shape, dim: str, result: Shape) -> Placement | None:
    """The same shares along a dimension of the result into whose rows those of the source are joined or cut, with its
    outer rows outermost; None where a row of either would lie in several memories."""
    was, becomes = source.size(str(placement.along)), result.size(dim)
    ends = [rows.stop / was for rows in rows_of(placement, was)]
    fits = ends == [rows.stop / becomes for rows in rows_of(placement, becomes)]
    return Placement(placement.shares, dim) if fits else None


def is_written(placement: Placement, shape: Shape) -> bool:
    """Tells whether a type of this shape can say the placement: a slice of what is shared along a loop's dimension,
    which it has no more, lies in one memory or in another by the trip."""
    return placement.along is None or placement.along in shape
