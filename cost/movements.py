"""What one movement does to a type, how many bytes a chip receives for it, and how long it takes.

Letters: V elements of the operand's shard, K chips in a group (the product of the movement's axes).

    all_gather            V (K - 1)
    reduce_scatter        V (1 - 1/K)
    all_to_all            V (1 - 1/K)
    all_reduce            2 V (1 - 1/K), a reduce-scatter and an all-gather: Pope et al. 2022, appendix A.1
    roll                  V, to a neighbour
    permute               what a chip lacks (cost/exchange.py), in rounds and in an all-gather of shares
    slice, as_partial     0
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwright.cost.collectives import CollectiveKind, latency_and_transfer, round_latency, together
from shardwright.cost.exchange import Orders, exchange_of
from shardwright.cost.topology import Topology
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    AsPartial,
    Movement,
    Permute,
    ReduceScatter,
    Roll,
    Slice,
    Start,
)
from shardwright.ir.types import Partial, Reduction, TensorType, axis_set


def bytes_of(elements: int, kind: TensorType) -> int:
    """Bytes of so many elements of a value, rounded up to whole bytes (int4 packs two elements in one)."""
    return -(-elements * kind.dtype.bits // 8)


@dataclass(frozen=True, slots=True)
class Collective:
    """Messages between chips: `nbytes` as `cost.collectives` counts them, `received` what one chip receives.

    `axes` have several chips each; there are none where nobody waits for anybody. The `rounds` of a permute, a message
    each, take the links of an all-to-all in which a chip receives as much, and the shares that are gathered `behind`
    them take those of an all-gather.
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    nbytes: int
    received: int
    rounds: int | None = None
    behind: Collective | None = None

    def latency_and_transfer(self, topology: Topology) -> tuple[float, float]:
        """Seconds of its hops or messages without bytes, and of its bytes alone."""
        latency, transfer = latency_and_transfer(self.kind, self.axes, self.nbytes, topology)
        if self.rounds is not None:
            latency = self.rounds * round_latency(self.axes, topology)
        if self.behind is not None:
            more = self.behind.latency_and_transfer(topology)
            latency, transfer = latency + more[0], transfer + more[1]
        return latency, transfer

    def time_s(self, topology: Topology) -> float:
        """Seconds of all of it."""
        return together(*self.latency_and_transfer(topology), topology)


def collective_of(operation: Movement, operand: TensorType, mesh: Mesh, orders: Orders) -> Collective | None:
    """The collective that a movement of a value of type `operand` is, or starts; None where it is none.

    `orders` are the digits of the dimensions, on which a permute depends.
    """
    operation, kind = operation.moves, collective_kind(operation)
    if kind is None:
        return None
    if isinstance(operation, Permute):
        made = exchange_of(operation, operand, type_after(operation, operand), mesh, orders)
        received = bytes_of(made.received_elements, operand)
        axes = tuple(axis for axis in made.axes if mesh[axis] > 1 and received)
        if not axes:
            return Collective(kind, (), 0, 0)
        whole = tuple(axis for axis in made.whole if mesh[axis] > 1)
        gathered = bytes_of(made.shared * made.unit_elements * mesh.product(whole), operand) if whole else 0
        in_rounds = bytes_of(made.received_in_rounds, operand)
        behind = Collective(CollectiveKind.ALL_GATHER, whole, gathered, received - in_rounds) if gathered else None
        return Collective(
            kind, axes, -(-in_rounds * made.chips // (made.chips - 1)), received, len(made.rounds), behind
        )
    axes = [axis for axis in operation.named_axes if mesh[axis] > 1]
    V, K = operand.local_elements(mesh), mesh.product(axes)
    nbytes = bytes_of(V * K if isinstance(operation, AllGather) else V, operand)
    return Collective(kind, tuple(axes), nbytes, bytes_of(received_elements(operation, V, K), operand))


def received_bytes(operation: Movement, operand: TensorType, mesh: Mesh, orders: Orders | None = None) -> int:
    """Bytes that one chip receives from others for the movement of a value of type `operand`; 0 for copies
    between memories. `orders` as in `collective_of`."""
    collective = collective_of(operation, operand, mesh, orders or {})
    return 0 if collective is None else collective.received


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


def movement_time(operation: Movement, operand: TensorType, topology: Topology, orders: Orders | None = None) -> float:
    """Seconds for the movement of a value of type `operand`; 0 where nothing is received from other chips.

    Copies between memories count as 0 here: they are scheduled and priced by offloading.
    """
    collective = collective_of(operation, operand, Mesh(topology.mesh), orders or {})
    if collective is None:
        return 0.0
    return collective.time_s(topology)


def collective_kind(operation: Movement) -> CollectiveKind | None:
    """The collective that a movement is, or starts; None where it is none."""
    match operation.moves:
        case AllGather():
            return CollectiveKind.ALL_GATHER
        case ReduceScatter():
            return CollectiveKind.REDUCE_SCATTER
        case AllReduce():
            return CollectiveKind.ALL_REDUCE
        case AllToAll() | Permute():
            return CollectiveKind.ALL_TO_ALL
        case Roll():
            return CollectiveKind.PERMUTE
        case _:
            return None


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
        case Permute():
            targets = {axis: dim for dim, _, axes in operation.changes for axis in axes}
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
