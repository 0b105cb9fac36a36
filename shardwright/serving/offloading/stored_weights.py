"""Weights that a program stores in few bits, as `quantize-weights` writes them, made of a checkpoint's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.ir.diagnostics import fault
from shardwright.ir.program import Program, Value
from shardwright.ir.types import DType
from shardwright.passes.transformations.quantize_weights import quantization
from shardwright.passes.transformations.quantized_weights import Quantization, QuantizedWeight


def recipe_of(program: Program, plain: Program) -> Quantization:
    """How the weights of a program are stored, where `plain` is a program with the checkpoint's own.

    Raises where a weight in few bits has no scales behind it, or such as the pass makes of no weight.
    """
    known = {value.name: value for value in plain.weights}
    narrow = {at: value for at, value in enumerate(program.weights) if _narrow(value, known)}
    if not narrow:
        return ()
    entries = {entry.weight: entry for entry in quantization(plain)}
    made: list[QuantizedWeight] = []
    for at, value in narrow.items():
        entry, scale = entries.get(value.name), next(iter(program.weights[at + 1 : at + 2]), None)
        if entry is None:
            raise fault(
                "wrong-program",
                f"{value.name}: {value.type} is stored in few bits, and it is more than multiplied with",
                value.span,
                f"store it as the checkpoint does, {known[value.name].type.dtype}",
            )
        if scale is None or scale.name in known:
            raise fault(
                "wrong-program", f"{value.name}: {value.type} has no scales behind it", value.span,
                "shardwright opt FILE --passes quantize-weights writes them",
            )  # fmt: skip
        made.append(_checked(_stored(entry, value, scale), value, scale))
    return tuple(made)


def _narrow(value: Value, known: Mapping[str, Value]) -> bool:
    own = known.get(value.name)
    return own is not None and own.type.dtype.is_wide_float and not value.type.dtype.is_wide_float


def _stored(entry: QuantizedWeight, value: Value, scale: Value) -> QuantizedWeight:
    """The entry with the format and the groups of a program's weight and its scales."""
    entry = replace(entry, dtype=value.type.dtype, scale=scale.name)
    if entry.dtype is not DType.INT4:
        return entry
    grouped = [dim for dim in entry.dims if dim not in entry.summed][-1:]
    at = entry.dims.index(grouped[0]) if grouped else 0
    groups = scale.shape.dims[at].size if at < len(scale.shape.dims) else 1
    return replace(entry, grouped=entry.dims[at], groups=groups)


def _checked(entry: QuantizedWeight, value: Value, scale: Value) -> QuantizedWeight:
    sizes = dict(zip(entry.dims, (dim.size for dim in value.shape.dims), strict=True))
    if entry.groups is None:
        wanted = [size for dim, size in sizes.items() if dim not in entry.summed]
    else:
        wanted = [entry.groups if dim == entry.grouped else size for dim, size in sizes.items()]
    given = [dim.size for dim in scale.shape.dims]
    fits = entry.groups is None or sizes[entry.grouped or ""] % entry.groups == 0
    if given != wanted or not fits or not scale.type.dtype.is_wide_float:
        raise fault(
            "wrong-program",
            f"{scale.name}: {scale.type} are no scales of {value.name}: {value.type}",
            scale.span,
            f"their extents are {' '.join(map(str, given))}, for {' '.join(map(str, wanted))}",
        )
    return entry
