"""The costs of a program as a table: every kernel with what bounds it, then all together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from shardwright.cost.movements.movement import duration_text
from shardwright.cost.programs.program_cost import Cost
from shardwright.ir.text.table import bytes_text, text_table

if TYPE_CHECKING:
    from shardwright.cost.programs.program_cost import KernelCost
    from shardwright.explaining.compiled_costs import CompiledCosts


class Costs(tuple[Cost, ...]):
    """The cost of each function of a program, a tuple that prints as the command `cost` does."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n\n".join(map(cost_table, self))


def cost_table(cost: Cost, compiled: CompiledCosts | None = None) -> str:
    """A function kernel by kernel and in all; beside it what a target's compiler made of it."""
    rows = [
        (
            kernel.work.name,
            kernel.work.operation,
            "" if kernel.work.trips == 1 else f"x{kernel.work.trips}",
            _sides(kernel),
            _moved(kernel),
            *_compiled_bytes(kernel, compiled),
            duration_text(kernel.total_s),
            *_compiled_time(kernel, compiled),
            f"{100 * kernel.total_s * cost.rounds / cost.time_s:.1f} %" if cost.time_s else "",
            kernel.times.bound,
        )
        for kernel in cost.kernels
    ]
    head, aligned = ("value", "operation", "", "product", "bytes", "time", "share", "bound by"), "llrlrrrl"
    if compiled is not None:
        head, aligned = (*head[:5], "compiled", "time", "compiled", *head[6:]), "llrlrrrrrl"
    memory, room = cost.memory, cost.chip.memory_bytes
    fits = "fits" if memory.peak <= room else f"{bytes_text(memory.peak - room)} too much"
    fits = f"; {fits} in {bytes_text(room)}" if math.isfinite(room) else ""
    mesh = f"{cost.chip.counted(cost.n_chips)} ({cost.priced_by})"
    return "\n".join(
        [
            f"{cost.func} on {mesh}",
            "",
            *text_table(head, rows, aligned),
            "",
            f"time           {duration_text(cost.time_s)}",
            f"  compute      {duration_text(cost.compute_s)}",
            f"  memory       {duration_text(cost.memory_s)}",
            f"  links        {duration_text(cost.communication_s)},"
            f" {duration_text(cost.exposed_communication_s)} of it hidden by nothing",
            *([f"  copies       {duration_text(cost.copy_s)} between memories"] if cost.copy_s else []),
            *_compiled_lines(compiled),
            *_pipeline_lines(cost),
            *_token_lines(cost),
            f"memory         {bytes_text(memory.peak)} a chip at {memory.at or 'the start'}:"
            f" weights {bytes_text(memory.weights)}, state {bytes_text(memory.state)},"
            f" values {bytes_text(memory.activations)}{fits}",
            *([f"expect         {error}"] if (error := cost.error_in_words()) else []),
        ]
    )


def _token_lines(cost: Cost) -> tuple[str, ...]:
    """The share of the peak and the time of a token, of functions that read weights: others do no work of a model."""
    if not cost.parameters:
        return ()
    chip_seconds = f"{cost.chip_seconds_per_token:.4g} per token, {cost.tokens} tokens"
    return f"MFU            {100 * cost.mfu:.1f} %", f"chip-seconds   {chip_seconds}"


def _compiled_bytes(kernel: KernelCost, compiled: CompiledCosts | None) -> tuple[str, ...]:
    """The bytes that a movement's collective receives as it was compiled."""
    if compiled is None:
        return ()
    part = compiled.parts[kernel.work.name]
    if kernel.work.collective is None:
        return ("",)
    return (f"with {part.within}" if part.within else bytes_text(part.bytes_received),)


def _compiled_time(kernel: KernelCost, compiled: CompiledCosts | None) -> tuple[str, ...]:
    """The cell of a kernel's time as it was compiled, empty where the compiler made no kernel for it."""
    if compiled is None:
        return ()
    estimated = compiled.parts[kernel.work.name].estimated_s
    return (duration_text(estimated) if estimated else "",)


def _compiled_lines(compiled: CompiledCosts | None) -> list[str]:
    if compiled is None:
        return []
    lines = [f"compiled       for {compiled.target}: {bytes_text(compiled.bytes_received)} received"]
    if compiled.estimated_s is not None:
        by = "as they are priced here" if compiled.priced else "as its compiler estimates them"
        lines[0] += f"; kernels {duration_text(compiled.estimated_s)} {by},"
        moving, other = duration_text(compiled.moving_s), duration_text(compiled.other.estimated_s or 0.0)
        lines.append(f"               {moving} of it for movements, {other} for none of these statements")
    return lines


def _pipeline_lines(cost: Cost) -> list[str]:
    """The stages, their passes with the bubbles, and the way between them."""
    if cost.stages == 1:
        return []
    busy = sum(kernel.total_s for kernel in cost.kernels) * cost.rounds
    between = duration_text(cost.between_stages_s)
    return [f"stages         {cost.stages}, {duration_text(busy)} of passes, {between} between stages"]


def _sides(kernel: KernelCost) -> str:
    product = kernel.work.matmul
    if product is None:
        return ""
    sides = f"{product.m} x {product.k} x {product.n}"
    return sides if product.count == 1 else f"{product.count} of {sides}"


def _moved(kernel: KernelCost) -> str:
    work = kernel.work
    if work.copied is not None:
        return bytes_text(max(work.copied.link_bytes, work.copied.disk_bytes))
    return bytes_text(work.collective.received if work.collective else work.bytes_read + work.bytes_written)
