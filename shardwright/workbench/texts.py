"""The facts known of a value, a line or a function, as a person reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.backends.graph.labels import bytes_text
from shardwright.cost.movements.movement import duration_text

if TYPE_CHECKING:
    from shardwright.cost.programs.program_cost import Cost
    from shardwright.workbench.examine import LineCost, ValueFacts

__all__ = ["bytes_text", "chip_text", "cost_text", "duration_text", "function_text", "held_text"]


def held_text(facts: ValueFacts) -> str:
    """The part of a value that one chip holds."""
    shape = " × ".join(map(str, facts.chip_shape)) or "a number"
    return f"on each chip: {shape}, {bytes_text(facts.chip_bytes)}"


def chip_text(name: str) -> str:
    """The memory and the rates of a chip; its name alone where there is none of that name."""
    from shardwright.cost.hardware.chips import load_chip
    from shardwright.ir.diagnostics import DiagnosticError

    try:
        chip = load_chip(name)
    except DiagnosticError:
        return f"chip `{name}`"
    rates = ", ".join(f"{rate / 1e12:g} Tflop/s in {kind}" for kind, rate in chip.flops_per_s.items())
    whole = chip.memory_bytes + chip.reserved_bytes
    memory = f"{bytes_text(whole)} of memory at {bytes_text(chip.memory_bytes_per_s)}/s"
    left = f", {bytes_text(chip.memory_bytes)} of it for programs" if chip.reserved_bytes else ""
    return f"chip `{name}`: {memory}{left}; {rates}"


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
