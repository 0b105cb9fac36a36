"""Packed weights that a program declares, as `fuse-parallel-block` writes them, read back into what they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwright.ir.ops import Concat, Take
from shardwright.ir.program import DimInfo, Program, Value
from shardwright.ir.types import DType
from shardwright.ir.walk import lets
from shardwright.models.weight_map import WeightMap
from shardwright.passes.transformations.packed_weights import PackedPart, PackedWeight, Packing


def declared_packing(program: Program, mapping: WeightMap) -> Packing:
    """The weights that the mapping lacks and that hold several it has, by their names and the packed dimension.

    `wq_wk: NEA` with `dim A=H*D+D` holds wq along H and D, and wk along D. What cannot be read so is left out.
    """
    found = (_packed(program, value, mapping) for value in program.weights if value.name not in mapping.entries)
    return tuple(packed for packed in found if packed is not None)


def parts_of(packing: Packing) -> dict[str, dict[str, tuple[str, ...]]]:
    """For each packed weight its parts, with their dimensions."""
    return {packed.name: {part.weight: part.dims for part in packed.parts} for packed in packing}


def stored_dtypes(program: Program, packing: Packing) -> dict[str, DType]:
    """The number format of every weight that is read from the checkpoint, parts of packed ones among them."""
    made = {value.name: value.type.dtype for value in program.weights}
    for packed in packing:
        dtype = made.pop(packed.name)
        made.update((part.weight, dtype) for part in packed.parts)
    return made


def _packed(program: Program, value: Value, mapping: WeightMap) -> PackedWeight | None:
    names = tuple(dim.name for dim in value.type.dims)
    for dim in names:
        info = program.dim(dim)
        terms = _terms(info)
        if terms is None:
            continue
        for parts in _splits(value.name, tuple(mapping.entries), len(terms)):
            made = tuple(
                PackedPart(name, mapping.entries[name].dims, term) for name, term in zip(parts, terms, strict=True)
            )
            others = {name for name in names if name != dim}
            if all({*part.dims} == {*others, *part.packed} for part in made):
                by = _digits(program, dim)
                return PackedWeight(value.name, None, names, dim, by, program.mesh.product(by), made)
    return None


def _terms(info: DimInfo) -> tuple[tuple[str, ...], ...] | None:
    """The products of dimensions whose sum the dimension is, None where it is no sum of such."""
    terms: list[tuple[str, ...]] = []
    for term in info.expression or ():
        names = tuple(factor for factor in term if isinstance(factor, str))
        if len(names) != len(term):
            return None
        terms.append(names)
    return tuple(terms) if len(terms) > 1 else None


def _splits(text: str, names: Sequence[str], count: int) -> Iterator[tuple[str, ...]]:
    """The ways to read a name as so many of these names, joined by `_`."""
    if count == 1:
        if text in names:
            yield (text,)
        return
    for name in names:
        if text.startswith(f"{name}_"):
            for rest in _splits(text[len(name) + 1 :], names, count - 1):
                yield (name, *rest)


def _digits(program: Program, dim: str) -> tuple[str, ...]:
    """The digits block by block of which the packed dimension is taken apart, or put together."""
    for let, _ in lets(program):
        if isinstance(let.operation, Take | Concat) and let.operation.dim == dim:
            return let.operation.by
    return ()
