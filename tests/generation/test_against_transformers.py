"""Tokens and log-probabilities of compiled programs are those of transformers, whatever mesh, rows and chunks."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import shardwright
from shardwright.backends.jax import session
from shardwright.backends.jax.emit import emit
from shardwright.backends.targets import names
from shardwright.backends.targets.names import parse_target
from shardwright.ir.mesh import Mesh
from shardwright.models.config import read_config
from shardwright.models.value_types import Pages
from shardwright.serving.generation.engine import Completion, Engine
from shardwright.serving.generation.loading import load_engine
from shardwright.serving.generation.plan import GenerationPlan
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings

STEPS = 16
PROMPTS = [
    np.random.default_rng(1).integers(3, 96, n).tolist() for n in (6, 9, 1, 4, 11, 7, 2, 5)
]  # more prompts than rows, of unequal lengths

Checkpoint = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(checkpoint: Checkpoint) -> Path:
    return checkpoint("llama-grouped")


def engine_of(folder: Path, plan: GenerationPlan) -> Engine:
    return load_engine(folder, read_config(folder).keys, plan)


@pytest.fixture(scope="module")
def adopting(folder: Path) -> Engine:
    """Two axes, attention over batch, prefill of two prompts in rows of their own, chunks of four tokens."""
    mesh = Mesh.of(x=2, y=2)
    return engine_of(folder, GenerationPlan(mesh, 4, 4, 28, "ws2d", "wg-x", "batch", prefill_batch=2, scores=True))


@pytest.fixture(scope="module")
def in_place(folder: Path) -> Engine:
    """One axis, attention over heads, prefill in decode's three rows, whole prompts."""
    return engine_of(folder, GenerationPlan(Mesh.of(x=2), 3, 11, 28, "megatron", scores=True))


@pytest.fixture(scope="module")
def over_positions(folder: Path) -> Engine:
    """Heads of keys over one axis, positions of the caches over the other, prefill in rows of its own."""
    return engine_of(folder, GenerationPlan(Mesh.of(x=2, y=2), 3, 4, 28, "ws2d", "wg-xy", "positions", prefill_batch=2))


@pytest.fixture(scope="module")
def in_pages(folder: Path) -> Engine:
    """Four rows and pages for two or three of the texts."""
    plan = GenerationPlan(Mesh.of(x=2, y=2), 4, 5, 28, "ws2d", "wg-xy", pages=Pages(4, 15), scores=True)
    return engine_of(folder, plan)


@pytest.fixture(scope="module")
def in_split_pages(folder: Path) -> Engine:
    """Heads of keys over one axis, slots of each page over the other."""
    return engine_of(folder, GenerationPlan(Mesh.of(x=2, y=2), 3, 4, 28, attention="positions", pages=Pages(4)))


def run(engine: Engine, settings: GenerationSettings, prompts: Sequence[Sequence[int]] = PROMPTS) -> list[Completion]:
    done = engine.run(make_prompts(prompts, 96, None), settings)
    return sorted(done, key=lambda completion: (completion.prompt.index, completion.sample))


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    return transformers_model(folder)


def transformers_model(folder: Path) -> Any:
    import torch
    import transformers

    library: Any = transformers
    with redirect_stderr(io.StringIO()):  # its progress bars
        model = library.AutoModelForCausalLM.from_pretrained(
            str(folder), dtype=torch.float32, attn_implementation="eager", local_files_only=True
        )
    return model.eval()


@cache
def generated(model: Any, prompt: tuple[int, ...], stops: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The tokens that transformers generates, up to one of the `stops`, if there are any."""
    import torch

    ids = torch.tensor([prompt])
    made = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=STEPS,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=list(stops) or None,
    )
    return tuple(made[0, len(prompt) :].tolist())


def greedy(model: Any, prompts: Sequence[Sequence[int]] = PROMPTS, *stops: int) -> list[tuple[int, ...]]:
    return [generated(model, tuple(prompt), stops) for prompt in prompts]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["adopting", "in_place", "over_positions", "in_pages", "in_split_pages"])
def test_greedy(name: str, theirs: Any, request: pytest.FixtureRequest) -> None:
    done = run(request.getfixturevalue(name), GenerationSettings(STEPS))
    assert [c.new_tokens for c in done] == greedy(theirs)


def test_stop_tokens(in_place: Engine, theirs: Any) -> None:
    """Its sequences end with the stop token, and so do ours."""
    wanted = greedy(theirs)
    stops = wanted[0][3], wanted[1][5]
    done = run(in_place, GenerationSettings(STEPS, stop_tokens=frozenset(stops)))
    assert [c.new_tokens for c in done] == greedy(theirs, PROMPTS, *stops)
    assert len(done[0].new_tokens) <= 4


def test_log_probabilities(adopting: Engine, in_place: Engine, in_pages: Engine, theirs: Any) -> None:
    import torch

    for engine in (adopting, in_place, in_pages):
        for completion, prompt in zip(run(engine, GenerationSettings(4, logprobs=True)), PROMPTS, strict=True):
            tokens = [*prompt, *completion.new_tokens]
            with torch.no_grad():
                scores = torch.log_softmax(theirs(torch.tensor([tokens])).logits[0].double(), -1).numpy()
            wanted = scores[np.arange(len(tokens) - 1), tokens[1:]]
            assert completion.prompt_logprobs is not None
            assert completion.logprobs is not None
            found = [*completion.prompt_logprobs[1:], *completion.logprobs]
            assert completion.prompt_logprobs[0] is None
            assert np.abs(np.array(found) - wanted).max() < 1e-4


def test_a_shared_prefix_changes_nothing(adopting: Engine, in_place: Engine, in_pages: Engine) -> None:
    prompts = [[*PROMPTS[4], token] for token in range(40, 46)]
    wanted, *others = (
        run(engine, GenerationSettings(6, logprobs=True), prompts) for engine in (in_place, adopting, in_pages)
    )
    for found in others:
        for ours, alone in zip(found, wanted, strict=True):
            assert ours.new_tokens == alone.new_tokens
            assert ours.prompt_logprobs == pytest.approx(alone.prompt_logprobs, abs=1e-4)


def test_samples_are_the_same_on_any_mesh_and_in_any_rows(adopting: Engine, in_place: Engine, in_pages: Engine) -> None:
    settings = GenerationSettings(8, temperature=0.9, top_k=40, top_p=0.95, seed=5, samples=3)
    found, wanted, paged = (run(engine, settings) for engine in (adopting, in_place, in_pages))
    assert [c.new_tokens for c in found] == [c.new_tokens for c in wanted] == [c.new_tokens for c in paged]
    assert len({c.new_tokens for c in found}) == 24
    other = run(in_place, replace(settings, seed=6))
    assert [c.new_tokens for c in other] != [c.new_tokens for c in wanted]


def test_a_cache_in_int8(folder: Path, theirs: Any) -> None:
    """Rows of prefill's own cache are adopted with their scales: tokens that are not near a tie are those of f32."""
    done = shardwright.generate(
        folder, PROMPTS[:4], mesh={"x": 2, "y": 2}, attention="positions", cache_format="int8", batch=2, chunk=4,
        prefill_batch=2, prefill_layout="wg-x", max_new_tokens=4, stop_tokens=(),
    )  # fmt: skip
    assert [c.new_tokens for c in done] == [tokens[:4] for tokens in greedy(theirs, PROMPTS[:4])]


def test_programs_are_written_for_the_devices(folder: Path, theirs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are the same where programs are written as the compiler of four v4 chips wants them."""
    made: list[str] = []

    def emitted(program: Any, **options: Any) -> str:
        made.append(emit(program, **options))
        return made[-1]

    monkeypatch.setattr(names, "target_of", lambda _: parse_target("tpu-v4:2x2x1"))
    monkeypatch.setattr(session, "emit", emitted)
    plan = GenerationPlan(Mesh.of(x=2, y=2), 4, 4, 28, "ws1d", prefill_batch=2)
    done = run(engine_of(folder, plan), GenerationSettings(STEPS))
    assert [c.new_tokens for c in done] == greedy(theirs)
    (text,) = made
    assert "optimization_barrier" in text  # products finished before the next reads them
    assert not re.search(r"all_gather\([^\n]*\('x', 'y'\)", text)  # over one axis after the other


def test_generate_chooses_what_is_not_given(folder: Path, theirs: Any) -> None:
    done = shardwright.generate(folder, PROMPTS[:2], mesh={"x": 2}, max_new_tokens=STEPS, stop_tokens=())
    assert [c.new_tokens for c in done] == greedy(theirs, PROMPTS[:2])


def test_passes_take_the_weights_with_them(checkpoint: Checkpoint) -> None:
    folder = checkpoint("falcon")
    passes = "fuse-parallel-block,loop-collectives"
    done = shardwright.generate(folder, PROMPTS[:2], mesh={"x": 2}, max_new_tokens=STEPS, stop_tokens=(), passes=passes)
    assert [c.new_tokens for c in done] == greedy(transformers_model(folder), PROMPTS[:2])


@pytest.mark.parametrize(("stored", "most"), [("int8", 0.2), ("f8e4m3", 0.7)])
def test_quantized_weights(stored: Literal["int8", "f8e4m3"], most: float, folder: Path, in_place: Engine) -> None:
    """8 bits move log-probabilities little, of floats with the cache in them as well; what they do to every
    architecture is tested with the models."""
    exact = run(in_place, GenerationSettings(0, logprobs=True), PROMPTS[:3])
    rounded = shardwright.generate(
        folder, PROMPTS[:3], mesh={"x": 2}, max_new_tokens=0, weights=stored, logprobs=True, batch=3,
        cache_format="f8e4m3" if stored == "f8e4m3" else None,
    )  # fmt: skip
    for ours, theirs in zip(rounded, exact, strict=True):
        assert ours.prompt_logprobs is not None
        assert theirs.prompt_logprobs is not None
        apart = np.subtract(ours.prompt_logprobs[1:], theirs.prompt_logprobs[1:])
        assert np.all(np.abs(apart) < most)
        assert len(apart) == 0 or np.any(np.abs(apart) > 1e-3)
