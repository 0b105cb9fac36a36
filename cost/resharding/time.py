"""The fastest of several ways to move a value on a chip's interconnect, each collective jointly or axis by axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardwright.cost.hardware.topology import Topology
from shardwright.cost.movements.collectives import CollectiveKind, joint_or_sequential
from shardwright.cost.movements.exchange import Orders
from shardwright.cost.movements.movement import collective_of, duration_text, type_after
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import AllGather, AllReduce, AllToAll, Fetch, Movement, Permute, ReduceScatter
from shardwright.ir.types import ON_DEVICE, Axes, TensorType


def fastest(
    candidates: Iterable[Sequence[Movement]], source: TensorType, topology: Topology, orders: Orders
) -> tuple[list[Movement], str | None]:
    """The candidate that takes the least time, the first of equals, and a remark on steps that are kept apart."""
    best: tuple[float, list[Movement], str | None] | None = None
    for candidate in candidates:
        total = 0.0
        operations: list[Movement] = []
        remarks: list[str] = []
        kind = source if source.placement == ON_DEVICE else type_after(Fetch(), source)
        for operation in candidate:
            parts, seconds, remark = _joint_or_apart(operation, kind, topology, orders)
            operations.extend(parts)
            total += seconds
            if remark:
                remarks.append(remark)
            kind = type_after(operation, kind)
        if best is None or total < best[0] * (1 - 1e-9):
            best = total, operations, "; ".join(remarks) or None
    if best is None:
        raise ValueError("no candidates")
    return best[1], best[2]


def _joint_or_apart(
    operation: Movement, operand: TensorType, topology: Topology, orders: Orders
) -> tuple[list[Movement], float, str | None]:
    collective = collective_of(operation, operand, Mesh(topology.mesh), orders)
    if collective is None:
        return [operation], 0.0, None
    if isinstance(operation, Permute):
        return [operation], collective.time_s(topology), None
    steps = joint_or_sequential(collective.kind, collective.axes, collective.nbytes, topology)
    if not steps.sequential_s < steps.joint_s * (1 - 1e-9):
        return [operation], steps.joint_s, None
    still = [axis for axis in operation.named_axes if axis not in steps.order]  # axes of one chip ride along
    parts = [_restricted(operation, {axis, *(still if i == 0 else ())}) for i, axis in enumerate(steps.order)]
    article = "a" if collective.kind is CollectiveKind.REDUCE_SCATTER else "an"
    remark = (
        f"{article} {collective.kind} over {' then '.join(steps.order)} takes {duration_text(steps.sequential_s)} on"
        f" {topology.chip.name}, a joint one {duration_text(steps.joint_s)}"
    )
    return parts, steps.sequential_s, remark


def _restricted(operation: Movement, axes: set[str]) -> Movement:
    """The part of a collective over some of its axes."""

    def kept(those: Axes) -> Axes:
        return tuple(axis for axis in those if axis in axes)

    match operation:
        case AllGather():
            return AllGather(kept(operation.axes))
        case AllReduce():
            return AllReduce(kept(operation.axes))
        case ReduceScatter():
            return ReduceScatter(tuple((kept(a), dim) for a, dim in operation.targets if kept(a)))
        case AllToAll():
            return AllToAll(tuple((kept(a), s, t) for a, s, t in operation.transfers if kept(a)))
        case _:
            return operation
