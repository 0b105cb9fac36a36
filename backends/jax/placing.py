"""Arrays onto the devices of a mesh, one chip's part at a time, of which each process reads only its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from shardwright.backends.jax.edges import EdgeArray
from shardwright.backends.number_formats import numpy_dtype
from shardwright.ir.index_boxes import Index, box_shape, ranges
from shardwright.ir.types import Reduction
from shardwright.ir.weight_parts import read_runs
from shardwright.ir.weight_source import WeightSource

Progress = Callable[[int, int], None]
"""Called with the bytes that lie on this process's devices so far, and those that will."""


@dataclass(frozen=True)
class MeshArrays:
    """The edges of the arrays by name, on a mesh of devices (`jax.sharding.Mesh`). Those that `orders` names lie in
    memory in that order of their dimensions, from major to minor."""

    edges: dict[str, EdgeArray]
    mesh: Any
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])

    def load(self, source: WeightSource, progress: Progress | None = None) -> dict[str, Any]:
        """The arrays on the devices.

        Beyond these the host holds one part, and, where it is converted, a second one. A part that several devices of
        this process hold is read once. Raises ValueError for an array that the source does not have, and for one
        of another shape.
        """
        there = set(source.names)
        for name, edge in self.edges.items():
            if name not in there:
                raise ValueError(f"there is no array for {name}: {edge.kind}")
            check_shape(name, edge, source.shape(name))
        total = sum(self._bytes(edge) for edge in self.edges.values())
        done = 0
        made: dict[str, Any] = {}
        for name, edge in self.edges.items():
            parts: list[Any] = []
            for part in self._parts(source, name, edge):
                parts.append(part)
                done += _part_bytes(edge)
                if progress is not None:
                    progress(done, total)
            made[name] = self._joined(edge, parts)
        return made

    def zeros(self) -> dict[str, Any]:
        """Zeros, made on the devices."""
        jax, jnp = cast(Any, importlib.import_module("jax")), cast(Any, importlib.import_module("jax.numpy"))
        edges = self.edges

        def made() -> dict[str, Any]:
            return {name: jnp.zeros(edge.shape, numpy_dtype(edge.kind.dtype)) for name, edge in edges.items()}

        return jax.jit(made, out_shardings={name: sharding_of(edge, self.mesh) for name, edge in edges.items()})()

    def lies_here(self, name: str, array: Any) -> bool:
        """Tells whether a JAX array already lies as the edge says."""
        edge = self.edges[name]
        return (
            array.shape == edge.shape
            and array.dtype == numpy_dtype(edge.kind.dtype)
            and array.sharding.is_equivalent_to(sharding_of(edge, self.mesh), array.ndim)
            and (name not in self.orders or array.format.layout.major_to_minor == self.orders[name])
        )

    def _bytes(self, edge: EdgeArray) -> int:
        sharding = sharding_of(edge, self.mesh)
        return len(sharding.addressable_devices) * _part_bytes(edge)

    def _parts(self, source: WeightSource, name: str, edge: EdgeArray) -> Iterator[Any]:
        """One array for each device of this process."""
        jax = cast(Any, importlib.import_module("jax"))
        held: dict[tuple[tuple[int, int], ...], list[Any]] = {}  # slices are no keys before Python 3.12
        for device, index in sharding_of(edge, self.mesh).addressable_devices_indices_map(edge.shape).items():
            bounds = tuple(taken.indices(extent)[:2] for taken, extent in zip(index, edge.shape, strict=True))
            held.setdefault(bounds, []).append(device)
        for bounds, devices in held.items():
            array = read_part(source, name, edge, tuple(slice(*ends) for ends in bounds))
            for device in devices:
                place = self._laid(name, jax.sharding.SingleDeviceSharding(device, **_memory(edge)))
                # Waited for, so that the host's array is free before the next part is read.
                yield jax.device_put(array, place).block_until_ready()

    def _laid(self, name: str, sharding: Any) -> Any:
        """The sharding, with the order of the array's dimensions where it has one of its own."""
        if name not in self.orders:
            return sharding
        layout = cast(Any, importlib.import_module("jax.experimental.layout"))
        return layout.Format(layout.Layout(self.orders[name]), sharding)

    def _joined(self, edge: EdgeArray, parts: Sequence[Any]) -> Any:
        jax = cast(Any, importlib.import_module("jax"))
        return jax.make_array_from_single_device_arrays(edge.shape, sharding_of(edge, self.mesh), list(parts))


def sharding_of(edge: EdgeArray, mesh: Any) -> Any:
    """The `NamedSharding` of the edge's `shape`."""
    sharding = cast(Any, importlib.import_module("jax.sharding"))
    words = [axes if len(axes) > 1 else axes[0] if axes else None for axes in edge.axes]
    return sharding.NamedSharding(mesh, sharding.PartitionSpec(*words), **_memory(edge))


def _memory(edge: EdgeArray) -> dict[str, str]:
    return {"memory_kind": "pinned_host"} if edge.on_host else {}


def _part_bytes(edge: EdgeArray) -> int:
    return int(np.prod(edge.chip_shape)) * numpy_dtype(edge.kind.dtype).itemsize


def read_part(source: WeightSource, name: str, edge: EdgeArray, box: Index) -> npt.NDArray[Any]:
    """The box of the edge's `shape`, in the number format of its type.

    A dimension of which chips hold several blocks is read block by block. Of a partial sum the first addend is the
    whole, and the others are 0; each maximand of a partial maximum is the whole.
    """
    dtype = numpy_dtype(edge.kind.dtype)
    if edge.addends:
        leading, own = box[: len(edge.addends)], box[len(edge.addends) :]
        if _is_sum(edge) and any(taken.start for taken in leading):
            return np.zeros(box_shape(box), dtype)
        return read_part(source, name, replace(edge, addends=()), own).reshape(box_shape(box))
    blocks: list[list[tuple[int, int]]] = []
    at = 0
    for extents in edge.factors:
        blocks.append(ranges(extents, box[at : at + len(extents)]))
        at += len(extents)
    whole = tuple(slice(0, sum(stop - start for start, stop in runs)) for runs in blocks)
    array = read_runs(source, name, blocks, whole)
    return np.ascontiguousarray(array.astype(dtype, copy=False)).reshape(box_shape(box))


def placed_shape(edge: EdgeArray, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A global array as the edge's `shape` has it: partial values and digits as in `read_part`."""
    array = array.reshape([extent for extents in edge.factors for extent in extents])
    if not edge.addends:
        return array
    made = np.broadcast_to(array, edge.shape)
    if _is_sum(edge):
        made = np.zeros(edge.shape, array.dtype)
        made[(0,) * len(edge.addends)] = array
    return made


def global_array(edge: EdgeArray, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The global array of one of the edge's `shape`, addends summed in float32, integers as they wrap."""
    leading = tuple(range(len(edge.addends)))
    if not leading:
        return array.reshape(edge.global_shape)
    if not _is_sum(edge):
        return array.max(leading).reshape(edge.global_shape)
    dtype = np.dtype(np.float32) if edge.kind.dtype.is_float else array.dtype
    return array.sum(leading, dtype).astype(array.dtype).reshape(edge.global_shape)


def _is_sum(edge: EdgeArray) -> bool:
    return edge.kind.partial is not None and edge.kind.partial.kind is Reduction.SUM


def check_shape(name: str, edge: EdgeArray, shape: tuple[int, ...]) -> None:
    """Raises ValueError for another shape than the type's."""
    if shape != edge.global_shape:
        raise ValueError(f"{name}: an array of shape {shape} for {edge.kind}, whose shape is {edge.global_shape}")
