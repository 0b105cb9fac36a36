"""An executor of movements for the resharding tests: chips and digits as axes of one array, bytes counted by origin.

Written without the planner, its prices and the simulator. The array of a value of some type has one axis for each
axis of the mesh, then one for each digit of each dimension; a digit that splits has extent 1, since the chip's
coordinate stands for it. So `array[chip]` is the chip's shard. Digits that no step touches are left out: they would
only multiply every count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shardwright.cost.resharding.planner import ReshardingPlan
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import AllGather, AllReduce, AllToAll, AsPartial, Movement, ReduceScatter, Slice
from shardwright.ir.types import Partial, Reduction, TensorType

# As large as a sum of addends needs; wrapping round would not hide a fault either.
NUMBER = np.int32


class Execution:
    """The arrays of one plan's values on all chips."""

    def __init__(self, plan: ReshardingPlan, mesh: Mesh) -> None:
        self.mesh = mesh
        self.axes = mesh.axes
        kinds = [plan.source, *(step.type for step in plan.steps)]
        self.digits = sorted({(d, axis) for kind in kinds for d, axes in enumerate(kind.splits) for axis in axes})
        self.names = plan.source.names
        self.extent = [mesh[axis] for _, axis in self.digits]
        elements = math.prod(self.extent)
        self.scale = plan.source.shape.elements // elements
        """Elements of the plan's value for one that is moved here."""
        self.value = (np.arange(elements, dtype=NUMBER) * 7919 + 11).reshape(self.extent)

    def digit(self, dim: str, axis: str) -> int:
        """The axis of the array that is this digit."""
        return len(self.axes) + self.digits.index((self.names.index(dim), axis))

    def chip(self, axis: str) -> int:
        return self.axes.index(axis)

    def coordinates(self, axis: str, rank: int) -> np.ndarray:
        shape = [1] * rank
        shape[self.chip(axis)] = -1
        return np.arange(self.mesh[axis], dtype=NUMBER).reshape(shape)

    def shards(self, kind: TensorType) -> np.ndarray:
        """The value laid out so: addends (or maximands) are arbitrary, but right together."""
        array = self.value.reshape((1,) * len(self.axes) + self.value.shape)
        for dim, axes in zip(kind.names, kind.splits, strict=True):
            for axis in axes:
                array = np.swapaxes(array, self.chip(axis), self.digit(dim, axis))
        array = self.spread(array)
        if kind.partial is None:
            return array
        for axis in kind.partial.axes:
            size = self.mesh[axis]
            here = self.coordinates(axis, array.ndim)
            noise = (here + 1) * 31 + array % 101
            if kind.partial.kind is Reduction.MAX:
                array = np.where(here == array % size, array, array - noise)
            else:
                lead = np.take(noise, range(size - 1), self.chip(axis)).sum(
                    self.chip(axis), keepdims=True, dtype=NUMBER
                )
                array = np.where(here == size - 1, array - lead, noise).astype(NUMBER)
        return array

    def spread(self, array: np.ndarray) -> np.ndarray:
        """Copies of what is the same along an axis of the mesh, one on each chip."""
        return np.broadcast_to(array, (*(self.mesh[a] for a in self.axes), *array.shape[len(self.axes) :]))

    def apply(self, operation: Movement, operand: TensorType, array: np.ndarray) -> np.ndarray:
        match operation:
            case AllGather():
                for axis in operation.axes:
                    array = np.swapaxes(array, self.chip(axis), self.digit(_split_dim(operand, axis), axis))
                return self.spread(array)
            case AllToAll():
                for axes, before, after in operation.transfers:
                    for axis in axes:
                        array = np.swapaxes(array, self.chip(axis), self.digit(before, axis))
                        array = np.swapaxes(array, self.chip(axis), self.digit(after, axis))
                return array
            case AllReduce():
                return self.spread(self.reduced(operation.axes, operand.partial, array))
            case ReduceScatter():
                array = self.reduced(operation.named_axes, operand.partial, array)
                for axes, dim in operation.targets:
                    for axis in axes:
                        array = np.swapaxes(array, self.chip(axis), self.digit(dim, axis))
                return array
            case Slice():
                for axes, dim in operation.targets:
                    for axis in axes:
                        array = np.diagonal(array, 0, self.chip(axis), self.digit(dim, axis))
                        array = np.moveaxis(np.expand_dims(array, -1), -2, self.chip(axis))
                        array = np.moveaxis(array, -1, self.digit(dim, axis))
                return array
            case AsPartial():
                for axis in operation.axes:
                    here = self.coordinates(axis, array.ndim)
                    if operand.state(axis) is None:
                        array = np.where(here == 0, array, 0)
                    else:
                        place = self.digit(str(operand.state(axis)), axis)
                        shape = [1] * array.ndim
                        shape[place] = self.mesh[axis]
                        array = np.where(here == np.arange(self.mesh[axis]).reshape(shape), array, 0)
                return array
            case _:
                raise AssertionError(operation)

    def reduced(self, axes: Sequence[str], partial: Partial | None, array: np.ndarray) -> np.ndarray:
        assert partial is not None
        assert set(axes) <= set(partial.axes)
        along = tuple(self.chip(axis) for axis in axes)
        if partial.kind is Reduction.MAX:
            return array.max(along, keepdims=True)
        return array.sum(along, keepdims=True, dtype=NUMBER)

    def received(self, operation: Movement, operand: TensorType, array: np.ndarray) -> int:
        """Elements that the chip which receives most receives: those of its result that come from another chip, and
        those addends of its result that do. An all-reduce is a reduce-scatter of equal parts and a gather of them."""
        K = math.prod(self.mesh[axis] for axis in operation.named_axes)
        match operation:
            case AllGather() | AllToAll():
                owner = np.zeros((1,) * array.ndim, np.int16)
                for axis in self.axes:
                    owner = owner * self.mesh[axis] + self.coordinates(axis, array.ndim)
                before = np.broadcast_to(owner, array.shape)
                after = self.apply(operation, operand, before)
                own = owner.reshape(owner.shape[: len(self.axes)] + (1,) * len(self.digits))
                foreign = (after != own).sum(tuple(range(len(self.axes), array.ndim)))
                return int(foreign.max()) * self.scale
            case ReduceScatter():
                after = self.apply(operation, operand, array)
                return (K - 1) * math.prod(after.shape[len(self.axes) :]) * self.scale
            case AllReduce():
                V = math.prod(array.shape[len(self.axes) :]) * self.scale
                return math.ceil((K - 1) * 2 * V / K)
            case _:
                return 0


def _split_dim(kind: TensorType, axis: str) -> str:
    (dim,) = (name for name, axes in zip(kind.names, kind.splits, strict=True) if axis in axes)
    return dim


def execute(plan: ReshardingPlan, mesh: Mesh) -> list[str]:
    """Runs the plan; what is wrong with it, nothing if it is right: contents, and the bytes of each step (in int8)."""
    wrong: list[str] = []
    run = Execution(plan, mesh)
    kind, array = plan.source, run.shards(plan.source)
    for step in plan.steps:
        received = run.received(step.operation, kind, array)
        if received != step.bytes_received:
            wrong.append(f"{step.operation} of {kind}: {step.bytes_received} bytes claimed, {received} received")
        array = run.apply(step.operation, kind, array)
        kind = step.type
        local = tuple(1 if axis in kind.splits[d] else mesh[axis] for d, axis in run.digits)
        if array.shape != (*(mesh[axis] for axis in run.axes), *local):
            wrong.append(f"{step.operation} leaves {array.shape}, which is not {kind}")
            return wrong
    if kind != plan.target:
        wrong.append(f"the plan ends with {kind}")
    whole = run.reduced(kind.partial.axes, kind.partial, array) if kind.partial else array
    expected = run.shards(TensorType(kind.dtype, kind.dims, kind.splits))
    if not np.array_equal(np.broadcast_to(whole, expected.shape), expected):
        wrong.append(f"{plan.source} -> {plan.target}: the contents differ")
    return wrong
