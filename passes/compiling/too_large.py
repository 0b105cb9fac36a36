"""The error of programs that fit in no layouts that were tried: the memory that is lacking, and ways to fit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardwright.cost.programs.memory import device_bytes
from shardwright.ir.program import Program
from shardwright.ir.text.table import bytes_text
from shardwright.ir.types import ON_DEVICE, TensorType
from shardwright.passes.compiling.found import SearchResult, TooLargeError


def too_large(tried: Sequence[SearchResult], program: Program, bound_s: float) -> TooLargeError:
    """The error of a program before its layouts were chosen, by the result that takes the least memory; nothing that
    fits takes less than `bound_s`."""
    found = min(tried, key=lambda found: found.peak)
    chip = found.objective.chip
    cost = max(found.costs, key=lambda cost: cost.memory.peak)
    memory, room = cost.memory, chip.memory_bytes
    parts = {"weights": memory.weights, "state": memory.state, "activations": memory.activations}
    listed = ", ".join(f"{bytes_text(size)} of {part}" for part, size in parts.items() if size)
    notes = [f"a chip would hold {listed}"]
    if memory.live:
        notes.append(f"the largest activation is {memory.live[0].name}, {bytes_text(memory.live[0].bytes)}")
    sure = _least_kept(program) > room
    which = "whatever the layouts" if sure else "in the layouts that take least of those tried"
    chips = cost.n_chips * math.ceil(memory.peak / room)
    notes.append(f"about {chips} chips would hold it, split as far as it is now")
    wide = sum(
        device_bytes(value, found.program.mesh) for value in found.program.weights if value.shape.dtype.bits == 16
    )
    if wide and memory.fits_in_int8(room, wide):
        notes.append("int8 weights would fit: run quantize-weights first")
    largest = max(parts, key=lambda part: parts[part])
    if largest != "weights":
        notes.append("a smaller batch or a shorter context makes it smaller")
    return TooLargeError(
        memory,
        f"{cost.func} needs {bytes_text(memory.peak)} on each chip, {bytes_text(memory.peak - room)} more than the"
        f" {bytes_text(room)} of {chip.name}, {which}",
        notes,
        bound_s,
    )


def _least_kept(program: Program) -> float:
    """The bytes of weights and state on a chip at least, whatever the layouts: each over all chips, unless its type is
    written."""
    n_chips = program.mesh.n_chips
    kinds = (value.type for value in (*program.weights, *program.state))
    kept = (kind for kind in kinds if kind.placement in (None, ON_DEVICE))
    return sum(
        kind.local_bytes(program.mesh)
        if isinstance(kind, TensorType)
        else kind.shape.elements * kind.shape.dtype.bits / 8 / n_chips
        for kind in kept
    )
