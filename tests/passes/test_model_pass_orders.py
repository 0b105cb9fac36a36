"""Passes in many orders on blocks of imported models: a parallel multiquery one and a serial grouped one."""

from __future__ import annotations

import random
from itertools import permutations

import pytest
from models.checkpoints import config_of
from oracles.array_changes import applied
from oracles.rewritten_programs import largest_error, printed
from program_text import program

from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.types import DType
from shardwright.models.importing import import_model
from shardwright.passes.pipelines import parse_pipeline, run_passes

MODELS = {"falcon": {}, "llama-grouped": {"num_key_value_heads": 4}}
CHANGES = (
    "fuse-parallel-block",
    "quantize-weights",
    "weight-gather{axes=x}",
    "attention-over-batch{axes=y}",
    "reduce-into{dim=batch}",
)
ORDERS = [",".join(order) for order in permutations(CHANGES)]
CHOSEN = random.Random(3).sample(ORDERS, 4)


def model(name: str, layout: str = "ws2d") -> Program:
    """A model of one layer, decoding a token of each of four sequences."""
    config = config_of(name, num_hidden_layers=1, vocab_size=32, **MODELS[name])
    made = import_model(
        config, layout, Mesh.of(x=2, y=2), 4, 1, DType.F32, attention="head", cache=16, phases=("decode",)
    )
    return program(made.text)


def check(name: str, passes: str, largest: float = 0.02) -> Program:
    """Errors are those of rounding weights to int8, the simulated chips exact beside the unsharded program."""
    before = model(name)
    after, change = applied(before, passes)
    assert largest_error(before, after, change, tolerance=1e-11) < largest
    assert program(printed(after)) == after
    return after


@pytest.mark.parametrize("passes", CHOSEN)
@pytest.mark.parametrize("name", MODELS)
def test_orders(name: str, passes: str) -> None:
    check(name, passes)


@pytest.mark.slow
@pytest.mark.parametrize("passes", ORDERS)
@pytest.mark.parametrize("name", MODELS)
def test_every_order(name: str, passes: str) -> None:
    check(name, passes)


@pytest.mark.parametrize("name", MODELS)
def test_heads_are_padded_before_they_are_packed(name: str) -> None:
    check(name, "pad-heads{to=16},fuse-parallel-block,attention-over-batch", 1e-11)


@pytest.mark.parametrize("axes", ["x", "xy"])
@pytest.mark.parametrize("name", MODELS)
def test_gathered_before_or_after_packing(name: str, axes: str) -> None:
    """The same weights are packed, and gathered alike."""
    gather, fuse = f"weight-gather{{axes={axes}}}", "fuse-parallel-block"
    first, second = (run_passes(model(name), parse_pipeline(f"{a},{b}")) for a, b in ((gather, fuse), (fuse, gather)))
    assert first.weights == second.weights
    assert len(first.weights) < len(model(name).weights)
    aliases = [
        sorted(line.strip() for line in printed(made).splitlines() if "_gathered:" in line) for made in (first, second)
    ]
    assert aliases[0] == aliases[1]
    assert len(aliases[0]) > 1


def test_a_layout_that_gathers_is_packed_as_it_is() -> None:
    before = model("falcon", "wg-xy")
    after, change = applied(before, "fuse-parallel-block")
    names = [value.name for value in after.weights]
    assert any(name.startswith("wq_") for name in names)
    assert largest_error(before, after, change, tolerance=1e-11) < 1e-11
