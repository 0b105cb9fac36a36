"""From the mapping of a checkpoint to what an emitted module needs to load it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardwright.compiling.declared_packing import declared_packing
from shardwright.models.safetensors_files import NAMES
from shardwright.models.weight_map import extents, word_of
from shardwright.models.weights import TensorRange, dims_of

if TYPE_CHECKING:
    from shardwright.backends.jax.weight_loading import StoredTensor, WeightRecipe
    from shardwright.ir.program import Program
    from shardwright.models.weight_map import WeightEntry, WeightMap
    from shardwright.passes.transformations.packed_weights import PackedWeight


def loading_recipes(program: Program, mapping: WeightMap) -> dict[str, WeightRecipe] | str:
    """How each weight of an explicit program is read, packed ones included; or why it cannot be: a weight that the
    checkpoint does not have, of another shape, or in a format that no checkpoint gives."""
    from shardwright.backends.jax.edges import ProgramEdges
    from shardwright.backends.jax.weight_loading import WeightRecipe

    packing = {packed.name: packed for packed in declared_packing(program, mapping)}
    edges = ProgramEdges(program)
    made: dict[str, WeightRecipe] = {}
    for value in program.weights:
        name, dims = value.name, tuple(dim.name for dim in value.type.dims)
        shape = tuple(dim.size for dim in value.type.dims)
        if value.type.dtype not in NAMES:
            return f"{name} is {value.type.dtype}"
        if name in mapping.entries:
            entry = mapping.entries[name]
            if {*entry.dims} != {*dims} or tuple(mapping.sizes[dim] for dim in dims) != shape:
                return f"{name} has another shape than in the checkpoint"
            parts = [item.dims for group in entry.stored for item in group if isinstance(item, TensorRange)]
            if any(part not in (dims[at : at + len(part)] for at in range(len(dims))) for part in parts if part):
                return f"{name} has dimensions apart that number the rows of {entry.tensor} together"
            made[name] = WeightRecipe((_tensor(mapping, entry, dims),), _stacked(entry, dims))
        elif name in packing:
            packed = packing[name]
            entries = [mapping.entries[part.weight] for part in packed.parts]
            inner = [dim for dim in dims if dim not in entries[0].stacked]
            tensors = tuple(_part(mapping, entry, packed, i) for i, entry in enumerate(entries))
            made[name] = WeightRecipe(tensors, _stacked(entries[0], dims), inner.index(packed.dim) + 1)
        else:
            return f"the checkpoint has no {name}"
        factors = edges.stored(value).factors
        if any(len(factors[dim]) > 1 for dim in made[name].stacked.values()):
            return f"{name} has layers or experts in pieces"
    return made


def _stacked(entry: WeightEntry, dims: Sequence[str]) -> dict[str, int]:
    return {word_of(dim): dims.index(dim) for dim in entry.stacked}


def _tensor(
    mapping: WeightMap, entry: WeightEntry, dims: Sequence[str], shape: tuple[int, ...] | None = None
) -> StoredTensor:
    """A tensor with its dimensions in the order of `dims`, stacked ones left out."""
    from shardwright.backends.jax.weight_loading import StoredTensor

    items = [item for group in entry.stored for item in group]
    cut = tuple(extent for group in entry.stored for extent in extents(group, mapping.sizes))
    take: list[tuple[int, int] | int | None] = []
    for item in items:
        one = isinstance(item, TensorRange) and not item.dims
        take.append(None if not isinstance(item, TensorRange) else item.start if one else (item.start, item.stop))
    kept = [dims_of(item) for item in items if dims_of(item)]
    inner = [dim for dim in dims if dim not in entry.stacked]
    # Dimensions that number the indices of a part together stay together, and come apart by the shape.
    order = tuple(i for dim in inner for i, item in enumerate(kept) if item[0] == dim)
    return StoredTensor(entry.tensor, cut, tuple(take), order, shape or tuple(mapping.sizes[dim] for dim in inner))


def _part(mapping: WeightMap, entry: WeightEntry, packed: PackedWeight, number: int) -> StoredTensor:
    """One of a packed weight's tensors, its packed dimensions as blocks and the rest of a block."""
    part = packed.parts[number]
    dims: list[str] = []
    shape: list[int] = []
    for dim in packed.dims:
        if dim == packed.dim:
            dims.extend(part.packed)
            size = math.prod(mapping.sizes[each] for each in part.packed)
            shape.extend((packed.blocks, size // packed.blocks))
        elif dim not in entry.stacked:
            dims.append(dim)
            shape.append(mapping.sizes[dim])
    return _tensor(mapping, entry, dims, tuple(shape))
