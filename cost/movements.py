"""What one movement does to a type, how many bytes a chip receives for it, and how long it takes.

Letters: V elements of the operand's shard, K chips in a group (the product of the movement's axes).

    all_gather            V (K - 1)
    reduce_scatter        V (1 - 1/K)
    all_to_all            V (1 - 1/K)
    all_reduce            2 V (1 - 1/K), a reduce-scatter and an all-gather: Pope et al. 2022, appendix A.1
    roll                  V, to a neighbour
    slice, as_partial     0
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from shardwright.cost.collectives import CollectiveKind, collective_time
from shardwright.cost.topology import Topology
from shardwright.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    AsPartial,
    Movement,
    ReduceScatter,
    Roll,
    Slice,
    Start,
)
from shardwright.ir.types import Partial, Reduction, TensorType, axis_set


def bytes_of(elements: int, kind: TensorType) -> int:
    """Bytes of so many elements of a value, rounded up to whole bytes (int4 packs two elements in one)."""
    return -(-elements * kind.dtype.bits // 8)


def received_bytes(operation: Movement, operand: TensorType, mesh: Mapping[str, int]) -> int:
    """Bytes that one chip receives from others for the movement of a value of type `operand`; 0 for copies
    between memories."""
    if not operation.communicates:
        return 0
    return bytes_of(received_elements(operation, operand.local_elements(mesh), _chips(operation, mesh)), operand)


def received_elements(operation: Movement | type[Movement], V: int, K: int) -> int:
    """Elements that one of K chips receives for the movement, when each has a shard of V; rounded up."""
    made = operation if isinstance(operation, type) else type(operation.moves)
    if made is AllGather:
        return V * (K - 1)
    if made in (ReduceScatter, AllToAll):
        return -(-V * (K - 1) // K)
    if made is AllReduce:
        return -(-2 * V * (K - 1) // K)
    if made is Roll:
        moves = operation if isinstance(operation, type) else operation.moves
        shift = moves.shift if isinstance(moves, Roll) else 1
        return V if shift % K else 0
    return 0


def communicates(operation: Movement, mesh: Mapping[str, int]) -> bool:
    """Whether chips wait for each other: axes of one chip each make a collective a name only."""
    return operation.communicates and _chips(operation, mesh) > 1


def movement_time(operation: Movement, operand: TensorType, topology: Topology) -> float:
    """Seconds for the movement of a value of type `operand`; 0 where nothing is received from other chips.

    Copies between memories count as 0 here: they are scheduled and priced by offloading.
    """
    kind = collective_kind(operation)
    if kind is None:
        return 0.0
    return collective_time(kind, operation.named_axes, collective_bytes(operation, operand, topology), topology)


def collective_kind(operation: Movement) -> CollectiveKind | None:
    """The collective that a movement is, or starts; None where it is none."""
    match operation.moves:
        case AllGather():
            return CollectiveKind.ALL_GATHER
        case ReduceScatter():
            return CollectiveKind.REDUCE_SCATTER
        case AllReduce():
            return CollectiveKind.ALL_REDUCE
        case AllToAll():
            return CollectiveKind.ALL_TO_ALL
        case Roll():
            return CollectiveKind.PERMUTE
        case _:
            return None


def collective_bytes(operation: Movement, operand: TensorType, topology: Topology) -> int:
    """Bytes as `collective_time` counts them: of an all-gather the result, else the operand's shard."""
    sizes = dict(topology.mesh)
    K = _chips(operation, sizes) if isinstance(operation.moves, AllGather) else 1
    return bytes_of(operand.local_elements(sizes) * K, operand)


def type_after(operation: Movement, operand: TensorType) -> TensorType:
    """The type of the result. The movement must apply to the operand (the verifier sees to it)."""
    if isinstance(operation, Start):
        return replace(type_after(operation.movement, operand), in_flight=True)
    if isinstance(operation, Roll):
        return operand
    placement = operation.placed(operand.placement)
    targets: dict[str, str] = {}
    made_partial: tuple[str, ...] = ()
    match operation:
        case ReduceScatter() | Slice():
            targets = {axis: dim for axes, dim in operation.targets for axis in axes}
        case AllToAll():
            targets = {axis: dim for axes, _, dim in operation.transfers for axis in axes}
        case AsPartial():
            made_partial = operation.axes
        case _:
            pass
    named = set(operation.named_axes)
    splits = tuple(
        axis_set([a for a in axes if a not in named] + [a for a, d in targets.items() if d == dim.name])
        for dim, axes in zip(operand.dims, operand.splits, strict=True)
    )
    axes = axis_set([a for a in operand.partial_axes if a not in named] + list(made_partial))
    kind = Reduction.SUM if made_partial or operand.partial is None else operand.partial.kind
    return TensorType(operand.dtype, operand.dims, splits, Partial(kind, axes) if axes else None, placement)


def duration_text(seconds: float) -> str:
    """`3.2 ms`, to three digits."""
    scale, unit = next((s, u) for s, u in ((1.0, "s"), (1e-3, "ms"), (0.0, "µs")) if seconds >= s)
    return f"{seconds / (scale or 1e-6):.3g} {unit}"


def _chips(operation: Movement, mesh: Mapping[str, int]) -> int:
    return math.prod(mesh[axis] for axis in operation.named_axes)
