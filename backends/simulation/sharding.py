"""Between global arrays and the arrays of all chips: laying out, and gathering back with a check of the replicas."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from shardwright.backends.number_formats import Array, Formats, paired, softmax_weights
from shardwright.backends.simulation.collectives import OpenedArray, unpaired
from shardwright.backends.simulation.local_values import fitting
from shardwright.ir.digits import Order
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType, Reduction, TensorType, is_split


class ReplicaError(Exception):
    """Chips that should hold the same numbers do not: a movement is missing, or an operation's table is unsound."""


def shard(
    array: npt.ArrayLike,
    kind: TensorType,
    orders: Mapping[str, Order],
    mesh: Mesh,
    addends: np.random.Generator | None = None,
) -> Array:
    """A global array laid out on the chips: [mesh axes..., local extents], an array of its own.

    A partial sum is whole on the chips with coordinate 0 and zero on the others; a partial maximum is whole on all.
    With `addends` the parts are random: whole numbers that sum to the value, of integers over the whole range and
    wrapping around, of floats small; or values at most as large.
    Raises ValueError where the shapes differ.
    """
    given = np.asarray(array)
    extents = tuple(dim.size for dim in kind.dims)
    if given.shape != extents:
        raise ValueError(f"an array of shape {given.shape} for {kind}, whose shape is {extents}")
    parts = _parts(given, kind, mesh, addends)
    parts = np.broadcast_to(parts, (*(size for _, size in mesh.sizes), *extents))
    digits = {name: fitting(orders, kind, name, mesh) for name in kind.names}
    opened = OpenedArray(parts, TensorType.whole(kind.shape), orders, mesh, digits)
    for dim, axes in zip(kind.dims, kind.splits, strict=True):
        for axis in axes:
            opened.keep_own(axis, dim.name)
    return opened.closed(kind)


def _parts(array: Array, kind: TensorType, mesh: Mesh, addends: np.random.Generator | None) -> Array:
    """[mesh axes..., global shape], extent 1 for a mesh axis over which the value is not partial."""
    counts = tuple(size if axis in kind.partial_axes else 1 for axis, size in mesh.sizes)
    n = int(np.prod(counts))
    if kind.partial is None:
        parts = array[None]
    elif kind.partial.kind is Reduction.MAX:
        parts = np.repeat(array[None], n, axis=0)
        if addends is not None:
            lower = _maximands(array, parts.shape, kind.dtype, addends)
            winner = addends.integers(0, n, array.shape)
            parts = np.where(np.arange(n).reshape(n, *(1 for _ in array.shape)) == winner, parts, lower)
    elif kind.is_pair:
        parts = _weighted(array, n, addends)
    else:
        parts = np.zeros((n, *array.shape), array.dtype)
        if addends is not None:
            low, high = kind.dtype.integer_range if kind.dtype.is_integer else (0, 4)
            parts[1:] = addends.integers(low, high, parts[1:].shape, endpoint=True)
        parts[0] = array - parts[1:].sum(axis=0, dtype=array.dtype)
        if kind.dtype.is_integer:
            parts = Formats("exact").round(parts, kind.dtype)
    return parts.reshape((*counts, *array.shape))  # a scalar on one chip has no axes at all


def _weighted(array: Array, n: int, rng: np.random.Generator | None) -> Array:
    """Means of n chips whose weighted mean is the array: [n, its shape]."""
    lse = np.full((n, *array.shape[:-1], 1), -np.inf)
    means = np.zeros((n, *array.shape))
    lse[0] = 0
    if rng is not None:
        lse[:] = rng.normal(size=lse.shape)
        means[1:] = rng.integers(-4, 5, means[1:].shape)
    weights, _ = softmax_weights(lse, 0)
    means[0] = (array - (weights * means)[1:].sum(axis=0)) / weights[0]
    return paired(means, lse)


def _maximands(array: Array, shape: tuple[int, ...], dtype: DType, rng: np.random.Generator) -> Array:
    """Random values that are at most those of the array, the least ones among them; NaN is the greatest of all."""
    least = rng.integers(0, 4, shape) == 0
    if dtype is DType.BOOL:
        return array & ~least
    if dtype.is_integer:
        low = dtype.integer_range[0]
        return np.where(least, low, rng.integers(low, np.broadcast_to(array, shape), endpoint=True))
    near = np.where(np.isnan(array), 5, array) - rng.integers(0, 5, shape)
    return np.where(least, -np.inf, np.where(rng.integers(0, 2, shape) == 0, near, np.fmin(array, 0)))


def unshard(
    array: Array,
    kind: TensorType,
    orders: Mapping[str, Order],
    mesh: Mesh,
    formats: Formats | None = None,
) -> Array:
    """The global array that the chips' arrays make up: parts in their places, addends summed, maximands compared.

    Raises `ReplicaError` unless chips along an axis over which the value is neither split nor partial hold the same.
    """
    for at, (axis, _) in enumerate(mesh.sizes):
        if kind.state(axis) is None:
            first = array.take([0], axis=at)
            same = array == first
            if kind.dtype.is_float:  # NaN is the same as NaN
                same |= np.isnan(array) & np.isnan(first)
            if not same.all():
                raise ReplicaError(
                    f"{kind}: chips along {axis} should hold the same, and {np.count_nonzero(~same)} of"
                    f" {same.size} elements differ from the first chip's"
                )
    opened = OpenedArray(array, kind, orders, mesh)
    if kind.partial is not None:
        opened.combine(kind.partial.axes, formats or Formats("exact"))
    for axis in mesh:
        state = kind.state(axis)
        if is_split(state):
            assert isinstance(state, str)
            opened.gather(axis, state)
    whole = unpaired(opened.closed(TensorType.whole(kind.shape)), TensorType.whole(kind.shape))
    return whole[(0,) * len(mesh)].copy()
