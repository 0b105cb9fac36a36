"""Layouts as types, and the meshes and shapes that the resharding tests and bench/resharding_pairs.py go through."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement

from oracles.layout_search import Layout

from shardwright.ir.mesh import Mesh
from shardwright.ir.types import Dim, DType, Reduction, Shape, State, TensorType

AXES, DIMS = "xyzw", "ABCD"


def mesh_of(sizes: Sequence[int]) -> Mesh:
    return Mesh(tuple(zip(AXES, sizes, strict=False)))


def type_of(layout: Layout, extents: Sequence[int], dtype: DType = DType.INT8) -> TensorType:
    """The layout as a type; a byte an element, unless said otherwise, so that bytes count elements."""
    states: dict[str, State] = {}
    for axis, state in zip(AXES, layout, strict=False):
        states[axis] = Reduction(state) if isinstance(state, str) else None if state is None else DIMS[state]
    dims = tuple(Dim(name, size) for name, size in zip(DIMS, extents, strict=False))
    return TensorType.of_states(Shape(dtype, dims), states)


def all_meshes(most_axes: int = 3, largest: int = 4) -> Iterator[tuple[int, ...]]:
    """Sizes of axes in ascending order: the names of axes mean nothing, so other orders repeat the same pairs."""
    for n_axes in range(1, most_axes + 1):
        yield from combinations_with_replacement(range(1, largest + 1), n_axes)


def roomy(sizes: Sequence[int], n_dims: int) -> tuple[int, ...]:
    """Extents with room for every axis on every dimension, and a remainder of one."""
    return (math.prod(sizes),) * n_dims


def cramped(sizes: Sequence[int], n_dims: int) -> Iterator[tuple[int, ...]]:
    """Extents with room for some axes only, down to a dimension of one element."""
    yield tuple(sizes[i % len(sizes)] for i in range(n_dims))
    yield tuple(math.prod(sizes[i:]) for i in range(n_dims))
    yield (math.prod(sizes), *(1,) * (n_dims - 1))
    yield (*(sizes[0],) * (n_dims - 1), math.prod(sizes) ** 2)
