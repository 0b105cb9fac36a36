"""Values on all chips as kernels see them: arrays with named dimensions, and the global indices they stand at.

A value is one array: the axes of the mesh lead, one array axis each, then come the chip's local extents in the
order of the type's dimensions. A mesh without axes gives the unsharded meaning, so that the reference and the
simulator run the same kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shardwright.backends.number_formats import Array, Formats
from shardwright.ir.diagnostics import fault
from shardwright.ir.digits import Order, common_order, fitting_order, global_indices, radix
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Number
from shardwright.ir.types import TensorType


@dataclass(frozen=True)
class Local:
    """A value on all chips: `array` is [mesh axes..., local extents of kind.dims...]."""

    array: Array
    kind: TensorType


Argument = Local | Number


@dataclass(frozen=True)
class KernelSetting:
    """Where kernels run: the mesh whose axes lead the arrays, the digits, and the number formats.

    `axis_sizes` are the program's own mesh sizes, which `take` and `concat` by blocks need unsharded, too.
    """

    mesh: Mesh
    orders: Mapping[str, Order]
    formats: Formats
    axis_sizes: Mapping[str, int]

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        return tuple(size for _, size in self.mesh.sizes)

    def order(self, kind: TensorType, dim: str) -> Order:
        """The digits of a dimension of this value."""
        return fitting(self.orders, kind, dim, self.mesh)

    def positions(self, kind: TensorType, dim: str) -> Array:
        """The global indices along a dimension that each chip holds: int64, [mesh axes..., local extent]."""
        order, size, axes = self.order(kind, dim), kind.shape.size(dim), kind.split(dim)
        rows = [global_indices(size, order, axes, chip, self.mesh) for chip in self.mesh.chips()]
        return np.stack(rows).reshape(*self.mesh_shape, -1)

    def locate(self, kind: TensorType, dim: str, indices: Array) -> tuple[Array, Array]:
        """Where each chip holds global indices: local indices (0 where it does not), and whether it does.

        `indices` is [mesh axes..., anything].
        """
        order, size, split = self.order(kind, dim), kind.shape.size(dim), set(kind.split(dim))
        held = (indices >= 0) & (indices < size)
        local = np.zeros_like(indices)
        stride = size
        for digit in order:
            stride //= radix(digit, self.mesh)
            value = indices // stride % radix(digit, self.mesh)
            if isinstance(digit, str) and digit in split:
                shape = [1] * indices.ndim
                at = self.mesh.axes.index(digit)
                shape[at] = self.mesh[digit]
                held &= value == np.arange(self.mesh[digit]).reshape(shape)
            else:
                local = local * radix(digit, self.mesh) + value
        local = local * stride + indices % stride
        return np.where(held, local, 0), held


def fitting(orders: Mapping[str, Order], kind: TensorType, dim: str, mesh: Mesh) -> Order:
    """The digits of a dimension of this value, of the dimensions' orders."""
    return fitting_order(orders.get(dim, ()), kind.split(dim), kind.shape.size(dim), mesh)


def common(orders: Mapping[str, Order], before: TensorType, after: TensorType, dim: str, mesh: Mesh) -> Order:
    """Digits in which a dimension can be read before and after a movement; raises `digits` where there are none."""
    size, splits = before.shape.size(dim), (before.split(dim), after.split(dim))
    order = common_order(orders.get(dim, ()), *splits, size, mesh)
    if order is None:
        raise fault("digits", f"{before} and {after} have no digits of {dim}={size} in common")
    return order


def aligned(value: Local, names: Sequence[str], lead: int) -> Array:
    """The array with its dimensions in the order of `names`, extent 1 where the value lacks one."""
    own = [lead + value.kind.names.index(name) for name in names if name in value.kind.names]
    array = value.array.transpose(*range(lead), *own)
    missing = tuple(lead + i for i, name in enumerate(names) if name not in value.kind.names)
    return np.expand_dims(array, missing)
