"""Greedy tokens equal those of transformers' `generate`, for every architecture, preset, attention and mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from models.checkpoints import ARCHITECTURES, CHECKPOINTS, config_of
from models.generation_cells import (
    ATTENTION,
    FEATURES,
    MESHES,
    RECORDED,
    VARIANTS,
    Cell,
    choices,
    matrix,
    pairs,
    pairwise,
)
from models.greedy_generation import LENGTHS, MARGIN, STEPS, difference, equal, generate, truth

from shardwright.models.architectures import describe
from shardwright.models.config import Config
from shardwright.models.description import LearnedPositions, Model
from shardwright.models.layouts import PRESETS

CI = pairwise()
SLOW = [pytest.param(cell, marks=pytest.mark.slow) for cell in matrix() if cell not in CI]


@pytest.mark.parametrize("cell", [*CI, *SLOW], ids=str)
def test_greedy_tokens(checkpoint: Callable[..., Path], cell: Cell) -> None:
    import jax

    folder = checkpoint(cell.checkpoint)
    wanted = truth(folder)
    found = generate(folder, cell, wanted.prompts)
    jax.clear_caches()  # of hundreds of programs
    assert equal(found, wanted)
    if cell.scored:
        assert difference(found, wanted) < 1e-5


def test_the_subset_covers_every_pair() -> None:
    everything = [cell for checkpoint in ARCHITECTURES for cell in choices(checkpoint)]
    assert {pair for cell in CI for pair in pairs(cell)} == {pair for cell in everything for pair in pairs(cell)}
    assert len(set(CI)) == len(CI) <= len(ARCHITECTURES) + len(ATTENTION) * len(PRESETS)
    assert {cell.checkpoint for cell in CI} == set(ARCHITECTURES)
    assert set(CI) <= set(everything)


def features(model: Model) -> Iterator[str]:
    """The `FEATURES` of a model."""
    attention, feedforward = model.attention, model.feedforward
    latent = attention.latent is not None
    found = {
        "grouped heads": 1 < attention.kv_heads < attention.heads,
        "one head of keys": attention.kv_heads == 1 and not latent,
        "latent": latent,
        f"fused {attention.fused}": attention.fused,
        f"window{' in some layers' if attention.windowed else ''}": attention.window,
        "norms of heads": attention.head_norm and attention.head_norm_over == "shared",
        "norm of all heads": attention.head_norm and attention.head_norm_over == "together",
        "soft cap": attention.softcap,
        "learned positions": isinstance(model.positions, LearnedPositions),
        "biases": attention.bias,
        "parallel": model.parallel,
        f"norms {model.norms}": model.norms != "before",
        "gated": feedforward.gated,
        "experts": feedforward.experts,
        "tied": model.tied,
        "transposed": model.transposed,
    }
    yield from (name for name, there in found.items() if there)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_features_are_those_of_the_config(name: str) -> None:
    assert set(FEATURES[name]) == set(features(describe(Config(config_of(name)))))


def test_the_matrix_is_whole() -> None:
    cells = matrix()
    assert len(set(cells)) == len(cells)
    same = {(c.checkpoint, c.layout, c.attention, c.mesh) for c in cells if c.prefill == c.layout}
    assert same >= {(n, p, a, m) for n in ARCHITECTURES for p in PRESETS for a in RECORDED for m in MESHES}
    assert {c.checkpoint for c in cells} == set(CHECKPOINTS)
    mixed = {(c.layout, c.prefill) for c in cells if c.prefill != c.layout}
    assert len(mixed) == 4 * 3


@pytest.mark.parametrize("name", [*ARCHITECTURES, *(pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS)])
def test_what_is_compared_can_tell(checkpoint: Callable[..., Path], name: str) -> None:
    """No token is near a tie, and after 16 tokens each row still depends on its own prompt."""
    wanted = truth(checkpoint(name))
    assert [len(prompt) for prompt in wanted.prompts] == list(LENGTHS)
    assert wanted.tokens.shape == (len(LENGTHS), STEPS)
    assert wanted.gap > MARGIN
    last = wanted.logits[:, -1]
    apart = np.abs(last[:, None] - last[None]).max(-1) / np.abs(last).max()
    assert (apart[~np.eye(len(LENGTHS), dtype=bool)] > 0.1).all()
