"""Rows of values that are spread over memories, as a device sees them."""

from __future__ import annotations

from collections.abc import Set

from shardwright.ir.memory_shares import Rows
from shardwright.ir.types import Tier


def joined(pieces: tuple[Rows, ...], at_hand: Set[Tier]) -> tuple[Rows, ...]:
    """Where rows lie for a device that computes with what is in the memories `at_hand`: as the device's own."""
    stop = max((rows.stop for rows in pieces if rows.tier in at_hand), default=0)
    others = tuple(rows for rows in pieces if rows.tier not in at_hand)
    return ((Rows(Tier.DEVICE, 0, stop),) if stop else ()) + others


def rows_on(pieces: tuple[Rows, ...], tier: Tier) -> Rows:
    """The rows on one tier, perhaps none."""
    return next((rows for rows in pieces if rows.tier is tier), Rows(tier, 0, 0))
