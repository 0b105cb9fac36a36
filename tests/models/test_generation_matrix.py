"""Greedy tokens equal those of transformers' `generate`, for every architecture, preset, attention and mesh."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from models.checkpoints import ARCHITECTURES, CHECKPOINTS
from models.generation_cells import ATTENTION, MESHES, RECORDED, Cell, choices, matrix, pairs, pairwise
from models.greedy_generation import LENGTHS, MARGIN, STEPS, difference, equal, generate, truth

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
    assert len(set(CI)) == len(CI) <= len(ARCHITECTURES) * 3 + (len(ATTENTION) - 1) * len(PRESETS)
    assert set(CI) <= set(everything)


def test_the_matrix_is_whole() -> None:
    cells = matrix()
    assert len(set(cells)) == len(cells)
    same = {(c.checkpoint, c.layout, c.attention, c.mesh) for c in cells if c.prefill == c.layout}
    assert same >= {(n, p, a, m) for n in ARCHITECTURES for p in PRESETS for a in RECORDED for m in MESHES}
    assert {c.checkpoint for c in cells} == set(CHECKPOINTS)
    mixed = {(c.layout, c.prefill) for c in cells if c.prefill != c.layout}
    assert len(mixed) == 4 * 3


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_what_is_compared_can_tell(checkpoint: Callable[..., Path], name: str) -> None:
    """No token is near a tie, and after 16 tokens each row still depends on its own prompt."""
    wanted = truth(checkpoint(name))
    assert [len(prompt) for prompt in wanted.prompts] == list(LENGTHS)
    assert wanted.tokens.shape == (len(LENGTHS), STEPS)
    assert wanted.gap > MARGIN
    last = wanted.logits[:, -1]
    apart = np.abs(last[:, None] - last[None]).max(-1) / np.abs(last).max()
    assert (apart[~np.eye(len(LENGTHS), dtype=bool)] > 0.1).all()
