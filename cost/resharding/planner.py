"""The movement planner: the cheapest way from one type of a value to another.

Where the digits of both types fit together, joint movements of digits are the way (`cost.resharding.digits`). Where
they do not, or where no dimension has room for a split that would be better, it is searched for
(`cost.resharding.search`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from itertools import islice, pairwise, permutations, product

from shardwright.cost.hardware.topology import Topology
from shardwright.cost.movements.copies import MemoryCopy, copied_bytes, copy_s
from shardwright.cost.movements.movement import Collective, collective_of, received_bytes, type_after
from shardwright.cost.resharding.bound import lower_bound_bytes, order_choices
from shardwright.cost.resharding.digits import AxisRoles, DigitRoom, digits_between
from shardwright.cost.resharding.search import permute_between, shortest
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault
from shardwright.ir.digits import Order, order_size
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import AllReduce, Fetch, Movement, ReduceScatter, Store
from shardwright.ir.types import ON_DEVICE, TensorType

__all__ = [
    "BYTES",
    "TIME",
    "ReshardingObjective",
    "ReshardingPlan",
    "ReshardingStep",
    "lower_bound_bytes",
    "plan",
    "plan_in_any_order",
    "received_bytes",
]


class ReshardingObjective(StrEnum):
    """The measure that a plan minimises: bytes received per chip and then communicating steps, or seconds on a
    topology."""

    BYTES = "bytes"
    TIME = "time"


BYTES = ReshardingObjective.BYTES
TIME = ReshardingObjective.TIME

MOST_ORDERS = 36
"""Of digits that the types alone leave open, so many are tried: all of three axes on two dimensions."""


@dataclass(frozen=True, slots=True)
class ReshardingStep:
    """A movement, the type after it, and the collective or the copy between memories that it is."""

    operation: Movement
    type: TensorType
    collective: Collective | None
    copied: MemoryCopy | None = None

    @property
    def bytes_received(self) -> int:
        """Bytes that a chip receives for it."""
        return 0 if self.collective is None else self.collective.received

    @property
    def communicates(self) -> bool:
        """Tells whether chips wait for each other."""
        return self.collective is not None and bool(self.collective.axes)

    def time_s(self, topology: Topology) -> float:
        """Seconds, 0 where nothing is received from other chips or copied between memories."""
        if self.copied is not None:
            return copy_s(self.copied, topology)
        return 0.0 if self.collective is None else self.collective.time_s(topology)


@dataclass(frozen=True, slots=True)
class ReshardingPlan:
    """The movements from `source` to `target`, none where the types are equal.

    `bytes_received` is per chip, over all steps. `optimal` says that it equals the lower bound; a plan that does
    not may still be the best there is. `remark` says where steps were kept apart because that is faster.
    """

    source: TensorType
    target: TensorType
    steps: tuple[ReshardingStep, ...]
    bytes_received: int
    lower_bound_bytes: int
    communicating_steps: int
    mesh: Mesh
    orders: Mapping[str, Order] = field(compare=False)
    """The digits of the dimensions, as planned with."""
    remark: str | None = None

    @property
    def optimal(self) -> bool:
        return self.bytes_received == self.lower_bound_bytes

    def __repr__(self) -> str:
        from shardwright.cost.resharding.table import plan_table

        return plan_table(self)

    def time_s(self, topology: Topology) -> float:
        """Seconds of all steps one after the other."""
        return sum(step.time_s(topology) for step in self.steps)


def plan(
    source: TensorType,
    target: TensorType,
    mesh: Mesh,
    orders: Mapping[str, Order] | None = None,
    objective: ReshardingObjective = BYTES,
    topology: Topology | None = None,
    pinned: Iterable[str] = (),
    room: Mapping[str, int] | None = None,
) -> ReshardingPlan:
    """The cheapest movements from `source` to `target`, two types of the same shape.

    `orders` are the digits that dimensions have anyway, by the rest of the program; those of both types are added.
    A temporary split may add further digits where the size allows, and the extents in `room`, which other values of
    the program have, except to the dimensions in `pinned`. Where the digits of both types do not fit together, the
    order of a dimension that has none is the one with the least lower bound.
    The objective TIME needs the `topology` of the mesh.

    Raises `different-shape`, and `no-movement` where the target is a partial maximum, or a mixed placement, that the
    source is not yet.
    """
    if objective is TIME and topology is None:
        raise ValueError("the fastest plan depends on the topology")
    listed = () if orders is None else tuple((name, tuple(orders[name])) for name in source.names if name in orders)
    shared = tuple((name, room[name]) for name in source.names if room and name in room)
    return _plan(source, target, mesh, listed, tuple(pinned), shared, topology if objective is TIME else None)


@lru_cache(maxsize=1 << 16)
def _plan(
    source: TensorType,
    target: TensorType,
    mesh: Mesh,
    orders: tuple[tuple[str, Order], ...],
    pinned: tuple[str, ...],
    shared: tuple[tuple[str, int], ...],
    topology: Topology | None,
) -> ReshardingPlan:
    if source.shape != target.shape:
        raise fault("different-shape", f"{source.shape} cannot become {target.shape} by moving data")
    for kind in (source, target):
        for dim, axes in zip(kind.dims, kind.splits, strict=True):
            if dim.size % mesh.product(axes):
                product = "*".join(f"{axis}={mesh[axis]}" for axis in axes)
                message = f"{kind.layout_text}: {dim.name}={dim.size} is not divisible by {product}"
                raise fault("not-divisible", message, NOWHERE, f"split {dim.name} over fewer axes")
    known = order_choices(source, target, mesh, dict(orders))[0]
    return _in_order(source, target, DigitRoom.of(source, mesh, known, pinned, dict(shared), dict(orders)), topology)


def plan_in_any_order(
    source: TensorType,
    target: TensorType,
    mesh: Mesh,
    objective: ReshardingObjective = BYTES,
    topology: Topology | None = None,
) -> ReshardingPlan:
    """The cheapest movements between two types alone, whose digits no program has put in an order: `plan` as above
    or, from and to partial sums, in another order that receives fewer bytes."""
    best = plan(source, target, mesh, None, objective, topology)
    if objective is TIME or not (source.partial or target.partial):
        return best
    orders = product(order_choices(source, target, mesh, {}), permutations(mesh))
    for known, others in islice(orders, MOST_ORDERS):
        if best.bytes_received <= lower_bound_bytes(source, target, mesh, known):
            break
        made = _in_order(source, target, DigitRoom.of(source, mesh, known, others=others), None)
        best = min(best, made, key=lambda each: _rank(each, None))
    return best


def _in_order(source: TensorType, target: TensorType, room: DigitRoom, topology: Topology | None) -> ReshardingPlan:
    if source == target:
        return ReshardingPlan(source, target, (), 0, 0, 0, room.mesh, room.orders)
    before, after = (
        kind if kind.placement == ON_DEVICE else replace(kind, placement=ON_DEVICE) for kind in (source, target)
    )
    on_devices = _way(before, after, room, topology)
    if source.placement == target.placement == ON_DEVICE:
        return on_devices
    operations = [*_across_memories(source, target, [step.operation for step in on_devices.steps])]
    return _priced(source, target, operations, replace(room, orders=on_devices.orders), on_devices.remark)


def _rank(made: ReshardingPlan, topology: Topology | None) -> tuple[float, int, int]:
    """By the objective, then communicating steps, then all of them."""
    total = made.bytes_received if topology is None else made.time_s(topology)
    return total, made.communicating_steps, len(made.steps)


def _way(source: TensorType, target: TensorType, room: DigitRoom, topology: Topology | None) -> ReshardingPlan:
    """Movements of digits, where they lead and no dimension lacks room for what would be better; else the best way.

    A partial softmax has its last dimension whole: it is finished before that is split, everywhere or onto another
    dimension that has room."""
    if source.is_pair and target.splits[-1]:
        ways = [_finished(finish, source, target, wide, topology) for finish, wide in _finishes(source, room)]
        return min(ways, key=lambda made: _rank(made, topology)[:2])
    found, lacks_room = digits_between(source, target, room, topology)
    direct = None if found is None else _priced(source, target, found[0], room, found[1])
    if direct is not None and (not lacks_room or (topology is None and direct.optimal)):
        return direct
    wide = room.with_all_digits()
    detour = _priced(source, target, _detour(source, target, room, wide, topology), wide, None)
    return detour if direct is None or _rank(detour, topology) < _rank(direct, topology) else direct


def _finishes(source: TensorType, room: DigitRoom) -> Iterator[tuple[Movement, DigitRoom]]:
    """The reductions that finish a partial softmax, each with the digits beside those of what it gives."""
    axes = source.partial_axes
    yield AllReduce(axes), room
    for dim in source.dims[:-1] if room.mesh.product(axes) > 1 else ():
        added = tuple(axis for axis in axes if axis not in room.orders[dim.name])
        order, chips = (*room.orders[dim.name], *added), room.mesh.product(added)
        fits = room.left[dim.name] % chips == 0 and dim.size % order_size(order, room.mesh) == 0
        if fits and room.takes(dim.name, axes):
            left = {**room.left, dim.name: room.left[dim.name] // chips}
            yield ReduceScatter(((axes, dim.name),)), replace(room, orders={**room.orders, dim.name: order}, left=left)


def _finished(
    finish: Movement, source: TensorType, target: TensorType, room: DigitRoom, topology: Topology | None
) -> ReshardingPlan:
    """The best way that begins with a reduction."""
    rest = _way(type_after(finish, source), target, room, topology)
    operations = [finish, *(step.operation for step in rest.steps)]
    return _priced(source, target, operations, replace(room, orders=rest.orders), rest.remark)


def _detour(
    source: TensorType, target: TensorType, room: DigitRoom, wide: DigitRoom, topology: Topology | None
) -> list[Movement]:
    """Movements of digits as far as they lead at the least cost, and permutes; `wide` has the digits of all axes."""
    mesh = room.mesh

    def digits(before: TensorType, after: TensorType) -> list[Movement]:
        try:
            found, _ = digits_between(before, after, wide, topology)
        except DiagnosticError:  # no partial maximum can be made in between, nor kept while other axes are summed
            return []
        return [] if found is None else found[0]

    def rank(before: TensorType, after: TensorType, operations: Sequence[Movement]) -> tuple[float, int, int]:
        return _rank(_priced(before, after, operations, wide, None), topology)

    shares = room.shares(source, target)

    def takes(dim: str, axes: Sequence[str]) -> bool:
        return room.takes(dim, axes) and shares(dim, axes)

    AxisRoles.between(source, target, mesh)  # refuses what nothing can make
    way = shortest(source, target, mesh, wide.orders, takes, topology)
    operations: list[Movement] = []
    first = 0
    for i, (kind, by_permute) in enumerate(way):
        start = way[first][0]
        if by_permute:
            operations.append(permute_between(start, kind))
            first = i
        elif i and (i + 1 == len(way) or way[i + 1][1]):  # one step after the other, or all of their digits together
            pairs = pairwise(kind for kind, _ in way[first : i + 1])
            steps = [each for before, after in pairs for each in digits(before, after)]
            joint = digits(start, kind)
            operations += joint if joint and rank(start, kind, joint) <= rank(start, kind, steps) else steps
            first = i
    return operations


def _priced(
    source: TensorType,
    target: TensorType,
    operations: Sequence[Movement],
    room: DigitRoom,
    remark: str | None,
) -> ReshardingPlan:
    mesh, orders = room.mesh, room.orders
    steps: list[ReshardingStep] = []
    kind = source
    for operation in operations:
        collective = collective_of(operation, kind, mesh, orders)
        before, kind = kind, type_after(operation, kind)
        copied = None
        if before.placement != kind.placement:
            copied = copied_bytes(before.local_bytes(mesh), before.placement, kind.placement)
        steps.append(ReshardingStep(operation, kind, collective, copied))
    assert kind == target, f"planned {kind} instead of {target}"
    total = sum(step.bytes_received for step in steps)
    waits = sum(step.communicates for step in steps)
    bound = lower_bound_bytes(source, target, mesh, {} if room.for_all else orders)
    return ReshardingPlan(source, target, tuple(steps), total, bound, waits, mesh, orders, remark)


def _across_memories(source: TensorType, target: TensorType, moves: Sequence[Movement]) -> Iterator[Movement]:
    """Collectives are between devices' memories, so a value elsewhere is fetched before and stored after them."""
    away = source.placement != target.placement or bool(moves)
    if away and source.placement != ON_DEVICE:
        yield Fetch()
    yield from moves
    if away and target.placement != ON_DEVICE:
        if target.placement.tier is None:
            message = f"no single movement stores a value on {target.placement}"
            raise fault("no-movement", message, NOWHERE, "store it in one memory")
        yield Store(target.placement.tier)
