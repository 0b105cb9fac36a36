"""Values that are spread over memories: how many rows along a dimension lie where."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from shardwright.ir.types import Placement, Tier


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows `start` to `stop` of a dimension, in one memory."""

    tier: Tier
    start: int
    stop: int

    @property
    def count(self) -> int:
        return self.stop - self.start


def rows_of(placement: Placement, size: int) -> tuple[Rows, ...]:
    """The rows in each memory, device first, then host, then disk: each share is kept to within a row."""
    shares = dict.fromkeys(Tier, 0.0)
    for tier, percent in placement.shares:
        shares[tier] += percent
    made: list[Rows] = []
    start, total = 0, 0.0
    for tier in Tier:
        total += shares[tier]
        stop = min(size, round(size * total / 100))
        if stop > start:
            made.append(Rows(tier, start, stop))
        start = max(start, stop)
    return tuple(made)


def joined(pieces: tuple[Rows, ...], at_hand: Set[Tier]) -> tuple[Rows, ...]:
    """Where rows lie for a device that computes with what is in the memories `at_hand`: as the device's own."""
    stop = max((rows.stop for rows in pieces if rows.tier in at_hand), default=0)
    others = tuple(rows for rows in pieces if rows.tier not in at_hand)
    return ((Rows(Tier.DEVICE, 0, stop),) if stop else ()) + others


def rows_on(pieces: tuple[Rows, ...], tier: Tier) -> Rows:
    """Those on one tier, none of them perhaps."""
    return next((rows for rows in pieces if rows.tier is tier), Rows(tier, 0, 0))
