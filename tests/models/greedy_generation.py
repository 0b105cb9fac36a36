"""Greedy generation from a checkpoint: by transformers, whose tokens are the truth, and by programs of ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from models.generation_cells import Cell

from shardwright.backends.jax.session import Session
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaborate import elaborate
from shardwright.ir.parser import parse
from shardwright.models.checkpoint import load_weights
from shardwright.models.config import read_config
from shardwright.models.importing import import_model
from shardwright.passes.pipelines import explicit

STEPS = 16
LENGTHS = (6, 9, 1, 4, 11, 7, 2, 5)
"""Of the prompts, one for each chip of the largest mesh."""
CHUNK, CACHE = 6, 32
"""Tokens that prefill reads at once, so that some prompts take two calls and the others sit one out; the cache."""
MARGIN = 1e-4
"""The least that the greedy token is ahead of the next, over the largest logit, at any step. Float32 rounds a
hundredth of it away."""


@dataclass(frozen=True)
class Generated:
    """Tokens int32 [B, STEPS], and the logits f32 [B, STEPS, V] that they are the largest of."""

    tokens: np.ndarray
    logits: np.ndarray

    @property
    def gap(self) -> float:
        """The least that any token is ahead of the next, over the largest magnitude."""
        first, second = np.sort(self.logits)[..., :-3:-1].transpose(2, 0, 1)
        return float((first - second).min() / np.abs(self.logits).max())


@dataclass(frozen=True)
class Truth:
    """Prompts, as lists of token ids of unequal lengths, and what transformers makes of them."""

    prompts: tuple[np.ndarray, ...]
    generated: Generated


@cache
def truth(folder: Path) -> Truth:
    """Random prompts of `LENGTHS`, and the 16 tokens that the `generate` of transformers gives each.

    Each prompt goes by itself, so that no padding is involved, and nothing stops at a token. Prompts that come nearer
    to a tie than `MARGIN` are drawn anew: what rounding decides is no test.
    """
    import torch
    import transformers

    library: Any = transformers
    library.utils.logging.disable_progress_bar()
    model = library.AutoModelForCausalLM.from_pretrained(
        str(folder), dtype=torch.float32, attn_implementation="eager", local_files_only=True
    ).eval()
    model.generation_config.eos_token_id = None
    for seed in range(10):
        rng = np.random.default_rng(seed)
        prompts = tuple(rng.integers(3, 96, n, dtype=np.int32) for n in LENGTHS)
        generated = _together([_generate(model, prompt) for prompt in prompts])
        if generated.gap > MARGIN:
            return Truth(prompts, generated)
    raise AssertionError(f"{folder.name} comes near a tie whatever the prompts")


def _generate(model: Any, prompt: np.ndarray) -> Generated:
    import torch

    ids = torch.tensor(prompt[None].astype(np.int64))
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=STEPS,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    tokens = made.sequences[0, len(prompt) :].numpy().astype(np.int32)
    return Generated(tokens, torch.stack(made.scores)[:, 0].numpy())


def _together(rows: Sequence[Generated]) -> Generated:
    return Generated(np.stack([row.tokens for row in rows]), np.stack([row.logits for row in rows]))


def generate(folder: Path, cell: Cell, prompts: Sequence[np.ndarray]) -> tuple[Generated, tuple[str, ...]]:
    """The same by prefill and decode as the cell says, on virtual devices; and what its layout had to leave whole."""
    batch = len(prompts)
    made = import_model(
        read_config(folder).keys,
        cell.layout,
        cell.mesh,
        batch,
        CHUNK,
        cache=CACHE,
        attention=cell.attention,
        prefill_layout=cell.prefill,
    )
    program = elaborate(parse(Source("imported", made.text)))
    weights = load_weights(folder, made.mapping, {v.name: v.type.dtype for v in program.weights})
    session = Session(explicit(program), weights)
    lengths = np.array([len(prompt) for prompt in prompts])
    logits: list[np.ndarray] = []
    last: np.ndarray = np.zeros(())
    for start in range(0, int(lengths.max()), CHUNK):
        own = np.clip(lengths - start, 0, CHUNK).astype(np.int32)
        ids = np.zeros((batch, CHUNK), np.int32)
        for row, prompt in enumerate(prompts):
            ids[row, : own[row]] = prompt[start : start + CHUNK]
        (found,) = session.call("prefill", {"ids": ids, "length": own})
        last = np.where(own[:, None] > 0, found, last)
    logits.append(last)
    while len(logits) < STEPS:
        (found,) = session.call("decode", {"ids": logits[-1].argmax(-1)[:, None]})
        logits.append(found)
    together = np.stack(logits, 1)
    return Generated(together.argmax(-1).astype(np.int32), together), made.dropped


def difference(ours: Generated, theirs: Generated) -> float:
    """The largest difference of logits over their largest magnitude."""
    return float(np.abs(ours.logits - theirs.logits).max() / np.abs(theirs.logits).max())
