"""Windows and rotary embeddings that layers choose, and factors that the length of a program chooses."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from loaded_weights import load_weights
from models.checkpoints import config_of

from shardwright.backends.simulation.reference import evaluate
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.text.parser import parse
from shardwright.models.config import read_config
from shardwright.models.importing import import_model
from shardwright.models.transformers_logits import transformers_logits


def text_of(name: str, cache: int | None = 16, **changes: object) -> str:
    return import_model(config_of(name, **changes), "ws2d", Mesh.of(x=2), 2, 8, cache=cache).text


PERIODS = ["sliding_attention", "full_attention"]


def kinds(flags: str) -> list[str]:
    """`w` is a layer with a window."""
    return [PERIODS[flag != "w"] for flag in flags]


@pytest.mark.parametrize(
    ("flags", "condition"),
    [
        ("w.w.w", "less((layer - layer / 2 * 2), 1)"),
        (".w.w", "less(0, (layer - layer / 2 * 2))"),
        ("wwwwwwwww.", "less(layer, 9)"),
        ("..ww", "less(1, layer)"),
        ("wwwww.wwwww.ww", "less((layer - layer / 6 * 6), 5)"),
        (
            ".ww.....w.",
            "logical_or(logical_and(less(0, layer), less(layer, 3)), logical_and(less(7, layer), less(layer, 9)))",
        ),
    ],
)
def test_which_layers_have_a_window(flags: str, condition: str) -> None:
    config = config_of("gemma2", num_hidden_layers=len(flags), layer_types=kinds(flags))
    text = import_model(config, "ws2d", Mesh.of(x=2), 2, 8, cache=16).unformatted
    (written,) = set(re.findall(r"  windowed = (.*)\n", text))
    assert written == condition
    division = condition.replace(" / ", " // ")
    functions = {"less": int.__lt__, "logical_or": bool.__or__, "logical_and": bool.__and__}
    assert "".join("w" if eval(division, functions, {"layer": i}) else "." for i in range(len(flags))) == flags
    assert "attend[T, D, causal=L, scale=0.25, softcap=50.0](q, k, v, pos=pos, window=windows)" in text


def test_a_window_of_all_layers_is_a_number_of_the_text() -> None:
    text = text_of("gemma2", layer_types=kinds("www"))
    assert "windows" not in text
    assert "attend[T, D, causal=L, window=5, scale=0.25, softcap=50.0](q, k, v, pos=pos)" in text


def test_a_program_of_many_layers_is_as_long() -> None:
    lines = [
        text_of("gemma3", num_hidden_layers=n, layer_types=kinds("wwwww." * 12)[:n]).splitlines() for n in (12, 62)
    ]
    assert len(lines[0]) == len(lines[1])
    differing = [pair for pair in zip(*lines, strict=True) if pair[0] != pair[1]]
    assert all("layers" in few or few.startswith("dim ") for few, _ in differing)


@pytest.mark.parametrize("length", [32, 40])
def test_factors_by_the_length(checkpoint: Callable[..., Path], length: int) -> None:
    """Up to the 32 positions of the original context the short ones, beyond it the long ones, as in transformers."""
    folder = checkpoint("phi3-grouped-longrope")
    made = import_model(read_config(folder).keys, "ws2d", Mesh.of(x=2), 2, length)
    assert ("full[R, f32](2.0)" in made.text) == (length > 32)
    program = elaborate(parse(Source("imported", made.unformatted)))
    weights = load_weights(folder, made.mapping, {v.name: v.type.dtype for v in program.weights})
    ids = np.random.default_rng(0).integers(0, 96, (2, length), dtype=np.int32)
    (ours,), _ = evaluate(program, "forward", {"ids": ids}, weights)
    theirs = transformers_logits(folder, ids)
    assert np.abs(ours - theirs).max() / np.abs(theirs).max() < 1e-5


def test_the_size_of_the_cache_chooses_factors() -> None:
    """Whatever is read into it: a cache of one set of factors cannot be read by the other."""
    assert "full[R, f32](1.0)" in text_of("phi3-grouped-longrope", 32)
    assert "full[R, f32](2.0)" in text_of("phi3-grouped-longrope", 33)


def test_older_configs_of_gemma_3() -> None:
    """What transformers 4 wrote gives the same program."""
    new = config_of("gemma3", rope_parameters={
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    })  # fmt: skip
    old = {key: value for key, value in new.items() if key not in ("rope_parameters", "layer_types")}
    old |= {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    old |= {"sliding_window_pattern": 3}
    texts = [import_model(config, "ws1d", Mesh.of(x=2), 2, 8).text for config in (new, old)]
    assert "unbounded = plain / 8.0" in texts[0]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_longrope_of_phi_3_has_had_other_names(name: str) -> None:
    new = config_of("phi3-grouped-longrope")
    old = {**new, "rope_parameters": {**new["rope_parameters"], "rope_type": name}}
    texts = [import_model(config, "ws1d", Mesh.of(x=2), 2, 8).text for config in (new, old)]
    assert texts[0] == texts[1]
