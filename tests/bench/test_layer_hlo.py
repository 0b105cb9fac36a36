"""What XLA's compiled modules move for a layer equals the formulas, byte for byte."""

from __future__ import annotations

import pytest
from models.test_layer_bytes import FALCON, LLAMA, Imported, per_layer
from oracles.example_programs import in_format
from oracles.layer_formulas import Layer
from oracles.layer_programs import PRESETS, attention, feedforward
from program_text import by_bytes, program
from versus_xla import compile_ours

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.types import DType
from shardwright.models.importing import import_model

MESH = {"x": 2, "y": 2, "z": 2}


def layer(preset: str, kv_heads: int = 1) -> Layer:
    return Layer(preset, MESH, B=8, L=1, E=256, F=1024, H=8, K=kv_heads, D=32)


def moved(source: Program) -> int:
    """Bytes that a device receives, counted in the HLO; f16, whose collectives the CPU compiler leaves as they are."""
    made = in_format(source, "f16")
    func = made.funcs[0]
    return compile_ours(by_bytes(made), func.name, random_inputs(made, func, seed=0)).counts.bytes


@pytest.mark.parametrize("preset", PRESETS)
def test_feedforward_layers(preset: str) -> None:
    at = layer(preset)
    assert moved(program(feedforward(at, gated=True))) == at.feedforward(3)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("preset", "kv_heads", "over"),
    [("ws1d", 2, "head"), ("ws2d", 1, "batch"), ("ws2d", 1, "head"), ("wg-xy", 8, "batch")],
)
def test_attention(preset: str, kv_heads: int, over: str) -> None:
    at = layer(preset, kv_heads)
    assert moved(program(attention(at, over, 64))) == at.attention(over, cached=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "preset", "kv_heads"),
    [(FALCON, "ws2d", 1), (FALCON, "wg-xy", 1), (LLAMA, "ws2d", 8)],
    ids=str,
)
def test_imported_models(model: Imported, preset: str, kv_heads: int) -> None:
    """Layers that receive what the formula says, in a module that moves what was planned and no more."""
    at = layer(preset, kv_heads)
    config = model.config(at) | {"vocab_size": 64}
    made = import_model(
        config, preset, Mesh.of(**MESH), at.B, at.L, DType.F16, attention="head", cache=64, phases=("decode",)
    )
    compiled = by_bytes(program(made.text))
    planned = bytes_received(compiled, compiled.func("decode"))
    assert per_layer(planned) == model.formula(at, "head", cached=True)
    assert moved(program(made.text)) == planned.bytes
