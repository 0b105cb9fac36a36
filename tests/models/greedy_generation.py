"""Greedy generation from a checkpoint: by transformers, whose tokens are the truth, and by ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from models.generation_cells import Cell

import shardwright
from shardwright.models.config import read_config
from shardwright.models.importing import import_model

STEPS = 16
FEW = 6
"""Steps where tokens are the same wherever values lie: after the first of `decode` each goes as the one before."""
LENGTHS = (6, 9, 1, 4, 11, 7, 2, 5)
"""Of the prompts, one for each chip of the largest mesh."""
CHUNK, CACHE = 5, 32
"""Tokens that prefill reads at once, so that prompts take one call to three, and sit the others out; the cache."""
MARGIN = 1e-4
"""The least that the greedy token is ahead of the next, over the largest logit, at any step. Float32 rounds a
hundredth of it away."""


@dataclass(frozen=True)
class Truth:
    """Prompts of unequal lengths and what transformers makes of them.

    `tokens` [B, steps] are the largest of `logits` [B, steps, V]; `logprobs` has for each row the log-probabilities of
    its tokens but the first, those of the prompt and the new ones.
    """

    prompts: tuple[np.ndarray, ...]
    tokens: np.ndarray
    logits: np.ndarray
    logprobs: tuple[np.ndarray, ...]

    @property
    def gap(self) -> float:
        """The least that any token is ahead of the next, over the largest magnitude."""
        first, second = np.sort(self.logits)[..., :-3:-1].transpose(2, 0, 1)
        return float((first - second).min() / np.abs(self.logits).max())


@cache
def truth(folder: Path, steps: int = STEPS) -> Truth:
    """Random prompts of `LENGTHS`, and the tokens that the `generate` of transformers gives each.

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
        tokens, logits, logprobs = zip(*(_continued(model, prompt, steps) for prompt in prompts), strict=True)
        found = Truth(prompts, np.stack(tokens), np.stack(logits), logprobs)
        if found.gap > MARGIN:
            return found
    raise AssertionError(f"{folder.name} comes near a tie whatever the prompts")


def _continued(model: Any, prompt: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """New tokens, the logits that each is the largest of, and log-probabilities of all but the first."""
    import torch

    ids = torch.tensor(prompt[None].astype(np.int64))
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=steps,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    )
    text = made.sequences
    with torch.no_grad():
        probable = model(text, use_cache=False).logits[0, :-1].log_softmax(-1)
    logprobs = probable.gather(-1, text[0, 1:, None])[:, 0].numpy()
    tokens = text[0, len(prompt) :].numpy().astype(np.int32)
    return tokens, torch.stack(made.scores)[:, 0].numpy(), logprobs


def generate(folder: Path, cell: Cell, prompts: Sequence[np.ndarray]) -> list[shardwright.Completion]:
    """The same by `shardwright.generate`, as the cell says, on virtual devices."""
    return shardwright.generate(
        folder,
        [prompt.tolist() for prompt in prompts],
        mesh=dict(cell.mesh),
        decode_layout=cell.layout,
        prefill_layout=cell.prefill,
        attention=cell.attention,
        batch=len(prompts),
        chunk=CHUNK,
        cache=CACHE,
        dtype="f32",
        max_new_tokens=STEPS,
        stop_tokens=(),
        logprobs=cell.scored,
    )


def equal(found: Sequence[shardwright.Completion], wanted: Truth) -> bool:
    """Whether all tokens are."""
    return [completion.new_tokens for completion in found] == [tuple(row) for row in wanted.tokens.tolist()]


def difference(found: Sequence[shardwright.Completion], wanted: Truth) -> float:
    """The largest difference of log-probabilities, of given and new tokens, over their largest magnitude."""
    apart = 0.0
    for completion, theirs in zip(found, wanted.logprobs, strict=True):
        assert completion.prompt_logprobs is not None
        assert completion.logprobs is not None
        ours = np.array([*completion.prompt_logprobs[1:], *completion.logprobs])
        apart = max(apart, float(np.abs(ours - theirs).max()))
    return apart / max(float(np.abs(row).max()) for row in wanted.logprobs)


def dropped(folder: Path, cell: Cell) -> tuple[str, ...]:
    """What the layout would split and the sizes do not allow, in sentences."""
    config = read_config(folder).keys
    options = {"attention": cell.attention, "cache": CACHE, "prefill_layout": cell.prefill}
    return import_model(config, cell.layout, cell.mesh, len(LENGTHS), CHUNK, **options).dropped
