"""The facts known of a value, a line or a function, as a person reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.backends.graph.labels import bytes_text
from shardwright.cost.movements.movement import duration_text

if TYPE_CHECKING:
    from shardwright.cost.programs.program_cost import Cost
    from shardwright.workbench.examine import LineCost, ValueFacts

__all__ = ["bytes_text", "cost_text", "duration_text", "function_text", "held_text"]


def held_text(facts: ValueFacts) -> str:
    """The part of a value that one chip holds."""
    shape = " × ".join(map(str, facts.chip_shape)) or "a number"
    return f"on each chip: {shape}, {bytes_text(facts.chip_bytes)}"


def cost_text(cost: LineCost) -> str:
    """The time that a line takes."""
    moved = f", {bytes_text(cost.received)} received" if cost.received else ""
    bound = f"bound by {' and '.join(cost.bounds)}"
    return f"{duration_text(cost.seconds)}, {100 * cost.share:.1f} % of {cost.func}, {bound}{moved}"


def function_text(cost: Cost) -> str:
    """The time that a call of a function takes."""
    expected = f" ({brief})" if (brief := cost.error_in_brief()) else ""
    return (
        f"{duration_text(cost.time_s)}{expected} on {cost.chip.counted(cost.n_chips)},"
        f" {bytes_text(cost.bytes_received_per_chip)} received and {bytes_text(cost.memory.peak)} held at most a chip"
    )
