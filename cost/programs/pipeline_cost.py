"""The time of a program whose loop over layers runs over pipeline stages, from the program of one stage.

The stages work one after the other on the same tokens, so one micro-batch takes the time of all layers, and M of them
take (M + P - 1) / P of that: the pipeline fills and drains (Huang et al. 2019, section 2.3). In decode the next token
of a sequence waits for this one, so a step takes max(M, P) / P.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.cost.hardware.chips import Chip
from shardwright.cost.hardware.constants import Constants, KernelDemand, times_of
from shardwright.cost.hardware.topology import topology_of
from shardwright.cost.movements.collectives import CollectiveKind, latency_and_transfer
from shardwright.cost.programs.memory import MemoryUse, device_bytes
from shardwright.cost.programs.program_cost import Cost, cost_of
from shardwright.cost.programs.resizing import resized
from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.program import Func, Loop, Program
from shardwright.ir.stages import Stages
from shardwright.ir.walk import program_values

BATCH = "B"
"""The dimension whose rows micro-batches have."""


def pipeline_cost(
    program: Program, func: Func, stages: Stages, micro_batches: int, chip: Chip, constants: Constants | None = None
) -> Cost:
    """The cost of one call on P stages, from the explicit program of one stage for one of M micro-batches.

    Raises where the mesh with its stages does not fit the chip's interconnect.
    """
    P, M = stages.count, micro_batches
    stages.layers(program)  # refuses those that do not divide
    cost = cost_of(program, func, chip, constants)
    rounds = (max(M, P) if func.name == "decode" else M + P - 1) / P
    carried = _carried_bytes(program, func, stages)
    between = times_of(_between(carried, program, stages, chip), constants or chip.constants).total
    memory = _memory(program, cost.memory, stages, M)
    return replace(
        cost,
        memory=memory,
        n_chips=cost.n_chips * P,
        tokens=cost.tokens * M,
        rounds=rounds,
        stages=P,
        micro_batches=M,
        between_stages_s=(P - 1) * between * rounds,
        between_stages_bytes=carried * M,
    )


def one_micro_batch(program: Program, micro_batches: int) -> Program:
    """The program for the rows of one of so many micro-batches. Raises where they do not divide the batch."""
    rows = program.sizes().get(BATCH, 0)
    if micro_batches == 1:
        return program
    if not rows or rows % micro_batches:
        raise fault("not-divisible", f"{micro_batches} micro-batches do not divide {BATCH}={rows}", NOWHERE)
    return resized(program, {BATCH: rows // micro_batches})


def micro_batches(program: Program, stages: Stages) -> int:
    """The number of micro-batches in flight: one for each stage, or as large a divisor of that as layouts let the batch
    have."""
    batch = program.sizes().get(BATCH, 1)
    over = {
        program.mesh.product(axes or ())
        for _, value in program_values(program)
        for dim, axes in zip(value.type.dims, value.type.splits, strict=True)
        if dim.name == BATCH
    }
    fits = (M for M in range(stages.count, 0, -1) if stages.count % M == 0 and batch % M == 0)
    return next((M for M in fits if not any(batch // M % chips for chips in over)), 1)


def layers_of_stage(program: Program, stages: Stages) -> Program:
    """The program of one stage with its own layers alone. Raises where the stages do not divide the layers."""
    return resized(program, {stages.dim: stages.layers(program)})


def with_all_layers(program: Program, stages: Stages) -> Program:
    """The program of one stage with the layers of all, from that with its own."""
    return resized(program, {stages.dim: program.dim(stages.dim).size * stages.count})


def _carried_bytes(program: Program, func: Func, stages: Stages) -> int:
    """The bytes that a chip of a stage hands on to one of the next: the values that the loop over layers carries."""
    loops = [s for s, _ in func.walk() if isinstance(s, Loop) and s.dim == stages.dim]
    return sum(carry.value.concrete.local_bytes(program.mesh) for loop in loops for carry in loop.carries)


def _between(nbytes: int, program: Program, stages: Stages, chip: Chip) -> KernelDemand:
    """The way of so many bytes from each chip of a stage to one of the next."""
    topology = topology_of(chip, {**stages.axes, **program.mesh})
    latency, transfer = latency_and_transfer(CollectiveKind.PERMUTE, list(stages.axes), nbytes, topology)
    return KernelDemand(transfer_s=transfer, latency_s=latency, kernels=0)


def _memory(program: Program, whole: MemoryUse, stages: Stages, micro_batches: int) -> MemoryUse:
    """A stage has its part of what carries the layers, and the state of all micro-batches."""
    P = stages.count
    weights = sum(
        device_bytes(value, program.mesh) // (P if stages.dim in value.type.names else 1) for value in program.weights
    )
    state = sum(
        device_bytes(value, program.mesh)
        * (micro_batches if BATCH in value.type.names else 1)
        // (P if stages.dim in value.type.names else 1)
        for value in program.state
    )
    return replace(whole, weights=weights, state=state)
