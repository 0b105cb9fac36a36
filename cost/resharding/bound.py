"""The least that any way from one type to another can make a chip receive.

Counted for one element of the value at a time, then averaged over chips; docs/concepts/resharding.md has the proof.

A *group* is the set of chips that together must end with the element: one chip, or, where the target is
partial over some axes, the chips along them, whose contents only have to add up. Letters, each a product of
sizes of axes by what they do in the source and in the target:

    K_M  split on one dimension, then on another           K_G  split, then whole        K_W  whole in both
    K_P  partial in the source                             K_A  of these whole in the target
    K_S  of these still partial, of the same kind, in the target

There are r = K_G K_W K_A groups for an element and K_P addends of it. A group has K_S of the addends from the
start if its coordinates are the element's own along the moved and the gathered axes, else none. A group that
lacks k addends is complete after k receives at the earliest, since no chip holds two of them, and each further
group takes one receive more.

Where the digits of both types do not fit into a dimension together, which elements are at home is counted from the
indices that chips hold, and of whole values so is what the chip that lacks most lacks: K_M and K_G say it no longer.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.movements.exchange import Orders, stretch
from shardwright.ir.digits import Order, common_order, digit_values, fitting_order
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import Axes, Reduction, TensorType, is_split


def in_place(before: TensorType, after: TensorType, mesh: Mesh, orders: Orders) -> bool:
    """Tells whether digits lead from one type to the other: every dimension can be read alike in both."""
    return all(
        was == becomes or common_order(orders.get(dim.name, ()), was, becomes, dim.size, mesh) is not None
        for dim, was, becomes in zip(before.dims, before.splits, after.splits, strict=True)
    )


def lower_bound_bytes(source: TensorType, target: TensorType, mesh: Mesh, orders: Orders | None = None) -> int:
    """Bytes that the chip which receives most receives at least, whatever the movements.

    `orders` are the digits of the dimensions, which matter where those of both types do not fit together; they are
    the first of `order_choices` where none are given, and {} says that they do fit. The bound is no less than the
    missing bytes, those of the target's shard that a chip does not hold in the source.
    """
    states = [(source.state(axis), target.state(axis), size) for axis, size in mesh.sizes]
    partial = [(s, t, size) for s, t, size in states if isinstance(s, Reduction)]
    whole = [(s, t, size) for s, t, size in states if s is None]
    split = [(s, t, size) for s, t, size in states if is_split(s)]
    K_P = math.prod(size for _, _, size in partial)
    K_A = math.prod(size for _, t, size in partial if t is None)
    K_S = math.prod(size for s, t, size in partial if t is s)
    K_W = math.prod(size for _, t, size in whole if t is None)
    K_G = math.prod(size for _, t, size in split if t is None)
    K_M = math.prod(size for s, t, size in split if is_split(t) and t != s)
    r = K_G * K_W * K_A
    # Elements whose digits agree along the moved axes are at home in some group, the others in none.
    if K_P == K_S:  # the home groups are complete, and the others have nothing
        at_home, abroad = _receives(r - K_W, K_P), _receives(r, K_P)
    else:
        at_home, abroad = _receives(r, K_P - K_S), _receives(r, K_P)
    elements = source.shape.elements
    known = order_choices(source, target, mesh, {})[0] if orders is None else orders
    fits = orders == {} or in_place(source, target, mesh, known)
    if not fits and not partial and not target.partial:
        return source.bytes_of(lacking_elements(source, target, mesh, known))
    home = elements // K_M if fits else _at_home(source, target, mesh, known)
    total = home * at_home + (elements - home) * abroad
    return TensorType.whole(source.shape).bytes_of(-(-total // mesh.n_chips))


def _receives(groups: int, lacking: int) -> int:
    """Receives until so many groups are complete, the nearest of which lacks so many addends."""
    return lacking + groups - 1 if groups else 0


def lacking_elements(source: TensorType, target: TensorType, mesh: Mesh, orders: Orders) -> int:
    """Elements of its shard of the target that the chip which lacks most does not hold of the source, both whole."""
    kept = np.ones([1] * len(mesh), np.int64)
    for dim, was, becomes in zip(source.dims, source.splits, target.splits, strict=True):
        kept = kept * _held_in_both(dim.size, orders.get(dim.name, ()), was, becomes, mesh)
    return target.local_elements(mesh) - int(kept.min())


@lru_cache(maxsize=1 << 12)
def _held_in_both(size: int, digits: Order, was: Axes, becomes: Axes, mesh: Mesh) -> NDArray[np.int64]:
    """Indices of a dimension that each chip holds in both layouts: [sizes of axes that split it in one, else 1]."""
    before, after = ((fitting_order(digits, axes, size, mesh), axes) for axes in (was, becomes))
    unit = math.gcd(stretch(size, before, mesh), stretch(size, after, mesh))
    indices = np.arange(0, size, unit)
    at: dict[str, NDArray[np.int64]] = {}
    alike = np.ones(len(indices), np.bool_)
    for order, split in (before, after):
        for axis in split:
            values = digit_values(order, axis, indices, size, mesh)
            alike &= at.setdefault(axis, values) == values
    axes = mesh.sorted(at)
    chip = np.zeros(int(alike.sum()), np.int64)
    for axis in axes:
        chip = chip * mesh[axis] + at[axis][alike]
    counts = unit * np.bincount(chip, minlength=mesh.product(axes))
    return counts.reshape([n if axis in at else 1 for axis, n in mesh.sizes])


def _at_home(source: TensorType, target: TensorType, mesh: Mesh, orders: Orders) -> int:
    """Elements whose chips in the source and in the target have equal coordinates along all axes that split both."""
    both = [axis for axis in mesh if is_split(source.state(axis)) and is_split(target.state(axis))]
    names = {str(kind.state(axis)) for kind in (source, target) for axis in both}
    dims = [i for i, name in enumerate(source.names) if name in names]
    agree: NDArray[np.bool_] = np.ones((1,) * len(dims), np.bool_)
    units = 1
    values: dict[tuple[str, int], NDArray[np.int64]] = {}
    for place, i in enumerate(dims):
        size = source.dims[i].size
        sides = [(_order(kind, i, mesh, orders), kind.splits[i]) for kind in (source, target)]
        unit = math.gcd(*(stretch(size, side, mesh) for side in sides))
        units *= unit
        shape = [-1 if place == other else 1 for other in range(len(dims))]
        for side, (order, split) in enumerate(sides):
            for axis in split:
                values[axis, side] = digit_values(order, axis, np.arange(0, size, unit), size, mesh).reshape(shape)
        agree = agree & np.ones([size // unit if place == other else 1 for other in range(len(dims))], np.bool_)
    for axis in both:
        agree = agree & (values[axis, 0] == values[axis, 1])
    rest = source.shape.elements // math.prod(source.dims[i].size for i in dims)
    return int(agree.sum()) * units * rest


def _order(kind: TensorType, dim: int, mesh: Mesh, orders: Orders) -> Order:
    return fitting_order(orders.get(kind.names[dim], ()), kind.splits[dim], kind.dims[dim].size, mesh)


def order_choices(source: TensorType, target: TensorType, mesh: Mesh, given: Orders) -> list[dict[str, Order]]:
    """Orders of all dimensions of the two types: those given with what they lack, others free.

    A free one matters only where the digits of both types, and with partial sums those of types in the middle, do not
    fit together. Orders with the least lower bound come first, and among equals those in the order of the mesh.
    """
    orders: dict[str, Order] = {}
    free: dict[str, list[Axes]] = {}
    for dim, was, becomes in zip(source.dims, source.splits, target.splits, strict=True):
        order = given.get(dim.name, ())
        axes = mesh.sorted({*was, *becomes}.difference(order))
        orders[dim.name] = (*order, *axes)
        matters = mesh.n_chips if source.partial or target.partial else mesh.product(axes)
        if dim.name not in given and dim.size % matters:
            free[dim.name] = list(permutations(axes))
    if not free:
        return [orders]
    choices = [{**orders, **dict(zip(free, choice, strict=True))} for choice in product(*free.values())]
    return sorted(choices, key=lambda choice: lower_bound_bytes(source, target, mesh, choice))
