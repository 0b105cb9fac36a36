"""The mapping from a checkpoint's tensors to a program's weights, and the JSON file that holds it beside a program."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault, located, nearest
from shardwright.ir.json_texts import json_of, shown
from shardwright.ir.names import is_valid_name
from shardwright.ir.program import Program
from shardwright.models.description import Model
from shardwright.models.safetensors_files import NAMES
from shardwright.models.weights import Stored, TensorRange, dims_of, model_weights

FORMAT = "shardwright weights 1"
SUFFIX = ".weights.json"
STACKED = {"N": "layer", "X": "expert"}
"""The letters of dimensions along which tensors are stacked, and the word for the number in the tensors' name."""

NUMBERED = re.compile(r"\{(?:(\d+)\*)?(layer|expert)(?:\+(\d+))?\}")
"""What stands for a number in a name: `{layer}`, or `{2*layer+1}` where every second one is stacked, from 1 on."""

_DIM = re.compile(r"[A-Z][0-9]*|[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class WeightEntry:
    """One weight: its dimensions, and how each tensor that it is made of is stored.

    A tensor's array has a dimension for each group of `stored`, the product of the group's sizes (1 for none).
    Reshaped to all of them, parts taken, and transposed to the order of `dims`, it is the weight, or, where `tensor`
    has `{layer}` or `{expert}`, the weight's slice for that number along N or X, the first of N and N2.
    """

    dims: tuple[str, ...]
    stored: Stored
    tensor: str

    @property
    def stacked(self) -> tuple[str, ...]:
        """The dimensions along which tensors are stacked, in the order of `dims`."""
        words = {match[2] for match in NUMBERED.finditer(self.tensor)}
        found: dict[str, str] = {}
        for dim in self.dims:
            word = word_of(dim)
            if word in words:
                found.setdefault(word, dim)
        return tuple(found.values())

    def tensors(self, sizes: Mapping[str, int]) -> list[str]:
        """The names of the tensors, one for each index of the stacked dimensions, the last running fastest."""
        counts = (range(sizes[dim]) for dim in self.stacked)
        return [self.tensor_at(numbers) for numbers in itertools.product(*counts)]

    def tensor_at(self, numbers: Sequence[int]) -> str:
        """The name of the tensor at these indices of the stacked dimensions."""
        return numbered(self.tensor, dict(zip(map(word_of, self.stacked), numbers, strict=True)))

    def stored_shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(math.prod(extents(group, sizes)) for group in self.stored)


def word_of(dim: str) -> str:
    """The word in the names of tensors that are stacked along a dimension, "" where none can be."""
    return STACKED.get(dim.rstrip("0123456789"), "")


def numbered(name: str, numbers: Mapping[str, int]) -> str:
    """A tensor's name with numbers in the place of its words."""
    return NUMBERED.sub(lambda match: str(int(match[1] or 1) * numbers[match[2]] + int(match[3] or 0)), name)


def extents(group: Sequence[str | TensorRange], sizes: Mapping[str, int]) -> list[int]:
    """The sizes of the dimensions and parts of a stored dimension."""
    return [item.size if isinstance(item, TensorRange) else sizes[item] for item in group]


@dataclass(frozen=True)
class WeightMap:
    """The entries by the weights' names, the sizes of their dimensions, and tensors left out (`*` patterns)."""

    architecture: str
    sizes: Mapping[str, int]
    entries: Mapping[str, WeightEntry]
    ignored: tuple[str, ...] = ()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.sizes[dim] for dim in self.entries[name].dims)


def weight_map(model: Model) -> WeightMap:
    """The mapping of a model's checkpoint, the same for every layout."""
    weights = model_weights(model)
    entries = {weight.name: WeightEntry(weight.dims, weight.stored, weight.tensor) for weight in weights}
    sizes = {name: size for name, size in model.sizes(1, 1).items() if isinstance(size, int)}
    used = {dim for weight in weights for dim in weight.dims}
    tied = (f"{model.modules['unembed']}.weight",) if model.tied else ()
    return WeightMap(
        model.architecture,
        {name: size for name, size in sizes.items() if name in used},
        entries,
        (*model.ignored, *tied),
    )


def as_saved(mapping: WeightMap, tensors: Collection[str]) -> WeightMap:
    """The mapping with the names that a checkpoint of these tensors has for its own.

    One that was saved from the model without its head, as GPT-2's are, leaves out the module that all but the head is
    within: `h.0.ln_1.weight` for `transformer.h.0.ln_1.weight`.
    """
    layered = [entry.tensor for entry in mapping.entries.values() if NUMBERED.search(entry.tensor)]
    base = f"{layered[0].partition('.')[0]}." if layered else ""
    entries = {name: replace(entry, tensor=entry.tensor.removeprefix(base)) for name, entry in mapping.entries.items()}
    bare = [entry.tensors(mapping.sizes)[0] for entry in entries.values() if NUMBERED.search(entry.tensor)]
    if any(tensor.startswith(base) for tensor in tensors) or not any(tensor in tensors for tensor in bare):
        return mapping
    return replace(mapping, entries=entries, ignored=tuple(each.removeprefix(base) for each in mapping.ignored))


# ---------------------------------------------------------------- the file


def map_path(program: str | Path) -> Path:
    """Where the mapping of a program lies: `OUT.weights.json` beside `OUT.shard`."""
    path = Path(program)
    return path.with_name(path.name.removesuffix(".shard") + SUFFIX)


def to_json(mapping: WeightMap) -> str:
    """The text of the file, with lists on one line each: a person reads it."""
    sizes = ",\n".join(f"    {json.dumps(dim)}: {size}" for dim, size in mapping.sizes.items())
    entries = ",\n".join(
        f"    {json.dumps(name)}: {{\n"
        f'      "dims": {json.dumps(list(entry.dims))},\n'
        f'      "tensor": {json.dumps(entry.tensor)},\n'
        f'      "stored": {json.dumps([[_item_json(item) for item in group] for group in entry.stored])}\n'
        "    }"
        for name, entry in mapping.entries.items()
    )
    return (
        f'{{\n  "format": {json.dumps(FORMAT)},\n  "architecture": {json.dumps(mapping.architecture)},\n'
        f'  "sizes": {{\n{sizes}\n  }},\n  "weights": {{\n{entries}\n  }},\n'
        f'  "ignored": {json.dumps(list(mapping.ignored))}\n}}\n'
    )


def _item_json(item: str | TensorRange) -> object:
    """A dimension by its name; a part as `{"of": 6, "take": [0, 4], "as": "G"}`, without "as" where it is one index,
    with a list where it has several dimensions."""
    if isinstance(item, str):
        return item
    of: dict[str, object] = {"of": item.size, "take": [item.start, item.stop]}
    if len(item.dims) > 1:
        return {**of, "as": list(item.dims)}
    return {**of, "as": item.dims[0]} if item.dims else of


def read_map(path: str | Path) -> WeightMap:
    """The mapping in a file. Raises a `DiagnosticError` that says what in it is wrong."""
    with located(Source(str(path), "")):
        return _parsed(json_of(path, Path(path).read_bytes(), *_WRONG))


_WRONG = ("bad-weight-map", "write it anew with shardwright import")


def _wrong(what: str) -> DiagnosticError:
    code, way_out = _WRONG
    return fault(code, what, NOWHERE, way_out)


def _parsed(value: object) -> WeightMap:
    top = _object(value, "the file")
    if top.get("format") != FORMAT:
        raise _wrong(f"the format is {shown(top.get('format'))}, not {shown(FORMAT)}")
    sizes: dict[str, int] = {}
    for dim, size in _object(top.get("sizes"), "sizes").items():
        if not _DIM.fullmatch(dim):
            raise _wrong(f"sizes: {shown(dim)} is not the name of a dimension")
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise _wrong(f"sizes: {dim} is {shown(size)}, not a whole number from 1 up")
        sizes[dim] = size
    entries = {name: _entry(name, entry, sizes) for name, entry in _object(top.get("weights"), "weights").items()}
    architecture = top.get("architecture")
    if not isinstance(architecture, str):
        raise _wrong(f"architecture is {shown(architecture)}, not a text")
    return WeightMap(architecture, sizes, entries, _texts(top.get("ignored", []), "ignored"))


def _entry(name: str, value: object, sizes: Mapping[str, int]) -> WeightEntry:
    if not is_valid_name(name):
        raise _wrong(f"weights: {shown(name)} cannot be the name of a weight")
    keys = _object(value, name)
    dims = _texts(keys.get("dims"), f"{name}: dims")
    groups: object = keys.get("stored")
    if not isinstance(groups, list):
        raise _wrong(f"{name}: stored is {shown(cast('object', groups))}, not a list of lists")
    stored = tuple(_group(group, f"{name}: stored", sizes) for group in cast("list[object]", groups))
    for dim in dims:
        if dim not in sizes:
            raise _wrong(f"{name}: dimension {shown(dim)[1:-1]} has no size")
    tensor = keys.get("tensor")
    if not isinstance(tensor, str) or not tensor:
        raise _wrong(f"{name}: tensor is {shown(tensor)}, not a name")
    for match in NUMBERED.finditer(tensor):
        letter = next(letter for letter, word in STACKED.items() if word == match[2])
        if not any(word_of(dim) == match[2] for dim in dims):
            raise _wrong(f"{name}: {match[0]} stands in the tensor's name, and dims have no {letter}")
    entry = WeightEntry(dims, stored, tensor)
    parts = [dim for group in stored for item in group for dim in dims_of(item)]
    if len(set(dims)) != len(dims) or sorted(parts) != sorted(dim for dim in dims if dim not in entry.stacked):
        held = " ".join(dim for dim in dims if dim not in entry.stacked)
        raise _wrong(f"{name}: stored has {' '.join(parts)}, and of dims a tensor has {held}")
    return entry


def _group(value: object, what: str, sizes: Mapping[str, int]) -> tuple[str | TensorRange, ...]:
    if not isinstance(value, list):
        raise _wrong(f"{what} is {shown(value)}, not a list of texts")
    items = cast("list[object]", value)
    made: list[str | TensorRange] = []
    for item in items:
        if isinstance(item, dict):
            part = _part(cast("dict[str, object]", item), what, sizes)
            if made and len(part.dims) > 1:
                raise _wrong(f"{what}: a part of several dimensions, {' '.join(part.dims)}, stands first of its list")
            made.append(part)
        elif isinstance(item, str):
            made.append(item)
        else:
            raise _wrong(f"{what} is {shown(items)}, not a list of texts")
    return tuple(made)


def _part(keys: Mapping[str, object], what: str, sizes: Mapping[str, int]) -> TensorRange:
    size, take, named = keys.get("of"), keys.get("take"), keys.get("as")
    bounds = cast("list[object]", take) if isinstance(take, list) else []
    numbers = [n for n in (size, *bounds) if isinstance(n, int) and not isinstance(n, bool)]
    dims = cast("list[object]", named if isinstance(named, list) else [] if named is None else [named])
    if len(numbers) == 3 and len(bounds) == 2 and all(isinstance(dim, str) for dim in dims):
        of, start, stop = numbers
        names = tuple(str(dim) for dim in dims)
        if 0 <= start < stop <= of and stop - start == math.prod(sizes.get(dim, 0) for dim in names):
            return TensorRange(of, start, stop, names)
    raise _wrong(f'{what}: {shown(keys)} is no part of a dimension, like {{"of": 6, "take": [0, 4], "as": "G"}}')


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(f"{what} is {shown(value)}, not an object")
    return cast("dict[str, Any]", value)


def _texts(value: object, what: str) -> tuple[str, ...]:
    items = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(item, str) for item in items):
        raise _wrong(f"{what} is {shown(cast('object', value))}, not a list of texts")
    return tuple(str(item) for item in items)


# ---------------------------------------------------------------- against a program


def check_map(
    mapping: WeightMap, program: Program, packed: Mapping[str, Mapping[str, Sequence[str]]] | None = None
) -> None:
    """Raises unless the mapping gives every weight of the program, with its dimensions and sizes.

    Of the weights that are `packed` it gives the parts, whose dimensions `packed` has by their names.
    """
    packed = packed or {}
    sizes = program.sizes()
    for weight in program.weights:
        if weight.name in packed:
            parts = packed[weight.name].items()
            wholes = [(name, tuple(dims), [sizes[dim] for dim in dims]) for name, dims in parts]
        elif weight.name in mapping.entries:
            shape = weight.shape
            wholes = [(weight.name, shape.names, [shape.size(dim) for dim in shape.names])]
        else:
            raise fault(
                "weight-map",
                f"the checkpoint's mapping has no weight {weight.name}",
                weight.span,
                nearest(weight.name, list(mapping.entries)) or f"it has {_listed(list(mapping.entries))}",
            )
        for name, dims, extents_here in wholes:
            found = " ".join(f"{dim}={mapping.sizes[dim]}" for dim in mapping.entries[name].dims)
            wanted = " ".join(f"{dim}={size}" for dim, size in zip(dims, extents_here, strict=True))
            if found != wanted:
                raise fault(
                    "weight-map",
                    f"{name} is {wanted} in the program, and {found} in the checkpoint",
                    weight.span,
                    "--dim may change B and L of an imported program, not the sizes of its weights",
                )
        if weight.type.dtype not in NAMES:
            raise fault(
                "weight-map",
                f"{weight.name} is {weight.type.dtype}, and checkpoints give f32, bf16, f16, int32 or bool",
                weight.span,
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
