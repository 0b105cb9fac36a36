"""The errors of programs for which no layouts were found: why, what memory is lacking, and ways out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardwright.cost.hardware.chips import Chip
from shardwright.cost.movements.movement import duration_text
from shardwright.cost.programs.memory import device_bytes
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault
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


def nothing_meets_demands(program: Program) -> DiagnosticError:
    """The error where neither layouts nor a proof that there are none were found."""
    said = "no layouts were found that meet the demanded types together, nor proved not to be there"
    where = program.funcs[0].span
    return fault("no-placement", said, where, "leave some of them to the compiler: end the layout with ?")


def nothing_by_highs(chip: Chip, bound_s: float, seconds: float) -> DiagnosticError:
    """The error where HiGHS alone found no layouts in so many seconds; none takes less than `bound_s`, infinite where
    none fits."""
    if bound_s == math.inf:
        said = f"no layouts fit in the {bytes_text(chip.memory_bytes)} of {chip.name}"
        return fault("does-not-fit", said, NOWHERE, "leave out --solver ortools to be told what takes most")
    said = f"HiGHS found no layouts in {seconds:.3g} s"
    if bound_s > 0:
        said += f"; none takes less than {duration_text(bound_s)}"
    return fault("out-of-time", said, NOWHERE, "leave out --solver ortools, or give more time")


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
