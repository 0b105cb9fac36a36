"""Prefill and decode with a KV cache give the logits of transformers, step by step."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from combinations import slow_unless
from loaded_weights import load_weights
from models.checkpoints import ARCHITECTURES

from shardwright.backends.jax.session import Session
from shardwright.backends.simulation.reference import evaluate
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse
from shardwright.ir.types import StoredFormat
from shardwright.models.config import read_config
from shardwright.models.importing import import_model
from shardwright.models.layouts import AttentionOver
from shardwright.models.transformers_logits import transformers_logits
from shardwright.models.value_types import Pages
from shardwright.passes.pipelines import explicit

CHUNK, CACHE, STEPS = 6, 20, 3
LENGTHS = (6, 9, 1, 4)
"""Of the prompts: one takes two chunks, and the last chunk of the others is empty."""

Run = Callable[[str, dict[str, np.ndarray], dict[str, np.ndarray]], tuple[np.ndarray, dict[str, np.ndarray]]]


def program_of(folder: Path, layout: str, mesh: Mesh, **options: Any) -> tuple[Program, dict[str, np.ndarray]]:
    made = import_model(read_config(folder).keys, layout, mesh, len(LENGTHS), CHUNK, cache=CACHE, **options)
    program = elaborate(parse(Source("imported", made.text)))
    return program, load_weights(folder, made.mapping, {v.name: v.type.dtype for v in program.weights})


def tokens() -> np.ndarray:
    """For each row its prompt and the tokens that follow, one row's more than the others'."""
    return np.random.default_rng(0).integers(3, 96, (len(LENGTHS), max(LENGTHS) + STEPS), dtype=np.int32)


def generate(program: Program, run: Run, given: np.ndarray) -> np.ndarray:
    """Logits [1 + STEPS, B, V] after the prompts, which are read in chunks, and after each token that follows."""
    state = {v.name: np.zeros([d.size for d in v.type.dims], np.float32) for v in program.state}
    state["pos"] = state["pos"].astype(np.int32)
    lengths = np.array(LENGTHS)
    last = np.zeros((len(LENGTHS), 96), np.float32)
    for start in range(0, lengths.max(), CHUNK):
        own = np.clip(lengths - start, 0, CHUNK).astype(np.int32)
        chunk = np.zeros((len(LENGTHS), CHUNK), np.int32)
        for row, n in enumerate(own):
            chunk[row, :n] = given[row, start : start + n]
        logits, state = run("prefill", {"ids": chunk, "length": own}, state)
        last[own > 0] = logits[own > 0]
    found = [last]
    for step in range(STEPS):
        following = given[np.arange(len(LENGTHS)), lengths + step]
        logits, state = run("decode", {"ids": following[:, None]}, state)
        found.append(logits)
    assert (state["pos"] == lengths + STEPS).all()
    return np.stack(found)


@cache
def wanted(folder: Path) -> np.ndarray:
    whole = transformers_logits(folder, tokens())
    return np.stack([whole[np.arange(len(LENGTHS)), np.array(LENGTHS) - 1 + step] for step in range(1 + STEPS)])


def agree(found: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-5
    assert (found.argmax(-1) == expected.argmax(-1)).all()


@pytest.mark.parametrize(
    "name", [*ARCHITECTURES, "opt-norms-after", "falcon-grouped", "bigcode-multihead", "qwen2-window", "llama3"]
)
def test_unsharded(checkpoint: Callable[..., Path], name: str) -> None:
    folder = checkpoint(name)
    program, weights = program_of(folder, "ws2d", Mesh.of(x=2, y=2))

    def run(func: str, args: dict[str, np.ndarray], state: dict[str, np.ndarray]) -> tuple[np.ndarray, Any]:
        (logits,), after = evaluate(program, func, args, weights, state)
        return logits, after

    agree(generate(program, run, tokens()), wanted(folder))


@pytest.mark.parametrize(("kept_in", "largest", "most"), [("int8", 127, 0.02), ("int4", 7, 0.35), ("f8e4m3", 448, 0.1)])
def test_a_cache_in_few_bits_is_within_half_a_step(
    kept_in: StoredFormat, largest: int, most: float, checkpoint: Callable[..., Path]
) -> None:
    """Keys and values of the first layer, which no cache is before, are those of f32, rounded; logits are near. A step
    of floats is a 16th of the number or less, but for the smallest."""
    folder, given = checkpoint("llama-grouped"), tokens()
    kept: list[dict[str, np.ndarray]] = []
    found: list[np.ndarray] = []
    for cache_format in (None, kept_in):
        program, weights = program_of(folder, "ws1d", Mesh.of(x=2), attention="positions", cache_format=cache_format)

        def run(
            func: str,
            args: dict[str, np.ndarray],
            state: dict[str, np.ndarray],
            program: Program = program,
            weights: dict[str, np.ndarray] = weights,
        ) -> tuple[np.ndarray, Any]:
            (logits,), after = evaluate(program, func, args, weights, state, "declared")
            kept.append(after)
            return logits, after

        found.append(generate(program, run, given))
    exact, rounded = kept[len(kept) // 2 - 1], kept[-1]
    for name in "kv":
        scale = rounded[f"{name}_scale"][0][..., None]
        apart = np.abs(rounded[name][0] * scale - exact[name][0])
        half = (
            0.5 if kept_in != "f8e4m3" else np.maximum(np.abs(exact[name][0]) / np.maximum(scale, 1e-30) / 16, 2.0**-10)
        )
        assert (apart <= scale * (half + 1e-3)).all()
        assert np.abs(rounded[name][0].astype(float)).max() == largest
    apart = np.abs(found[0] - found[1]).max() / np.abs(found[0]).max()
    assert 1e-5 < apart < most


PAGES = Pages(4, 11)
"""Pages of 4 positions: rows need 3, 3, 1 and 2 of the 5 that each may have, and two are nobody's."""

TABLE = np.array([[7, 2, 9, -1, -1], [0, 5, 10, -1, -1], [3, -1, -1, -1, -1], [8, 1, -1, -1, -1]], np.int32)


def by_pages(run: Run) -> Run:
    """The run with the table of pages."""
    return lambda func, args, state: run(func, {**args, "pages": TABLE}, state)


@pytest.mark.parametrize("name", [*ARCHITECTURES, "qwen2-window"])
def test_in_pages(checkpoint: Callable[..., Path], name: str) -> None:
    """The slots of pages that no row has are filled with NaN, which nothing may see."""
    folder = checkpoint(name)
    program, weights = program_of(folder, "ws2d", Mesh.of(x=2, y=2), pages=PAGES)

    def run(func: str, args: dict[str, np.ndarray], state: dict[str, np.ndarray]) -> tuple[np.ndarray, Any]:
        for value in state.values():
            if value.dtype.kind == "f":
                value[:, np.setdiff1d(np.arange(11), TABLE)] = np.nan
        (logits,), after = evaluate(program, func, args, weights, state)
        return logits, after

    agree(generate(program, by_pages(run), tokens()), wanted(folder))


# Without pages, `test_generation_matrix` has more of them.
COMPILED: list[tuple[str, str, str | None, AttentionOver, Mesh, Pages | None]] = [
    ("gpt-neox", "megatron", None, "head", Mesh.of(x=2), None),
    ("opt", "wg-x", "ws2d", "batch", Mesh.of(x=2), None),
    ("llama-grouped", "ws2d", "wg-xyz", "head", Mesh.of(x=2, y=2), PAGES),
    ("qwen2-window", "ws2d", "wg-x", "positions", Mesh.of(x=2, y=2), PAGES),
    ("gemma3", "megatron", None, "head", Mesh.of(x=2), PAGES),
    ("deepseek-v2", "ws1d", None, "positions", Mesh.of(x=2), PAGES),
]
ALSO_COMPILED: list[tuple[str, str, str | None, AttentionOver, Mesh, Pages | None]] = [
    ("falcon", "ws2d", "wg-xy", "batch", Mesh.of(x=2, y=2, z=2), None),
    ("llama-grouped", "ws2d", "wg-xyz", "head", Mesh.of(x=2, y=2), None),
    ("mistral", "ws1d", None, "batch", Mesh.of(x=2, y=2), None),
    ("qwen2-window", "ws2d", "wg-x", "positions", Mesh.of(x=2, y=2), None),
]
"""Cases among the slow ones, since `COMPILED` or the matrix has some near them."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "layout", "prefill", "attention", "mesh", "pages"),
    slow_unless(lambda *case: case in COMPILED, [*COMPILED, *ALSO_COMPILED]),
)
def test_compiled(
    checkpoint: Callable[..., Path],
    name: str,
    layout: str,
    prefill: str | None,
    attention: AttentionOver,
    mesh: Mesh,
    pages: Pages | None,
) -> None:
    """Under JAX on virtual devices, prefill and decode in layouts of their own over weights stored once."""
    folder = checkpoint(name)
    program, weights = program_of(folder, layout, mesh, prefill_layout=prefill, attention=attention, pages=pages)
    session = Session(explicit(program), weights)

    def run(func: str, args: dict[str, np.ndarray], _: dict[str, np.ndarray]) -> tuple[np.ndarray, Any]:
        (logits,) = session.call(func, args)
        return logits, session.state

    agree(generate(program, by_pages(run) if pages else run, tokens()), wanted(folder))
