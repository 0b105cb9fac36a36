"""Totals of a compiled module: bytes that one device receives, and collectives executed."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.backends.hlo.collectives import CompiledCollective, collectives_of, most_received
from shardwright.backends.hlo.executed import most
from shardwright.backends.hlo.module import HloError, parse


@dataclass(frozen=True)
class Counts:
    """The collectives of a module, with their sums."""

    collectives: tuple[CompiledCollective, ...]

    @property
    def number(self) -> int:
        """How many collectives are executed, in the branches that have most."""
        return most([(c.branches, c.executions) for c in self.collectives])

    @property
    def bytes(self) -> int:
        """Bytes that a device receives, in the branches that receive most."""
        return most_received([(c.branches, c.bytes, c.receivers) for c in self.collectives])

    @property
    def bytes_with_reduce_scatters(self) -> int:
        """The same, all-reduces that are sliced at once counted as the reduce-scatters that they could be."""
        return most_received([(c.branches, c.lower_bound, c.receivers) for c in self.collectives])


def count(text: str) -> Counts:
    """The sums of a compiled module. Raises `HloError` for a collective whose groups or trips the text does not say."""
    collectives = tuple(collectives_of(parse(text)))
    for each in collectives:
        if each.trips is None:
            raise HloError(f"{each.name} is in a loop without a known trip count")
    return Counts(collectives)
