"""Passes in many orders on blocks of imported models: a parallel multiquery one, a serial grouped one, and experts."""

from __future__ import annotations

import random
from itertools import permutations

import numpy as np
import pytest
from models.checkpoints import config_of
from oracles.array_changes import applied
from oracles.rewritten_programs import largest_error, printed
from program_text import program

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.simulator import simulate
from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.types import DType
from shardwright.models.importing import import_model
from shardwright.passes.pipelines import explicit, parse_pipeline, run_passes

MODELS = {"falcon": {}, "llama-grouped": {"num_key_value_heads": 4}, "mixtral": {"num_key_value_heads": 4}}
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
        config, layout, Mesh.of(x=2, y=2), 4, 1, DType.F32, attention="head", cache=16, phases=("decode",),
        experts="routed" if name == "mixtral" else "replicated",
    )  # fmt: skip
    return program(made.unformatted)


def check(name: str, passes: str, largest: float = 0.02) -> Program:
    """Errors are those of rounding weights to int8, the simulated chips exact beside the unsharded program."""
    before = model(name)
    after, change = applied(before, passes)
    assert largest_error(before, after, change, tolerance=1e-11) < largest
    assert program(printed(after)) == after
    return after


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "passes"), [*zip(MODELS, CHOSEN, strict=False), *zip(MODELS, CHOSEN[1:], strict=True)]
)
def test_orders(name: str, passes: str) -> None:
    check(name, passes)


@pytest.mark.slow
@pytest.mark.parametrize("passes", ORDERS)
@pytest.mark.parametrize("name", MODELS)
def test_every_order(name: str, passes: str) -> None:
    check(name, passes)


@pytest.mark.one_in(2)
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


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("name", "passes", "looped"),
    [
        ("falcon", "weight-gather{axes=x},fuse-parallel-block,quantize-weights", "loop-collectives"),
        ("falcon", "fuse-parallel-block,attention-over-batch", "loop-collectives{ways=2,sites=gathers}"),
        ("llama-grouped", "attention-over-batch{axes=y},reduce-into{dim=batch}", "loop-collectives{axes=x}"),
        ("mixtral", "weight-gather{axes=x},fuse-parallel-block,quantize-weights", "loop-collectives"),
    ],
)
def test_collectives_are_looped_last(name: str, passes: str, looped: str) -> None:
    """After all transformations and the movements: the same results, and as many bytes in rolls."""
    compiled = explicit(run_passes(model(name), parse_pipeline(passes)))
    made = run_passes(compiled, parse_pipeline(looped))
    func = compiled.funcs[0]
    assert printed(made) != printed(compiled)
    assert bytes_received(made, made.funcs[0]).bytes == bytes_received(compiled, func).bytes
    given = random_inputs(compiled, func, 0)
    before, after = (
        simulate(of, func.name, given.args, given.weights, given.state).results[0] for of in (compiled, made)
    )
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-12 * float(np.abs(before).max()))


@pytest.mark.parametrize(
    ("passes", "message", "note"),
    [
        (
            "loop-collectives",
            "loop-collectives takes programs in which every movement is a statement: ",
            "run it last: --passes decompose,place,insert-moves,loop-collectives",
        ),
        (
            "place,loop-collectives",
            "loop-collectives takes programs in which every movement is a statement: ",
            "run it last: --passes decompose,place,insert-moves,loop-collectives",
        ),
        (
            "fuse-parallel-block,pad-heads{to=16}",
            "pad-heads: the size of A follows from that of H",
            "pad heads before dimensions are packed: run pad-heads before fuse-parallel-block",
        ),
        (
            "place,insert-moves,weight-gather",
            "weight-gather demands other layouts, and decode has the movement ",
            "run it before insert-moves, or leave the movement to the compiler",
        ),
        (
            "place,insert-moves,attention-over-batch",
            "attention-over-batch demands other layouts, and decode has the movement ",
            "run it before insert-moves, or leave the movement to the compiler",
        ),
    ],
)
def test_orders_that_make_no_sense(passes: str, message: str, note: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        run_passes(model("falcon"), parse_pipeline(passes))
    first = caught.value.diagnostics[0]
    assert first.message.startswith(message)
    assert first.notes[-1].message == note
