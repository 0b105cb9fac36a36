"""The mapping from a checkpoint's tensors to a program's weights, and the JSON file that holds it beside a program."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, did_you_mean, fault, located
from shardwright.ir.names import is_valid_name
from shardwright.ir.program import Program
from shardwright.models.config import shown
from shardwright.models.description import Model
from shardwright.models.weights import model_weights

FORMAT = "shardwright weights 1"
SUFFIX = ".weights.json"
LAYERS = "N"
"""The dimension along which the layers are stacked."""

_DIM = re.compile(r"[A-Z][0-9]*|[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Entry:
    """One weight: its dimensions, and how each tensor that it is made of is stored.

    A tensor's array has a dimension for each group of `stored`, the product of the group's sizes (1 for none).
    Reshaped to all of them and transposed to the order of `dims`, it is the weight, or, where `dims` has N, the
    weight's slice for the layer whose number stands for `{layer}` in `tensor`.
    """

    dims: tuple[str, ...]
    stored: tuple[tuple[str, ...], ...]
    tensor: str

    def tensors(self, sizes: Mapping[str, int]) -> list[str]:
        """The names of the tensors, one for each layer or one alone."""
        if LAYERS not in self.dims:
            return [self.tensor]
        return [self.tensor.replace("{layer}", str(layer)) for layer in range(sizes[LAYERS])]

    def stored_shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(math.prod(sizes[dim] for dim in group) for group in self.stored)


@dataclass(frozen=True)
class WeightMap:
    """The entries by the weights' names, the sizes of their dimensions, and tensors left out (`*` patterns)."""

    architecture: str
    sizes: Mapping[str, int]
    entries: Mapping[str, Entry]
    ignored: tuple[str, ...] = ()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.sizes[dim] for dim in self.entries[name].dims)


def weight_map(model: Model) -> WeightMap:
    """The mapping of a model's checkpoint, the same for every layout."""
    weights = model_weights(model)
    entries = {weight.name: Entry(weight.dims, weight.stored, weight.tensor) for weight in weights}
    sizes = {name: size for name, size in model.sizes(1, 1).items() if isinstance(size, int)}
    used = {dim for weight in weights for dim in weight.dims}
    tied = (f"{model.modules['unembed']}.weight",) if model.tied else ()
    return WeightMap(
        model.architecture,
        {name: size for name, size in sizes.items() if name in used},
        entries,
        (*model.ignored, *tied),
    )


# ---------------------------------------------------------------- the file


def map_path(program: str | Path) -> Path:
    """Where the mapping of a program lies: `OUT.weights.json` beside `OUT.shard`."""
    path = Path(program)
    return path.with_name(path.name.removesuffix(".shard") + SUFFIX)


def to_json(mapping: WeightMap) -> str:
    """The text of the file."""
    value = {
        "format": FORMAT,
        "architecture": mapping.architecture,
        "sizes": dict(mapping.sizes),
        "weights": {
            name: {"dims": list(entry.dims), "tensor": entry.tensor, "stored": [list(group) for group in entry.stored]}
            for name, entry in mapping.entries.items()
        },
        "ignored": list(mapping.ignored),
    }
    text = json.dumps(value, indent=2)
    # Lists on one line each: a person reads this file.
    nested = r"\[\s*(?:\[[^\[\]]*\],?\s*)+\]|\[[^\[\]{}]*\]"
    return re.sub(nested, lambda found: json.dumps(json.loads(found[0])), text) + "\n"


def read_map(path: str | Path) -> WeightMap:
    """The mapping in a file. Raises a `DiagnosticError` that says what in it is wrong."""
    with located(Source(str(path), "")):
        try:
            value: object = json.loads(Path(path).read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise _wrong(f"line {error.lineno}: not JSON: {error.msg.lower()}") from None
        except (ValueError, RecursionError):  # not UTF-8, a number of thousands of digits, or nested too deeply
            raise _wrong("not a JSON text") from None
        return _parsed(value)


def _wrong(what: str) -> DiagnosticError:
    return fault("bad-weight-map", what, NOWHERE, "write it anew with shardwright import")


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


def _entry(name: str, value: object, sizes: Mapping[str, int]) -> Entry:
    if not is_valid_name(name):
        raise _wrong(f"weights: {shown(name)} cannot be the name of a weight")
    keys = _object(value, name)
    dims = _texts(keys.get("dims"), f"{name}: dims")
    groups: object = keys.get("stored")
    if not isinstance(groups, list):
        raise _wrong(f"{name}: stored is {shown(cast('object', groups))}, not a list of lists")
    stored = tuple(_texts(group, f"{name}: stored") for group in cast("list[object]", groups))
    for dim in dims:
        if dim not in sizes:
            raise _wrong(f"{name}: dimension {shown(dim)[1:-1]} has no size")
    parts = [dim for group in stored for dim in group]
    if len(set(dims)) != len(dims) or sorted(parts) != sorted(dim for dim in dims if dim != LAYERS):
        raise _wrong(f"{name}: stored has {' '.join(parts)}, and dims, but for {LAYERS}, {' '.join(dims)}")
    tensor = keys.get("tensor")
    if not isinstance(tensor, str) or not tensor:
        raise _wrong(f"{name}: tensor is {shown(tensor)}, not a name")
    if ("{layer}" in tensor) != (LAYERS in dims):
        raise _wrong(f"{name}: {{layer}} stands in the tensor's name where dims have {LAYERS}, and only there")
    return Entry(dims, stored, tensor)


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


def check_map(mapping: WeightMap, program: Program) -> None:
    """Raises unless the mapping gives every weight of the program, with its dimensions and sizes."""
    for weight in program.weights:
        entry = mapping.entries.get(weight.name)
        if entry is None:
            near = did_you_mean(weight.name, list(mapping.entries))
            raise fault(
                "weight-map",
                f"the checkpoint's mapping has no weight {weight.name}",
                weight.span,
                f"did you mean {near}?" if near else f"it has {_listed(list(mapping.entries))}",
            )
        found = " ".join(f"{dim}={mapping.sizes[dim]}" for dim in entry.dims)
        wanted = " ".join(f"{dim.name}={dim.size}" for dim in weight.type.dims)
        if found != wanted:
            raise fault(
                "weight-map",
                f"{weight.name} is {wanted} in the program, and {found} in the checkpoint",
                weight.span,
                "--dim may change B and L of an imported program, not the sizes of its weights",
            )
        if not weight.type.dtype.is_float:
            raise fault(
                "weight-map",
                f"{weight.name} is {weight.type.dtype}, and checkpoints give f32, bf16 or f16",
                weight.span,
            )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
