"""Models by name: their sizes, from the papers that describe them, as the descriptions that programs are written of."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from shardwright.ir.diagnostics import NOWHERE, fault, nearest
from shardwright.models import modules
from shardwright.models.architectures import describe
from shardwright.models.config import Config
from shardwright.models.description import AttentionSpec, Feedforward, LearnedPositions, Model, Norm
from shardwright.models.pieces import rotary

_FOLDER = Path(__file__).parent / "builtin"
_MODULES = (
    "embed", "positions", "block_norm", "attention_norm", "feedforward_norm", "final_norm", "unembed",
    "wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down",
)  # fmt: skip
_CHECKPOINTS = {"llama": modules.LLAMA}
"""The names that checkpoints have for weights, by the `modules` of a table; elsewhere they have the program's."""


@dataclass(frozen=True)
class BuiltIn:
    """A model of a paper. `parameters` is what its authors call its size, which padded heads do not add to."""

    name: str
    model: Model
    parameters: float
    source: str


def built_in_names() -> tuple[str, ...]:
    """The names, sorted."""
    return tuple(sorted(_tables()))


def built_in(name: str) -> BuiltIn:
    """The model of this name. Raises where there is none."""
    tables = _tables()
    if name not in tables:
        raise fault(
            "unknown-model",
            f"there is no model {name}",
            NOWHERE,
            nearest(name, list(tables)),
            f"the models are {', '.join(built_in_names())}; or the path of a config.json",
        )
    return _built(name)


@cache
def _tables() -> Mapping[str, Mapping[str, Any]]:
    written: dict[str, dict[str, Any]] = {}
    for file in sorted(_FOLDER.glob("*.toml")):
        written |= tomllib.loads(file.read_text(encoding="utf-8"))

    def whole(name: str) -> dict[str, Any]:
        own = written[name]
        return {**whole(own["like"]), **own} if "like" in own else own

    return {name: whole(name) for name in written}


@cache
def _built(name: str) -> BuiltIn:
    rows = _tables()[name]
    if "config" in rows:
        return BuiltIn(name, describe(Config(rows["config"])), float(rows["parameters"]), rows["source"])
    heads, head_dim = rows["heads"], rows["head_dim"]
    bias, layernorm = rows.get("bias", False), rows["norm"] == "layernorm"
    turned = rotary(Config(rows.get("rotary", {})), "neox", head_dim)
    positions = LearnedPositions(rows["longest"]) if rows["positions"] == "learned" else turned
    model = Model(
        name,
        vocab=rows["vocab"],
        hidden=rows["hidden"],
        layers=rows["layers"],
        norm=Norm(rows["norm"], 1e-5, offset=layernorm and bias),
        positions=positions,
        attention=AttentionSpec(heads, rows["kv_heads"], head_dim, head_dim**-0.5, bias, bias),
        feedforward=Feedforward(rows["feedforward"], rows["activation"], rows["gated"], bias),
        parallel=rows["parallel"],
        tied=rows["tied"],
        longest=rows["longest"],
        modules=_CHECKPOINTS.get(rows.get("modules", ""), {module: module for module in _MODULES}),
    )
    return BuiltIn(name, model, float(rows["parameters"]), rows["source"])
