"""Prices for the bytes that values take on a chip, by which layouts are found that fit into its memory."""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.cost.choosing.layout_problem import ValueNode


@dataclass(frozen=True)
class MemoryPrices:
    """Nanoseconds for each byte on a chip: `byte_ns` of weights and state, `dear_ns` of those in `dear`, `live_ns` of
    any other value, though not all are live at once. Only what is found with `byte_ns` alone gives a bound; the
    others find choices that take less memory."""

    byte_ns: float = 0.0
    live_ns: float = 0.0
    dear: frozenset[str] = frozenset()
    dear_ns: float = 0.0

    def of_kept(self, name: str) -> float:
        """The price of the bytes of a weight or a state value."""
        return self.dear_ns if name in self.dear else self.byte_ns

    def of(self, node: ValueNode) -> float:
        """The price of a value's bytes."""
        return self.of_kept(node.name) if node.func is None else self.live_ns
