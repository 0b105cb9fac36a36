"""The movement planner: the cheapest way from one type of a value to another.

Each mesh axis says by what it does before and after which movement it needs; those of one kind are one joint
collective, and their order is fixed, so that every one works on the smallest shard (docs/resharding.md proves it):

    whole -> split                  slice                        nothing is received
    partial -> split                reduce_scatter               shrinks the shard for all that follow
    partial -> whole                all_reduce
    split -> another dimension      all_to_all
    split -> whole                  all_gather                   grows it, so it comes last
    split or whole -> partial sum   as_partial                   nothing is received

What is left to choose are *temporary splits*, which share a reduction's work among chips that would repeat it. An
axis without a split at the end (partial or whole) is put onto a dimension by the slice or the reduce-scatter, and
off it by the all-gather or by as_partial:

- partial -> whole, together with other work: a reduce-scatter, and the joint all-gather brings it back;
- whole -> whole, where partial values are reduced: each replica reduces a part of the value;
- partial -> partial, where other axes are gathered: shorter shards to gather;
- whole -> partial sum: one replica's part is enough.

The planner prices every set of such axes and takes the best that dimensions have room for: a dimension's size is
divisible by the product of all digits in its order, those of temporary splits included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache

from shardwright.cost.collectives import collective_time
from shardwright.cost.movements import (
    Collective,
    bytes_of,
    collective_of,
    received_bytes,
    received_elements,
    type_after,
)
from shardwright.cost.resharding_bound import best_orders, in_place, lower_bound_bytes
from shardwright.cost.resharding_detours import by_permute, through_the_middle
from shardwright.cost.resharding_time import fastest
from shardwright.cost.topology import Topology
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Span, fault
from shardwright.ir.digits import Order, order_size
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import (
    AllGather,
    AllReduce,
    AllToAll,
    AsPartial,
    Fetch,
    Movement,
    Permute,
    ReduceScatter,
    Slice,
    Store,
)
from shardwright.ir.types import ON_DEVICE, Axes, Reduction, TensorType

__all__ = ["BYTES", "TIME", "Objective", "Plan", "Step", "lower_bound_bytes", "plan", "received_bytes"]


class Objective(StrEnum):
    """What a plan minimises: bytes received per chip and then communicating steps, or seconds on a topology."""

    BYTES = "bytes"
    TIME = "time"


BYTES = Objective.BYTES
TIME = Objective.TIME


@dataclass(frozen=True, slots=True)
class Step:
    """A movement, the type after it, and the collective that it is."""

    operation: Movement
    type: TensorType
    collective: Collective | None

    @property
    def bytes_received(self) -> int:
        """Bytes that a chip receives for it."""
        return 0 if self.collective is None else self.collective.received

    @property
    def communicates(self) -> bool:
        """Tells whether chips wait for each other."""
        return self.collective is not None and bool(self.collective.axes)

    def time_s(self, topology: Topology) -> float:
        """Seconds, 0 where nothing is received from other chips."""
        if self.collective is None:
            return 0.0
        return collective_time(self.collective.kind, self.collective.axes, self.collective.nbytes, topology)


@dataclass(frozen=True, slots=True)
class Plan:
    """The movements from `source` to `target`, none where the types are equal.

    `bytes_received` is per chip, over all steps. `optimal` says that it equals the lower bound; a plan that does
    not may still be the best there is. `remark` says where steps were kept apart because that is faster.
    """

    source: TensorType
    target: TensorType
    steps: tuple[Step, ...]
    bytes_received: int
    lower_bound_bytes: int
    communicating_steps: int
    orders: Mapping[str, Order] = field(compare=False)
    """The digits of the dimensions, as planned with."""
    remark: str | None = None

    @property
    def optimal(self) -> bool:
        return self.bytes_received == self.lower_bound_bytes

    def time_s(self, topology: Topology) -> float:
        """Seconds of all steps one after the other."""
        return sum(step.time_s(topology) for step in self.steps)


def plan(
    source: TensorType,
    target: TensorType,
    mesh: Mesh,
    orders: Mapping[str, Order] | None = None,
    objective: Objective = BYTES,
    topology: Topology | None = None,
    pinned: Iterable[str] = (),
    room: Mapping[str, int] | None = None,
) -> Plan:
    """The cheapest movements from `source` to `target`, two types of the same shape.

    `orders` are the digits that dimensions have anyway, by the rest of the program; those of both types are added.
    A temporary split may add further digits where the size allows, and the extents in `room`, which other values of
    the program have, except to the dimensions in `pinned`. Where the digits of both types do not fit together, the
    order of a dimension that has none is chosen so that chips lack least.
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
) -> Plan:
    if source.shape != target.shape:
        raise fault("different-shape", f"{source.shape} cannot become {target.shape} by moving data")
    for kind in (source, target):
        for dim, axes in zip(kind.dims, kind.splits, strict=True):
            if dim.size % mesh.product(axes):
                product = "*".join(f"{axis}={mesh[axis]}" for axis in axes)
                message = f"{kind.layout_text}: {dim.name}={dim.size} is not divisible by {product}"
                raise fault("not-divisible", message, *_nowhere(f"split {dim.name} over fewer axes"))
    known = best_orders(source, target, mesh, dict(orders))
    if source == target:
        return Plan(source, target, (), 0, 0, 0, known)
    before, after = (
        kind if kind.placement == ON_DEVICE else replace(kind, placement=ON_DEVICE) for kind in (source, target)
    )
    room = _Room.of(source, mesh, known, pinned, dict(shared))
    found = _direct(before, after, room, topology)
    operations, remark = _detour(before, after, room, topology) if found is None else found
    return _priced(source, target, [*_across_memories(source, target, operations)], room, remark)


Way = tuple[list[Movement], str | None]
"""Movements, and a remark on steps that were kept apart."""


def _direct(source: TensorType, target: TensorType, room: _Room, topology: Topology | None) -> Way | None:
    """The best movements of digits, None where digits do not lead from the one type to the other."""
    mesh, orders = room.mesh, room.orders
    if not room.for_all and not in_place(source, target, mesh, orders):
        return None
    work = _Work.between(source, target, mesh)
    sequences = (
        work.movements(placed) for axes in _choices(work, source, mesh) if (placed := room.place(axes)) is not None
    )
    fitting = (each for each in sequences if room.for_all or _in_place_throughout(each, source, mesh, orders))
    if topology is not None:
        return fastest(fitting, source, topology, orders)
    operations = next(fitting, None)
    return None if operations is None else (operations, None)


def _in_place_throughout(
    operations: Sequence[Movement], source: TensorType, mesh: Mesh, orders: Mapping[str, Order]
) -> bool:
    """Tells whether no movement of the sequence changes indices."""
    kind = source
    for operation in operations:
        before, kind = kind, type_after(operation, kind)
        if not in_place(before, kind, mesh, orders):
            return False
    return True


def _detour(source: TensorType, target: TensorType, room: _Room, topology: Topology | None) -> Way:
    """The best way where digits do not lead from the one type to the other."""
    mesh, orders = room.mesh, room.orders

    def direct(before: TensorType, after: TensorType) -> Sequence[Movement] | None:
        try:
            found = _direct(before, after, room, topology)
        except DiagnosticError:  # no partial maximum can be made in between, nor kept while other axes are summed
            return None
        return None if found is None else found[0]

    def cost(operations: Sequence[Movement], bounded: bool = False) -> tuple[float, int, int]:
        """By the objective, then communicating steps; `bounded` takes a permute for what it receives at least."""
        total, steps, kind = 0.0, 0, source
        for operation in operations:
            before, kind = kind, type_after(operation, kind)
            if bounded and isinstance(operation, Permute):
                total += 0 if topology is not None else lower_bound_bytes(before, kind, mesh, orders)
                continue
            step = Step(operation, kind, collective_of(operation, before, mesh, orders))
            total += step.bytes_received if topology is None else step.time_s(topology)
            steps += step.communicates
        return total, steps, len(operations)

    _Work.between(source, target, mesh)  # refuses what nothing can make
    best = min(through_the_middle(source, target, mesh, direct), key=cost)
    least = cost(best)
    bound = lower_bound_bytes(source, target, mesh, orders)
    for operations in by_permute(source, target, mesh, direct):
        if topology is None and least[:2] <= (bound, 1):
            break
        if cost(operations, bounded=True) < least and (found := cost(operations)) < least:
            best, least = operations, found
    return list(best), None


def _priced(
    source: TensorType,
    target: TensorType,
    operations: Sequence[Movement],
    room: _Room,
    remark: str | None,
) -> Plan:
    mesh, orders = room.mesh, room.orders
    steps: list[Step] = []
    kind = source
    for operation in operations:
        collective = collective_of(operation, kind, mesh, orders)
        kind = type_after(operation, kind)
        steps.append(Step(operation, kind, collective))
    assert kind == target, f"planned {kind} instead of {target}"
    total = sum(step.bytes_received for step in steps)
    waits = sum(step.communicates for step in steps)
    bound = lower_bound_bytes(source, target, mesh, {} if room.for_all else orders)
    return Plan(source, target, tuple(steps), total, bound, waits, orders, remark)


def _across_memories(source: TensorType, target: TensorType, moves: Sequence[Movement]) -> Iterator[Movement]:
    """Collectives are between devices' memories, so a value elsewhere is fetched before and stored after them."""
    away = source.placement != target.placement or bool(moves)
    if away and source.placement != ON_DEVICE:
        yield Fetch()
    yield from moves
    if away and target.placement != ON_DEVICE:
        if target.placement.tier is None:
            message = f"no single movement stores a value on {target.placement}"
            raise fault("no-movement", message, *_nowhere("store it in one memory"))
        yield Store(target.placement.tier)


# ---------------------------------------------------------------- what there is to do


@dataclass(slots=True)
class _Work:
    """The axes by what they do before and after; `reduced`, `kept`, ... may take a temporary split."""

    sliced: dict[str, str] = field(default_factory=dict[str, str])
    """Whole, then split on the dimension."""
    scattered: dict[str, str] = field(default_factory=dict[str, str])
    """Partial, then split on the dimension."""
    moved: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    gathered: list[str] = field(default_factory=list[str])
    reduced: list[str] = field(default_factory=list[str])
    """Partial, then whole."""
    single: list[str] = field(default_factory=list[str])
    """Of these, the axes of one chip."""
    remade: list[str] = field(default_factory=list[str])
    """A partial maximum, then a partial sum."""
    kept: list[str] = field(default_factory=list[str])
    """A partial sum before and after. (A partial maximum that stays is left alone: nothing makes it anew.)"""
    replicated: list[str] = field(default_factory=list[str])
    """Whole before and after."""
    added: list[str] = field(default_factory=list[str])
    """Whole, then a partial sum."""
    padded: list[str] = field(default_factory=list[str])
    """Split, then a partial sum."""

    @staticmethod
    def between(source: TensorType, target: TensorType, mesh: Mesh) -> _Work:
        work = _Work()
        for axis in mesh:
            before, after = source.state(axis), target.state(axis)
            if isinstance(after, Reduction):
                if after is Reduction.MAX:
                    if before is not after:
                        raise _no_maximum(source, target, axis)
                elif before is after:
                    work.kept.append(axis)
                elif isinstance(before, Reduction):
                    work.remade.append(axis)
                else:
                    (work.added if before is None else work.padded).append(axis)
            elif isinstance(before, Reduction):
                if after is None:
                    work.reduced.append(axis)
                    if mesh[axis] == 1:
                        work.single.append(axis)
                else:
                    work.scattered[axis] = after
            elif after is None:
                (work.replicated if before is None else work.gathered).append(axis)
            elif before is None:
                work.sliced[axis] = after
            elif before != after:
                work.moved[axis] = (before, after)
        return work

    def optional(self, mesh: Mesh) -> list[str]:
        """The axes for which a temporary split may save something."""
        reduces = bool(self.scattered or self.reduced or self.remade)
        moves = bool(self.moved or self.gathered)
        axes = [*self.reduced, *self.remade]
        if reduces or moves:
            axes += [*self.added, *self.kept]
        if reduces or self.kept:
            axes += self.replicated
        return [axis for axis in axes if mesh[axis] > 1]

    def movements(self, temporary: Mapping[str, str]) -> list[Movement]:
        """The joint movements, in their order, with these temporary splits."""

        shared = next((temporary[axis] for axis in self.reduced if axis in temporary), None)
        if shared is not None:  # axes of one chip go along, rather than make an all-reduce of their own
            temporary = {**dict.fromkeys(self.single, shared), **temporary}

        def parked(axes: Iterable[str]) -> dict[str, str]:
            return {axis: temporary[axis] for axis in axes if axis in temporary}

        made: list[Movement] = []
        if sliced := {**self.sliced, **parked([*self.replicated, *self.added])}:
            made.append(Slice(_by_dim(sliced)))
        if scattered := {**self.scattered, **parked([*self.reduced, *self.remade, *self.kept])}:
            made.append(ReduceScatter(_by_dim(scattered)))
        if reduced := [axis for axis in (*self.reduced, *self.remade) if axis not in temporary]:
            made.append(AllReduce(tuple(sorted(reduced))))
        if self.moved:
            pairs: dict[tuple[str, str], list[str]] = {}
            for axis, pair in self.moved.items():
                pairs.setdefault(pair, []).append(axis)
            made.append(AllToAll(tuple((tuple(sorted(axes)), a, b) for (a, b), axes in pairs.items())))
        if gathered := [*self.gathered, *parked([*self.reduced, *self.replicated])]:
            made.append(AllGather(tuple(sorted(gathered))))
        if partial := [*self.padded, *self.added, *self.remade, *parked(self.kept)]:
            made.append(AsPartial(tuple(sorted(partial))))
        return made


def _by_dim(targets: Mapping[str, str]) -> tuple[tuple[Axes, str], ...]:
    dims: dict[str, list[str]] = {}
    for axis, dim in targets.items():
        dims.setdefault(dim, []).append(axis)
    return tuple((tuple(sorted(axes)), dim) for dim, axes in dims.items())


# ---------------------------------------------------------------- room for digits


@dataclass(frozen=True, slots=True)
class _Room:
    """What is left of each dimension beside the digits of its order."""

    mesh: Mesh
    orders: Mapping[str, Order]
    left: Mapping[str, int]
    for_all: bool
    """Tells whether all digits fit into every dimension: then movements of digits lead everywhere."""

    @staticmethod
    def of(
        kind: TensorType, mesh: Mesh, orders: Mapping[str, Order], pinned: Sequence[str], shared: Mapping[str, int]
    ) -> _Room:
        """That in a type's dimensions; `shared` are extents that digits have to divide as well."""
        left: dict[str, int] = {}
        for_all = True
        for dim in kind.dims:
            chips = order_size(orders[dim.name], mesh)
            for_all &= dim.size % chips == 0
            free, remainder = divmod(math.gcd(dim.size, shared.get(dim.name, dim.size)), chips)
            left[dim.name] = 1 if remainder or dim.name in pinned else free
        return _Room(mesh, orders, left, for_all)

    def place(self, axes: Sequence[str]) -> dict[str, str] | None:
        """A dimension for each of the axes, the first that works, or None where they do not fit together."""
        left = dict(self.left)
        placed: dict[str, str] = {}

        def put(i: int) -> bool:
            if i == len(axes):
                return True
            axis, size = axes[i], self.mesh[axes[i]]
            for dim, free in left.items():
                taken = 1 if axis in self.orders[dim] else size
                if free % taken == 0:
                    left[dim], placed[axis] = free // taken, dim
                    if put(i + 1):
                        return True
                    left[dim] = free
            placed.pop(axis, None)
            return False

        return placed if put(0) else None


def _nowhere(note: str) -> tuple[Span, str]:
    """A fault's place is filled in by who knows the text."""
    return NOWHERE, note


def _no_maximum(source: TensorType, target: TensorType, axis: str) -> DiagnosticError:
    return fault(
        "no-movement",
        f"no movement makes {source.layout_text} a partial maximum over {axis}, as {target.layout_text} is",
        *_nowhere("a partial maximum is what `max` over a split dimension leaves; move the value whole or split"),
    )


# ---------------------------------------------------------------- the choice


def _choices(work: _Work, source: TensorType, mesh: Mesh) -> list[tuple[str, ...]]:
    """Every set of axes to split temporarily, the cheapest first: in bytes, then in communicating steps.

    Of equals, those that gather a full reduction jointly with the rest, then those with fewer splits.
    """
    optional = work.optional(mesh)
    if not optional:
        return [()]
    size = {axis: mesh[axis] for axis in mesh}
    V_0 = source.local_elements(mesh) // math.prod(size[axis] for axis in work.sliced)
    K_R = math.prod(size[axis] for axis in work.scattered)
    K_M = math.prod(size[axis] for axis in work.moved)
    K_G = math.prod(size[axis] for axis in work.gathered)
    reduced = {*work.reduced, *work.remade}
    slicing = {*work.replicated, *work.added}
    scattering = reduced.union(work.kept)
    gathering = {*work.reduced, *work.replicated}
    ranked: list[tuple[tuple[int, ...], tuple[str, ...]]] = []
    for bits in range(1 << len(optional)):
        subset = tuple(axis for i, axis in enumerate(optional) if bits >> i & 1)
        K_cut = math.prod(size[axis] for axis in subset if axis in slicing)
        K_reduce = K_R * math.prod(size[axis] for axis in subset if axis in scattering)
        K_gather = K_G * math.prod(size[axis] for axis in subset if axis in gathering)
        K_full = math.prod(size[axis] for axis in optional if axis in reduced and axis not in subset)
        V = V_0 // K_cut
        V_1 = V // K_reduce
        received = (
            bytes_of(received_elements(ReduceScatter, V, K_reduce), source)
            + bytes_of(received_elements(AllReduce, V_1, K_full), source)
            + bytes_of(received_elements(AllToAll, V_1, K_M), source)
            + bytes_of(received_elements(AllGather, V_1, K_gather), source)
        )
        steps = (K_reduce > 1) + (K_full > 1) + (K_M > 1) + (K_gather > 1)
        ranked.append(((received, steps, K_full > 1, len(subset), bits), subset))
    ranked.sort()
    return [subset for _, subset in ranked]
