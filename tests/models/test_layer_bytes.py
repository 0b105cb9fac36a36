"""Bytes that a chip receives in a layer equal the formulas: hand-written layers, and models as they are imported.

`tests/oracles/layer_formulas.py` has the formulas, docs/concepts/layouts.md the derivations.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import cycle, product
from pathlib import Path
from typing import Any

import pytest
from combinations import all_with_slow
from models.checkpoints import config_of
from oracles.layer_formulas import Layer
from oracles.layer_programs import PRESETS, attention, feedforward
from oracles.layer_tables import ROWS, table
from oracles.layer_tables import at as palm
from program_text import by_bytes, program

from shardwright.cost.movements.traffic import Traffic, bytes_received
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType
from shardwright.models.importing import import_model

MESHES: list[dict[str, int]] = [
    {"x": 2, "y": 2, "z": 2},
    {"x": 2, "y": 3, "z": 2},
    {"x": 3, "y": 2, "z": 2},
    {"x": 4, "y": 4, "z": 4},
    {"x": 4, "y": 2},
    {"x": 4},
    {"x": 1, "y": 2, "z": 4},
    {"x": 2, "y": 1, "z": 2},
]
KV_HEADS = [1, 4, 12, 192]
OVER = ["head", "batch"]


def received(text: str) -> Traffic:
    """What a chip receives for the only function of a program."""
    compiled = by_bytes(program(text))
    return bytes_received(compiled, compiled.funcs[0])


def layer(preset: str, mesh: dict[str, int], kv_heads: int = 1) -> Layer:
    return Layer(preset, mesh, B=192, L=1, E=18432, F=73728, H=192, K=kv_heads, D=96)


def named(value: object) -> str:
    """A mesh as 2x3x2, anything else as it prints."""
    return "x".join(re.findall(r"\d+", str(value))) if isinstance(value, dict) else str(value)


# ---------------------------------------------------------------- feedforward layers


def _gate_in_turn(preset: str, mesh: dict[str, int], gated: bool) -> bool:
    return gated == bool((list(PRESETS).index(preset) + MESHES.index(mesh)) % 2)


@pytest.mark.parametrize(
    ("preset", "mesh", "gated"), all_with_slow(PRESETS, MESHES, (False, True), chosen=_gate_in_turn), ids=named
)
def test_feedforward_layers(preset: str, mesh: dict[str, int], gated: bool) -> None:
    """Sections 3.2.1 to 3.2.3 and A.2 for two matrices; three with a gate."""
    at = layer(preset, mesh)
    assert received(feedforward(at, gated=gated)).bytes == at.feedforward(3 if gated else 2)


def test_the_papers_own_letters() -> None:
    """2 BL (E/X + F/YZ) of A.2.1, 2EF N/n and 2BLE/N of A.2.2 and 2BLE of 3.2.1, with (K-1)/K and 2 bytes."""
    X, YZ, n = 4, 16, 64
    BLE, BLF, EF = 192 * 18432, 192 * 73728, 18432 * 73728
    expected = {
        "ws1d": 2 * BLE * Fraction(n - 1, n),
        "ws2d": 2 * (Fraction(BLE * (YZ - 1), X * YZ) + Fraction(BLF * (X - 1), YZ * X)),
        **{
            name: 2 * Fraction(EF * (N - 1), n) + 2 * Fraction(BLE * (n // N - 1), n)
            for name, N in (("wg-x", 4), ("wg-xy", 16), ("wg-xyz", 64))
        },
    }
    for name, elements in expected.items():
        assert layer(name, {"x": 4, "y": 4, "z": 4}).feedforward(2) == 2 * elements


# ---------------------------------------------------------------- attention

ATTENTION = [
    (mesh, preset, kv, over)
    for mesh, preset, (kv, over) in (
        (mesh, preset, kind)
        for (mesh, preset), kind in zip(product(MESHES, PRESETS), cycle(product(KV_HEADS, OVER)), strict=False)
    )
]
"""Every mesh with every preset, heads of keys and values and where attention is in turn."""


def check_attention(mesh: dict[str, int], preset: str, kv_heads: int, over: str) -> None:
    at = layer(preset, mesh, kv_heads)
    assert received(attention(at, over, 1024)).bytes == at.attention(over, cached=True)


@pytest.mark.parametrize(("mesh", "preset", "kv_heads", "over"), ATTENTION[::5], ids=named)
def test_attention(mesh: dict[str, int], preset: str, kv_heads: int, over: str) -> None:
    check_attention(mesh, preset, kv_heads, over)


@pytest.mark.slow
@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("kv_heads", KV_HEADS)
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("mesh", MESHES, ids=named)
def test_attention_everywhere(mesh: dict[str, int], preset: str, kv_heads: int, over: str) -> None:
    check_attention(mesh, preset, kv_heads, over)


# ---------------------------------------------------------------- models


@dataclass(frozen=True)
class Imported:
    """A checkpoint's architecture with what the formulas ask of it."""

    name: str
    matrices: int
    sums: int
    vectors: int
    parallel: bool
    biases: bool = False

    def config(self, at: Layer) -> dict[str, Any]:
        keys = {"hidden_size": at.E, "num_attention_heads": at.H, "head_dim": at.D, "vocab_size": 256}
        match self.name:
            case "falcon":
                keys |= {"ffn_hidden_size": at.F, "num_kv_heads": at.K}
            case "opt":
                keys |= {"ffn_dim": at.F, "word_embed_proj_dim": at.E}
            case _:
                keys |= {"num_key_value_heads": at.K, "intermediate_size": at.F}
        return config_of(self.name, **keys)

    def formula(self, at: Layer, over: str, *, cached: bool) -> Fraction:
        block = at.parallel_block if self.parallel else at.serial_block
        biases = self.of_biases(at, over, cached) if self.biases else 0
        return block(over, self.matrices, self.sums, self.vectors, cached=cached) + biases

    def of_biases(self, at: Layer, over: str, cached: bool) -> Fraction:
        return at.feedforward_biases(self.matrices) + at.attention_biases(over, cached=cached)


LLAMA = Imported("llama-grouped", 3, 1, 1, parallel=False)
FALCON = Imported("falcon", 2, 2, 2, parallel=True)
COHERE = Imported("cohere-multiquery", 3, 2, 1, parallel=True)
OPT = Imported("opt", 2, 2, 2, parallel=False, biases=True)

HEADS = {"falcon": (1,), "opt": (32,)}
"""Heads of keys and values of models that have no choice."""

CASES = [
    (model, kv, mesh, preset, over, length)
    for model in (LLAMA, FALCON, COHERE, OPT)
    for kv in HEADS.get(model.name, (1, 4, 32))
    for mesh in ({"x": 2, "y": 2, "z": 2}, {"x": 4, "y": 2}, {"x": 2, "y": 1, "z": 2}, {"x": 4})
    for preset in PRESETS
    for over, length in (("head", 1), ("batch", 1), ("head", 4), ("batch", 4))
]


def per_layer(traffic: Traffic) -> int:
    return sum(moved.bytes_once for moved in traffic.movements if moved.trips > 1)


def imported(model: Imported, at: Layer, over: Any, cache: int | None = 64) -> Traffic:
    """What the program that `import` writes of the model receives: decode of one token, or prefill."""
    phase = "decode" if at.L == 1 else "prefill"
    mesh = Mesh.of(**at.mesh)
    config = model.config(at)
    made = import_model(config, at.preset, mesh, at.B, at.L, DType.BF16, attention=over, cache=cache, phases=(phase,))
    assert made.dropped == ()
    compiled = by_bytes(program(made.text))
    return bytes_received(compiled, compiled.funcs[0])


def check_model(model: Imported, kv: int, mesh: dict[str, int], preset: str, over: str, length: int) -> None:
    at = Layer(preset, mesh, B=8, L=length, E=1024, F=4096, H=32, K=kv, D=32)
    if over == "batch":
        at = replace(at, heads_over=at.on_heads)
    assert per_layer(imported(model, at, over)) == model.formula(at, over, cached=True)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("model", "kv", "mesh", "preset", "over", "length"), CASES[::97], ids=named)
def test_models_as_they_are_imported(
    model: Imported, kv: int, mesh: dict[str, int], preset: str, over: str, length: int
) -> None:
    """The interior of a stationary layer is open, and comes out as the formulas have it."""
    check_model(model, kv, mesh, preset, over, length)


@pytest.mark.parametrize(("model", "preset"), [(LLAMA, "wg-xy"), (LLAMA, "wg-xyz"), (COHERE, "ws1d")], ids=named)
def test_without_a_cache_gathered_attention_stays_on_the_batch(model: Imported, preset: str) -> None:
    at = Layer(preset, {"x": 2, "y": 2, "z": 2}, B=8, L=4, E=1024, F=4096, H=32, K=4, D=32)
    assert per_layer(imported(model, at, "head", None)) == model.formula(at, "head", cached=False)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "kv", "mesh", "preset", "over", "length"), CASES, ids=named)
def test_models_everywhere(model: Imported, kv: int, mesh: dict[str, int], preset: str, over: str, length: int) -> None:
    check_model(model, kv, mesh, preset, over, length)


# ---------------------------------------------------------------- the table in docs/concepts/layouts.md


def test_the_table_in_the_docs() -> None:
    assert table() in (Path(__file__).parents[2] / "docs" / "concepts" / "layouts.md").read_text(encoding="utf-8")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("preset", PRESETS)
def test_the_rows_are_counted(preset: str) -> None:
    """Single layers in all ways; the blocks of the last two rows are those of Llama and Cohere."""
    assert received(feedforward(palm(preset), gated=False)).bytes == ROWS["two matrices"](preset)
    assert received(feedforward(palm(preset), gated=True)).bytes == ROWS["SwiGLU"](preset)
    for kv_heads, kind in ((64, "multihead"), (4, "grouped"), (1, "multiquery")):
        for over in OVER:
            where = {"head": "over heads", "batch": "over batch"}[over]
            (row,) = (name for name in ROWS if name.startswith(kind) and name.endswith(where))
            assert received(attention(palm(preset, kv_heads), over, 2048)).bytes == ROWS[row](preset)


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(("model", "kind"), [(LLAMA, "serial"), (COHERE, "parallel")], ids=["serial", "parallel"])
def test_the_blocks_are_counted(preset: str, model: Imported, kind: str) -> None:
    (row,) = (name for name in ROWS if name.startswith(kind))
    assert per_layer(imported(model, palm(preset), "batch")) == ROWS[row](preset)


@pytest.mark.parametrize(("tokens", "preset", "expected"), [(512, "megatron", 30_867_456), (64, "megatron", 4_644_864)])
def test_where_activations_outweigh_weights_the_compiler_receives_less(tokens: int, preset: str, expected: int) -> None:
    at = replace(palm(preset), B=tokens)
    assert received(attention(at, "head", 2048)).bytes == expected <= at.attention("head", cached=True)
