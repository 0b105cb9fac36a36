"""What 8 bits, 4 bits and sparse attention change: perplexity and logits of a small model that is trained here.

    python bench/quantized_perplexity.py [--width 64] [--layers 2] [--steps 1200] [--json]

A language with a known entropy: tokens follow each other by a fixed chain; some of them are keys, which are followed by
a value that each text chooses for itself, so that the second time it can only be known by looking back. A Llama is
trained on it, saved, and run by the offloading runtime, which is given the texts token by token: with everything in
f32, with weights in 8 bits, with weights, cache or both in 4 bits, and with decode looking at a tenth of
the cached positions; and by the programs that `generate` runs, with the cache or weights and products in 8 bits.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from quantized_logits import loaded

from shardwright.backends.number_formats import numpy_dtype
from shardwright.backends.simulation.reference import evaluate
from shardwright.cost.offloading.policy import Formats, parse_policy
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import DType, StoredFormat
from shardwright.models.config import read_config
from shardwright.models.importing import import_model
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.block_run import BlockRun
from shardwright.serving.offloading.request import OffloadRequest
from shardwright.serving.offloading.run import OffloadedModel

if TYPE_CHECKING:
    from torch import Tensor

VOCAB, KEYS, VALUES = 128, 16, 48
"""Tokens; the first are keys, the next values."""

FOLLOWERS = 4
POLICY = "8,2,20,50,30,40,50,50"
"""Shares on all tiers, so that every way through the runtime is taken."""


# ---------------------------------------------------------------- the language


class Language:
    """Plain tokens and keys follow a token by a chain; a value follows a key, the same each time within a text."""

    def __init__(self, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        plain = np.concatenate([np.arange(KEYS), np.arange(KEYS + VALUES, VOCAB)])
        self.followers = np.stack([draw.choice(plain, FOLLOWERS, replace=False) for _ in range(VOCAB)])
        self.chances = draw.dirichlet(np.full(FOLLOWERS, 0.7), VOCAB)

    def texts(self, count: int, length: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Texts [count, length], and of each token the nats that no model can do without."""
        draw = np.random.default_rng(seed)
        tokens = np.empty((count, length), dtype=np.int64)
        nats = np.zeros((count, length))
        for row in range(count):
            values = draw.integers(KEYS, KEYS + VALUES, KEYS)
            seen: set[int] = set()
            now = int(draw.integers(KEYS + VALUES, VOCAB))
            for at in range(length):
                tokens[row, at] = now
                if now < KEYS and at + 1 < length:
                    nats[row, at + 1] = 0.0 if now in seen else math.log(VALUES)
                    seen.add(now)
                    now = int(values[now])
                    continue
                chosen = int(draw.choice(FOLLOWERS, p=self.chances[now]))
                if at + 1 < length:
                    nats[row, at + 1] = -math.log(self.chances[now, chosen])
                now = int(self.followers[now, chosen])
        return tokens, nats


# ---------------------------------------------------------------- the model


def train(folder: Path, language: Language, width: int, layers: int, steps: int, length: int) -> float:
    """A Llama trained on the language and saved in `folder`; gives its loss over the last tenth of the steps."""
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2 * length,
        tie_word_embeddings=False,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    losses: list[float] = []
    for step in range(steps):
        ids = torch.from_numpy(language.texts(16, length, 1000 + step)[0])
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    model.eval().save_pretrained(folder)
    return float(np.mean(losses[-max(1, steps // 10) :]))


# ---------------------------------------------------------------- the runtime


class Forced(OffloadedModel):
    """A run that is given its tokens and keeps the logits."""

    def logits(self, texts: np.ndarray, prompt: int) -> np.ndarray:
        """Logits [texts, tokens, V] before each token from `prompt` on."""
        made = np.zeros((len(texts), texts.shape[1] - prompt, VOCAB), dtype=np.float32)

        class Given(BlockRun):
            def choose(self, turn: tuple[int, int], logits: Tensor) -> tuple[list[int], list[float]]:
                number, token = turn
                rows = [prompt.index for prompt in self.block.buckets[number].prompts]
                made[rows, token] = logits[: len(rows)].float().cpu().numpy()
                return [*(int(texts[row, prompt + token]) for row in rows), *[0] * (len(logits) - len(rows))], []

        for block in self.blocks:
            given = Given(self, block)
            given.work()
            while (ended := given.ended.get()) is not None:
                if isinstance(ended, BaseException):
                    raise ended
        return made


def run(folder: Path, texts: np.ndarray, prompt: int, kind: Kind) -> np.ndarray:
    """Logits [texts, tokens, V] of the offloaded model before each token from `prompt` on."""
    if kind.program is not None:
        return generated(folder, texts, prompt, *kind.program)
    weights, cache = kind.formats
    policy = replace(parse_policy(POLICY), weight_format=weights, cache_format=cache)
    request = OffloadRequest(policy, dtype=DType.F32, sparse=kind.sparse)
    prompts = make_prompts(texts[:, :prompt].tolist(), VOCAB, None)
    model = Forced(folder, request, prompts, GenerationSettings(max_new_tokens=texts.shape[1] - prompt))
    with model:
        return model.logits(texts, prompt)


def generated(
    folder: Path, texts: np.ndarray, prompt: int, stored: str, cache_format: StoredFormat | None
) -> np.ndarray:
    """The same by `prefill` and `decode` of the imported program, evaluated in the formats that it declares."""
    keys, count = read_config(folder).keys, len(texts)
    made = import_model(
        keys, "ws2d", Mesh.of(x=1), count, prompt, DType.F32, cache=texts.shape[1], cache_format=cache_format
    )
    program, weights = loaded(folder, made, stored)
    state: dict[str, np.ndarray] = {
        value.name: np.zeros([dim.size for dim in value.type.dims], numpy_dtype(value.type.dtype))
        for value in program.state
    }
    given = {"ids": texts[:, :prompt].astype(np.int32), "length": np.full(count, prompt, np.int32)}
    ((logits,), state) = evaluate(program, "prefill", given, weights, state, precision="declared")
    found = [logits]
    for at in range(prompt, texts.shape[1] - 1):
        given = {"ids": texts[:, at : at + 1].astype(np.int32)}
        ((logits,), state) = evaluate(program, "decode", given, weights, state, precision="declared")
        found.append(logits)
    return np.stack(found, 1).astype(np.float32)


@dataclass(frozen=True)
class Kind:
    """A row: the formats of weights and cache of a run of the offloading runtime, or of a `program`."""

    name: str
    formats: Formats = (None, None)
    sparse: float = 1.0
    program: tuple[str, StoredFormat | None] | None = None


KINDS = (
    Kind("f32"),
    Kind("weights in 8 bits", formats=("int8", None)),
    Kind("weights in 4 bits", formats=("int4", None)),
    Kind("cache in 4 bits", formats=(None, "int4")),
    Kind("both in 4 bits", formats=("int4", "int4")),
    Kind("a tenth of the positions", sparse=0.1),
    Kind("both in 4 bits, a tenth", formats=("int4", "int4"), sparse=0.1),
    Kind("generate: cache in int8", program=("bf16", "int8")),
    Kind("generate: cache in f8e4m3", program=("bf16", "f8e4m3")),
    Kind("generate: weights in int8", program=("int8", None)),
    Kind("generate: weights, products in f8e4m3", program=("f8e4m3", None)),
    Kind("generate: all in f8e4m3", program=("f8e4m3", "f8e4m3")),
)


@dataclass(frozen=True)
class Row:
    """`perplexity` over all tokens, `recalled` over values whose key has occurred before. Beside f32: `rms` is the root
    of the mean square of the logits' change over that of the logits, `divergence` the mean Kullback-Leibler divergence
    in nats, `same` the share of positions with the same most probable token."""

    name: str
    perplexity: float
    recalled: float
    rms: float
    divergence: float
    same: float


def measure(
    folder: Path, texts: np.ndarray, prompt: int, kinds: Sequence[Kind] = KINDS
) -> tuple[list[Row], dict[str, np.ndarray]]:
    """A row for each kind, the first of which the others are compared with, and their logits."""
    found = {kind.name: run(folder, texts, prompt, kind) for kind in kinds}
    wanted = texts[:, prompt:]
    before = texts[:, prompt - 1 : -1]
    keyed = np.array([[before[row, at] < KEYS and before[row, at] in texts[row, : prompt + at - 1]
                       for at in range(wanted.shape[1])] for row in range(len(texts))])  # fmt: skip
    base = found[kinds[0].name].astype(np.float64)
    p = _log_softmax(base)
    rows: list[Row] = []
    for kind in kinds:
        own = found[kind.name].astype(np.float64)
        q = _log_softmax(own)
        nats = -np.take_along_axis(q, wanted[..., None], -1)[..., 0]
        figures = (
            math.exp(nats.mean()),
            math.exp(nats[keyed].mean()),
            math.sqrt(np.square(own - base).mean() / np.square(base).mean()),
            (np.exp(p) * (p - q)).sum(-1).mean(),
            (own.argmax(-1) == base.argmax(-1)).mean(),
        )
        rows.append(Row(kind.name, *map(float, figures)))
    return rows, found


def _log_softmax(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def table(rows: Sequence[Row]) -> str:
    """As docs/performance.md has it."""
    lines = [
        "| | perplexity | of recalled values | logits, RMS | divergence, nats | same token |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.name} | {row.perplexity:.3f} | {row.recalled:.3f} | {row.rms:.2%} | {row.divergence:.1e}"
        f" | {row.same:.1%} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default in (("width", 64), ("layers", 2), ("steps", 1200), ("length", 96), ("texts", 32)):
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    language = Language()
    texts, nats = language.texts(given.texts, given.length, 1)
    prompt = given.length // 4
    with tempfile.TemporaryDirectory() as made:
        loss = train(Path(made), language, given.width, given.layers, given.steps, given.length)
        print(f"trained to {loss:.3f} nats a token", file=sys.stderr)
        rows, _ = measure(Path(made), texts, prompt)
    least = math.exp(nats[:, prompt:].mean())
    if given.json:
        found: dict[str, Any] = {"least_perplexity": least, "rows": [asdict(row) for row in rows]}
        print(json.dumps(found))
    else:
        print(f"{table(rows)}\n\nNo model gets below a perplexity of {least:.3f} on these texts.")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
