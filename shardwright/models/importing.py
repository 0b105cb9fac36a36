"""`import_model`: a config and the name of a layout to a program and the mapping of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType
from shardwright.models.architectures import describe
from shardwright.models.config import Config
from shardwright.models.description import Model
from shardwright.models.forward import forward_program
from shardwright.models.weight_map import WeightMap, weight_map

DTYPES = (DType.F32, DType.BF16, DType.F16)
_TORCH_DTYPES = {"float32": DType.F32, "bfloat16": DType.BF16, "float16": DType.F16}


@dataclass(frozen=True)
class Imported:
    """A model as a program: its text, the mapping of its weights, and what the layout had to leave whole."""

    model: Model
    text: str
    mapping: WeightMap
    dropped: tuple[str, ...]


def import_model(
    config: Mapping[str, Any], layout: str, mesh: Mesh, batch: int, length: int, dtype: DType | None = None
) -> Imported:
    """The forward pass of the model of a config.json, for `batch` sequences of `length` tokens.

    `func forward(ids: int32 BL) -> f32 BLV` gives the logits at every position. Weights and activations are
    `dtype`, by default the checkpoint's own. Raises a `DiagnosticError` where the config is at fault, the
    architecture or the layout unknown, or the sequence longer than the model's positions.
    """
    read = Config(config)
    model = describe(read)
    longest = read.whole("max_position_embeddings", 10**9)
    if length > longest:
        raise fault(
            "too-long",
            f"the length is {length}, and the model has max_position_embeddings={longest}",
            NOWHERE,
            f"give --length {longest} or less",
        )
    text, fitted = forward_program(model, layout, mesh, batch, length, dtype or checkpoint_dtype(read))
    return Imported(model, text, weight_map(model), fitted.dropped)


def checkpoint_dtype(config: Config) -> DType:
    """The number format that the config names; f32 where it names none, or one that has no counterpart here."""
    name = config.keys.get("dtype") or config.keys.get("torch_dtype")
    return _TORCH_DTYPES.get(str(name).removeprefix("torch."), DType.F32)
