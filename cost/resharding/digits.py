"""Movements of digits from one type to another, and the temporary splits that make them cheapest.

Each mesh axis says by what it does before and after which movement it needs; those of one kind are one joint
collective, and their order is fixed, so that every one works on the smallest shard (docs/concepts/resharding.md
proves it):

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

Every set of such axes is priced, and the best is taken that dimensions have room for: a dimension's size is divisible
by the product of all digits in its order, those of temporary splits included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardwright.cost.hardware.topology import Topology
from shardwright.cost.movements.movement import received_elements, type_after
from shardwright.cost.resharding.bound import in_place
from shardwright.cost.resharding.time import fastest
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault
from shardwright.ir.digits import Order, order_size
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import AllGather, AllReduce, AllToAll, AsPartial, Movement, ReduceScatter, Slice
from shardwright.ir.types import Axes, Reduction, TensorType

Way = tuple[list[Movement], str | None]
"""Movements, and a remark on steps that were kept apart."""


def digits_between(
    source: TensorType, target: TensorType, room: DigitRoom, topology: Topology | None
) -> tuple[Way | None, bool]:
    """The best movements of digits, None where digits do not lead from the one type to the other; and whether there is
    no room for temporary splits that would be better."""
    mesh, orders = room.mesh, room.orders
    if not room.for_all and not in_place(source, target, mesh, orders):
        return None, True
    work = AxisRoles.between(source, target, mesh)
    lacks_room = False
    fitting: list[list[Movement]] = []
    for axes in _choices(work, source, target, mesh):
        placed = room.place(axes)
        operations = None if placed is None else work.movements(room.with_single(placed, work))
        if (
            operations is not None
            and room.divides(operations, source, target)
            and (room.for_all or _in_place_throughout(operations, source, mesh, orders))
        ):
            fitting.append(operations)
            if topology is None:
                break
        elif not fitting:
            lacks_room = True
    if not fitting:
        return None, True
    return ((fitting[0], None) if topology is None else fastest(fitting, source, topology, orders)), lacks_room


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


# ---------------------------------------------------------------- what there is to do


@dataclass(slots=True)
class AxisRoles:
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
    """The axes of one chip among these."""
    remade: list[str] = field(default_factory=list[str])
    """A partial maximum or softmax, then a partial sum."""
    kept: list[str] = field(default_factory=list[str])
    """A partial sum before and after. (Other partial values that stay are left alone: nothing makes them anew.)"""
    replicated: list[str] = field(default_factory=list[str])
    """Whole before and after."""
    added: list[str] = field(default_factory=list[str])
    """Whole, then a partial sum."""
    padded: list[str] = field(default_factory=list[str])
    """Split, then a partial sum."""

    @staticmethod
    def between(source: TensorType, target: TensorType, mesh: Mesh) -> AxisRoles:
        work = AxisRoles()
        for axis in mesh:
            before, after = source.state(axis), target.state(axis)
            if isinstance(after, Reduction):
                if after is not Reduction.SUM:
                    if before is not after:
                        raise _unmade(source, target, axis, after)
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


@dataclass(frozen=True, slots=True)
class DigitRoom:
    """The size left of each dimension beside the digits of its order."""

    mesh: Mesh
    orders: Mapping[str, Order]
    left: Mapping[str, int]
    for_all: bool
    """Tells whether all digits fit into every dimension: then movements of digits lead everywhere."""
    ordered: frozenset[str]
    """The dimensions with an order of the program's. They take no digit that does not fit beside the others."""
    others: tuple[str, ...]
    """In which order others take further digits."""
    whole: str | None = None
    """The dimension that nothing splits on the way: the last one of a partial softmax."""
    shared: Mapping[str, int] = field(default_factory=dict[str, int])
    """The extents that all axes of a dimension have to divide as well, its declared size among them."""
    pinned: frozenset[str] = frozenset()
    """The dimensions that take no further digit, not even that of an axis of one chip."""

    @staticmethod
    def of(
        kind: TensorType,
        mesh: Mesh,
        orders: Mapping[str, Order],
        pinned: Iterable[str] = (),
        shared: Mapping[str, int] | None = None,
        ordered: Iterable[str] = (),
        others: Iterable[str] | None = None,
    ) -> DigitRoom:
        """The room in a type's dimensions; `shared` are extents that digits have to divide as well."""
        left: dict[str, int] = {}
        for_all = True
        for dim in kind.dims:
            chips = order_size(orders[dim.name], mesh)
            for_all &= dim.size % chips == 0
            free, remainder = divmod(math.gcd(dim.size, (shared or {}).get(dim.name, dim.size)), chips)
            left[dim.name] = 1 if remainder or dim.name in pinned else free
        whole = kind.names[-1] if kind.is_pair else None
        return DigitRoom(
            mesh, orders, left, for_all, frozenset(ordered), tuple(mesh if others is None else others), whole,
            shared or {}, frozenset(pinned),
        )  # fmt: skip

    def divides(self, operations: Iterable[Movement], source: TensorType, target: TensorType) -> bool:
        """Tells whether all axes that split a dimension on the way, but as at either end, divide together what they
        have to."""
        shares, kind = self.shares(source, target), source
        for operation in operations:
            kind = type_after(operation, kind)
            if not all(map(shares, kind.names, kind.splits)):
                return False
        return True

    def shares(self, source: TensorType, target: TensorType) -> Callable[[str, Iterable[str]], bool]:
        """A test of whether axes split a dimension as at an end of the way, or divide what others have of it."""
        ends = {dim: [set(end.split(dim)) for end in (source, target)] for dim in source.names}

        def test(dim: str, axes: Iterable[str]) -> bool:
            several = {axis for axis in axes if self.mesh[axis] > 1}
            fits = dim not in self.shared or self.shared[dim] % self.mesh.product(several) == 0
            return fits or any(several <= end for end in ends[dim])

        return test

    def takes(self, dim: str, axes: Iterable[str]) -> bool:
        """Tells whether these axes may split the dimension on the way."""
        added = self.mesh.product(axis for axis in axes if axis not in self.orders[dim])
        return dim != self.whole and (self.left[dim] % added == 0 or dim not in self.ordered)

    def with_all_digits(self) -> DigitRoom:
        """The room beside the digits of all axes that may split a dimension on the way, fitting together or not."""
        orders: dict[str, Order] = {}
        for dim, order in self.orders.items():
            orders[dim] = (*order, *(a for a in self.others if a not in order and self.takes(dim, (a,))))
        return replace(self, orders=orders, for_all=False)

    def with_single(self, placed: dict[str, str], work: AxisRoles) -> dict[str, str]:
        """The temporary splits with those of axes of one chip, which go along rather than make an all-reduce of their
        own; not where the author has said all digits of the dimension."""
        shared = next((placed[axis] for axis in work.reduced if axis in placed), None)
        if shared is None:
            return placed
        along = [axis for axis in work.single if shared not in self.pinned or axis in self.orders[shared]]
        return {**dict.fromkeys(along, shared), **placed}

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
                if free % taken == 0 and dim != self.whole:
                    left[dim], placed[axis] = free // taken, dim
                    if put(i + 1):
                        return True
                    left[dim] = free
            placed.pop(axis, None)
            return False

        return placed if put(0) else None


def _unmade(source: TensorType, target: TensorType, axis: str, kind: Reduction) -> DiagnosticError:
    what, leaves = ("maximum", "max") if kind is Reduction.MAX else ("softmax", "attend")
    return fault(
        "no-movement",
        f"no movement makes {source.layout_text} a partial {what} over {axis}, as {target.layout_text} is",
        NOWHERE,
        f"a partial {what} is what `{leaves}` over a split dimension leaves; move the value whole or split",
    )


# ---------------------------------------------------------------- the choice


def _choices(work: AxisRoles, source: TensorType, target: TensorType, mesh: Mesh) -> list[tuple[str, ...]]:
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
            source.bytes_of(received_elements(ReduceScatter, V, K_reduce))
            + source.bytes_of(received_elements(AllReduce, V_1, K_full))
            + target.bytes_of(received_elements(AllToAll, V_1, K_M))
            + target.bytes_of(received_elements(AllGather, V_1, K_gather))
        )
        steps = (K_reduce > 1) + (K_full > 1) + (K_M > 1) + (K_gather > 1)
        ranked.append(((received, steps, K_full > 1, len(subset), bits), subset))
    ranked.sort()
    return [subset for _, subset in ranked]
