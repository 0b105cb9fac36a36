"""The effect of one movement on a type, how many bytes a chip receives for it, and how long it takes.

Letters: V elements of the operand's shard, K chips in a group (the product of the movement's axes).

    all_gather            V (K - 1)
    reduce_scatter        V (1 - 1/K)
    all_to_all            V (1 - 1/K)
    all_reduce            2 V (1 - 1/K), a reduce-scatter and an all-gather: Pope et al. 2022, appendix A.1
    roll                  V, to a neighbour
    permute               what a chip lacks (cost/movements/exchange.py), in rounds and in an all-gather of shares
    slice, as_partial     0
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from shardwright.cost.hardware.topology import Topology
from shardwright.cost.movements.collectives import CollectiveKind, latency_and_transfer, round_latency, together
from shardwright.cost.movements.exchange import Orders, exchange_of
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import AllGather, AllReduce, AllToAll, Movement, Permute, ReduceScatter, Roll, Start
from shardwright.ir.text.table import to_three_digits
from shardwright.ir.types import Partial, Reduction, TensorType, axis_set


class MovementPrice(NamedTuple):
    """The price of a movement that is a collective."""

    kind: CollectiveKind
    times: int = 1
    """How often a chip receives all but its own part, 1/K, of what the movement is of."""
    of_result: bool = False
    """Tells whether that is the result's shard, rather than the operand's."""


COLLECTIVES: dict[type[Movement], MovementPrice] = {
    AllGather: MovementPrice(CollectiveKind.ALL_GATHER, of_result=True),
    ReduceScatter: MovementPrice(CollectiveKind.REDUCE_SCATTER),
    AllToAll: MovementPrice(CollectiveKind.ALL_TO_ALL),
    AllReduce: MovementPrice(CollectiveKind.ALL_REDUCE, times=2),
    Roll: MovementPrice(CollectiveKind.PERMUTE),
    Permute: MovementPrice(CollectiveKind.ALL_TO_ALL),
}
"""Every movement that chips wait for each other in. What a roll and a permute receive depends on more than V and K."""


@dataclass(frozen=True, slots=True)
class Collective:
    """Messages between chips: `nbytes` as `cost.movements.collectives` counts them, `received` what one chip receives.

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

    @property
    def waits(self) -> int:
        """How often chips wait for others: a permute does in each of its rounds."""
        own = bool(self.axes) if self.rounds is None else self.rounds
        return own + (self.behind.waits if self.behind is not None else 0)

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
    operation = operation.moves
    prices = COLLECTIVES.get(type(operation))
    if prices is None:
        return None
    kind = prices.kind
    if isinstance(operation, Permute):
        made = exchange_of(operation, operand, type_after(operation, operand), mesh, orders)
        received = operand.bytes_of(made.received_elements)
        axes = tuple(axis for axis in made.axes if mesh[axis] > 1 and received)
        if not axes:
            return Collective(kind, (), 0, 0)
        whole = tuple(axis for axis in made.whole if mesh[axis] > 1)
        gathered = operand.bytes_of(made.shared * made.unit_elements * mesh.product(whole)) if whole else 0
        in_rounds = operand.bytes_of(made.received_in_rounds)
        behind = Collective(CollectiveKind.ALL_GATHER, whole, gathered, received - in_rounds) if gathered else None
        return Collective(
            kind, axes, -(-in_rounds * made.chips // (made.chips - 1)), received, len(made.rounds), behind
        )
    axes = [axis for axis in operation.named_axes if mesh[axis] > 1]
    V, K = operand.local_elements(mesh), mesh.product(axes)
    nbytes = operand.bytes_of(V * K if prices.of_result else V)
    return Collective(kind, tuple(axes), nbytes, operand.bytes_of(received_elements(operation, V, K)))


def received_bytes(operation: Movement, operand: TensorType, mesh: Mesh, orders: Orders | None = None) -> int:
    """Bytes that one chip receives from others for the movement of a value of type `operand`; 0 for copies
    between memories. `orders` as in `collective_of`."""
    collective = collective_of(operation, operand, mesh, orders or {})
    return 0 if collective is None else collective.received


def received_elements(operation: Movement | type[Movement], V: int, K: int) -> int:
    """Elements that one of K chips receives for the movement, when each has a shard of V; rounded up."""
    if isinstance(operation, Movement) and isinstance(operation.moves, Roll):
        return V if operation.moves.shift % K else 0
    prices = COLLECTIVES.get(operation if isinstance(operation, type) else type(operation.moves))
    return 0 if prices is None else -(-prices.times * V * (K if prices.of_result else 1) * (K - 1) // K)


def collective_kind(operation: Movement) -> CollectiveKind | None:
    """The collective that a movement is, or starts; None where it is none."""
    prices = COLLECTIVES.get(type(operation.moves))
    return None if prices is None else prices.kind


def type_after(operation: Movement, operand: TensorType) -> TensorType:
    """The type of the result. The movement must apply to the operand (the verifier sees to it)."""
    if isinstance(operation, Start):
        return replace(type_after(operation.movement, operand), in_flight=True)
    named = {axis: operation.after(axis) for axis in operation.named_axes}
    splits = tuple(
        axis_set([a for a in axes if a not in named] + [a for a, state in named.items() if state == dim.name])
        for dim, axes in zip(operand.dims, operand.splits, strict=True)
    )
    made = [axis for axis, state in named.items() if isinstance(state, Reduction)]
    axes = axis_set([a for a in operand.partial_axes if a not in named] + made)
    kind = Reduction.SUM if made or operand.partial is None else operand.partial.kind
    partial = Partial(kind, axes) if axes else None
    return TensorType(operand.dtype, operand.dims, splits, partial, operation.placed(operand.placement))


def duration_text(seconds: float) -> str:
    """`3.2 ms`, to three digits."""
    rounded = to_three_digits(seconds)
    scale, unit = next((s, u) for s, u in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (0.0, "ns")) if rounded >= s)
    shown = seconds / (scale or 1e-9)
    return f"{to_three_digits(shown):g} {unit}" if unit != "ns" or shown >= 0.1 else "0 ns" if not shown else "< 0.1 ns"
