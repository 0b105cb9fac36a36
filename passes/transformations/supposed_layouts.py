"""Open weights: which they are, and layouts that they are supposed to have while it is decided what is packed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program, Value
from shardwright.ir.types import Axes, OpenType, TensorType, ValueType
from shardwright.passes.transformations.patterns import weights_of

WeightKey = tuple[str | None, str]
"""A weight of the program (None), or one that is a parameter of a function, by its name."""


def open_weights(program: Program) -> dict[WeightKey, OpenType]:
    """The weights of whose layouts nothing was written."""
    found: dict[WeightKey, OpenType] = {}
    for func in program.funcs:
        for name, value in weights_of(program, func).items():
            if isinstance(value.type, OpenType) and value.type == OpenType.any_split(value.shape):
                found[None if program.weights else func.name, name] = value.type
    return found


def retyped(program: Program, types: Mapping[WeightKey, ValueType]) -> Program:
    """The program with these types for these weights."""

    def changed(values: tuple[Value, ...], scope: str | None) -> tuple[Value, ...]:
        return tuple(replace(value, type=types.get((scope, value.name), value.type)) for value in values)

    funcs = tuple(replace(func, params=changed(func.params, func.name)) for func in program.funcs)
    return replace(program, weights=changed(program.weights, None), funcs=funcs)


def split_along(kind: OpenType, dim: str, axes: Sequence[str], program: Program) -> TensorType:
    """The type split along a dimension over as many of the axes, in turn, as divide it."""
    chosen = fitting_axes(kind.shape.size(dim), program.mesh, axes)
    return TensorType(kind.dtype, kind.dims, tuple(chosen if d.name == dim else () for d in kind.dims))


def fitting_axes(size: int, mesh: Mesh, axes: Sequence[str] | None = None) -> Axes:
    """As many of the axes, in turn, as divide a size together; of all of the mesh's where None."""
    chosen: tuple[str, ...] = ()
    for axis in mesh.axes if axes is None else axes:
        if size % mesh.product((*chosen, axis)) == 0:
            chosen = (*chosen, axis)
    return chosen
