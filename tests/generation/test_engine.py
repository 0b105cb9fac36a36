"""The engine's rows, chunks, prefixes and samples, over a toy model that is a hash of all tokens before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.toy_session import PagedToySession, ToySession, log_softmax, logits_after

from shardwright.ir.diagnostics import DiagnosticError
from shardwright.serving.generation.engine import Completion, Engine
from shardwright.serving.generation.prompts import Prompt, make_prompts
from shardwright.serving.generation.settings import GenerationSettings

PROMPTS = [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3, 5, 8, 9], [7, 9], [3, 1, 4, 1], [8], [2, 7, 1, 8, 2, 8]]


def run(
    session: ToySession, prompts: Sequence[Sequence[int]], settings: GenerationSettings, observe: Any = None
) -> list[Completion]:
    engine = Engine(session, None)  # pyright: ignore[reportArgumentType]
    done = list(engine.run(make_prompts(prompts, 50, None), settings, observe))
    return sorted(done, key=lambda completion: (completion.prompt.index, completion.sample))


def greedy(prompt: Sequence[int], n: int, stops: frozenset[int] = frozenset()) -> tuple[int, ...]:
    tokens = [*prompt]
    while len(tokens) < len(prompt) + n and (len(tokens) == len(prompt) or tokens[-1] not in stops):
        tokens.append(int(logits_after(tokens).argmax()))
    return tuple(tokens[len(prompt) :])


@pytest.mark.parametrize(("rows", "chunk", "own"), [(7, 9, None), (3, 2, None), (1, 4, None), (4, 3, 1), (2, 5, 20)])
def test_greedy_is_that_of_each_prompt_alone(rows: int, chunk: int, own: int | None) -> None:
    done = run(ToySession(rows, chunk, own), PROMPTS, GenerationSettings(max_new_tokens=5))
    assert [completion.new_tokens for completion in done] == [greedy(prompt, 5) for prompt in PROMPTS]


def test_a_text_ends_with_its_stop_token_and_frees_its_row() -> None:
    stops = frozenset(range(0, 50, 3))
    session = ToySession(2, 4)
    done = run(session, PROMPTS, GenerationSettings(max_new_tokens=20, stop_tokens=stops))
    wanted = [greedy(prompt, 20, stops) for prompt in PROMPTS]
    assert [completion.new_tokens for completion in done] == wanted
    assert {len(tokens) for tokens in wanted} != {20}
    assert session.calls["decode"] < 20 * 4  # what four groups of two would take


def test_samples_of_a_prompt_read_it_once() -> None:
    session = ToySession(rows=6, chunk=4, own=2)
    done = run(session, PROMPTS[:4], GenerationSettings(max_new_tokens=4, temperature=1.0, samples=3))
    assert [(c.prompt.index, c.sample) for c in done] == [(i, s) for i in range(4) for s in range(3)]
    assert len({c.new_tokens for c in done}) == 12
    assert session.calls["prefill"] == 3 + 1  # chunks of the longest of two prompts, and of the two others


def test_more_samples_than_rows() -> None:
    few, many = (
        run(session, PROMPTS[:2], GenerationSettings(max_new_tokens=3, temperature=1.0, samples=5, seed=7))
        for session in (ToySession(2, 4, 1), ToySession(16, 16))
    )
    assert [c.new_tokens for c in few] == [c.new_tokens for c in many]


@given(
    rows=st.integers(1, 5),
    chunk=st.integers(1, 6),
    own=st.none() | st.integers(1, 12),
    samples=st.integers(1, 3),
    scores=st.booleans(),
    prompts=st.lists(st.lists(st.integers(0, 49), min_size=1, max_size=12), min_size=1, max_size=6),
    common=st.lists(st.integers(0, 49), max_size=9),
)
def test_a_token_depends_on_seed_prompt_sample_and_position_alone(
    rows: int, chunk: int, own: int | None, samples: int, scores: bool, prompts: list[list[int]], common: list[int]
) -> None:
    """Whatever the rows, chunks and shared prefixes: the same tokens and log-probabilities as one at a time."""
    given = [[*common, *prompt] for prompt in prompts]
    settings = GenerationSettings(max_new_tokens=3, temperature=1.0, samples=samples, seed=3, logprobs=scores)
    found = run(ToySession(rows, chunk, own, scores), given, settings)
    wanted = run(ToySession(32, 32, None, scores), given, settings)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.new_tokens == theirs.new_tokens
        assert ours.logprobs == theirs.logprobs
        assert ours.prompt_logprobs == theirs.prompt_logprobs


@pytest.mark.parametrize("own", [None, 1, 3])
def test_a_shared_prefix_is_read_once(own: int | None) -> None:
    prefix = list(range(20))
    prompts = [[*prefix, 30 + i] for i in range(12)]
    session = ToySession(3, 5, own)
    done = run(session, prompts, GenerationSettings(max_new_tokens=2))
    assert [c.new_tokens for c in done] == [greedy(prompt, 2) for prompt in prompts]
    groups = 12 if own == 1 else 4
    assert session.calls["prefill"] == 4 + groups  # 19 tokens in chunks of 5, then two tokens of each prompt


@given(
    rows=st.integers(1, 5),
    chunk=st.integers(1, 6),
    page=st.integers(1, 5),
    more=st.integers(0, 20),
    samples=st.integers(1, 3),
    scores=st.booleans(),
    prompts=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), min_size=1, max_size=9),
    common=st.lists(st.integers(0, 2), max_size=9),
)
def test_pages_change_no_token(
    rows: int, chunk: int, page: int, more: int, samples: int, scores: bool, prompts: list[list[int]], common: list[int]
) -> None:
    """However few pages there are, as long as the longest text fits: no text sees or loses what is another's."""
    given = [[*common, *prompt] for prompt in prompts]
    settings = GenerationSettings(max_new_tokens=4, temperature=1.0, samples=samples, seed=3, logprobs=scores)
    per_row = -(-(max(map(len, given)) + 3) // page)
    session = PagedToySession(rows, chunk, None, scores, page=page, per_row=per_row, pages=per_row + more)
    found = run(session, given, settings)
    wanted = run(ToySession(32, 32, None, scores), given, settings)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.new_tokens == theirs.new_tokens
        assert ours.logprobs == theirs.logprobs
        assert ours.prompt_logprobs == theirs.prompt_logprobs


@pytest.mark.parametrize(("pages", "together", "calls"), [(32, 4, 9), (16, 2, 18), (8, 1, 36), (9, 1, 36)])
def test_texts_wait_for_pages(pages: int, together: int, calls: int) -> None:
    """Twelve prompts of 29 tokens and 4 new ones take eight pages of four each, whatever the rows could hold."""
    prompts = [[i, *range(28)] for i in range(12)]
    session = PagedToySession(4, 32, pages=pages)
    done = run(session, prompts, GenerationSettings(max_new_tokens=4))
    assert [c.new_tokens for c in done] == [greedy(prompt, 4) for prompt in prompts]
    assert session.calls["prefill"] == 12 // together
    assert session.calls["decode"] == calls
    assert session.most == 8 * together


def test_a_shared_prefix_lies_in_pages_once() -> None:
    """Four pages hold the first 16 of the 18 tokens that all prompts share; each text has two pages of its own."""
    prompts = [[*range(18), 30 + i] for i in range(12)]
    session = PagedToySession(4, 5, page=4, per_row=6, pages=12)
    done = run(session, prompts, GenerationSettings(max_new_tokens=4))
    assert [c.new_tokens for c in done] == [greedy(prompt, 4) for prompt in prompts]
    assert session.most == 4 + 4 * 2
    assert session.calls["prefill"] == 4 + 3  # 16 tokens in chunks of 5, then three of each prompt, four at a time


@pytest.mark.parametrize("scores", [False, True])
def test_pages_that_hold_a_prompt_are_not_read_again(scores: bool) -> None:
    """The first four of twelve samples of a prompt of 19 tokens read it all; those after them find 16 of its tokens,
    in the pages of the others while these go on and after they have ended."""
    prompt = [*range(19)]
    session = PagedToySession(4, 32, None, scores, page=4, per_row=6, pages=24)
    settings = GenerationSettings(max_new_tokens=4, temperature=1.0, samples=12, logprobs=scores)
    done = run(session, [prompt], settings)
    alone = run(ToySession(12, 32, None, scores), [prompt], settings)
    assert [(c.new_tokens, c.prompt_logprobs) for c in done] == [(c.new_tokens, c.prompt_logprobs) for c in alone]
    assert session.tokens_read == 4 * 19 + 8 * (19 - 16)


def test_log_probabilities_are_the_models() -> None:
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6]]
    done = run(ToySession(2, 2, None, scores=True), prompts, GenerationSettings(max_new_tokens=2, logprobs=True))
    for completion, prompt in zip(done, prompts, strict=True):
        tokens = [*prompt, *completion.new_tokens]
        wanted = [float(log_softmax(logits_after(tokens[:i]))[tokens[i]]) for i in range(1, len(tokens))]
        assert completion.prompt_logprobs == (None, *wanted[: len(prompt) - 1])
        assert completion.logprobs == pytest.approx(wanted[len(prompt) - 1 :], abs=0)


def test_scoring_draws_nothing() -> None:
    session = ToySession(2, 4, None, scores=True)
    done = run(session, PROMPTS, GenerationSettings(max_new_tokens=0, logprobs=True))
    assert [c.new_tokens for c in done] == [()] * len(PROMPTS)
    assert [len(c.prompt_logprobs or ()) for c in done] == [len(prompt) for prompt in PROMPTS]
    assert session.calls["decode"] == session.calls["greedy"] == 0


def test_every_token_is_told_as_it_comes() -> None:
    told: dict[tuple[int, int], list[int]] = {}

    def observe(prompt: Prompt, sample: int, token: int) -> None:
        told.setdefault((prompt.index, sample), []).append(token)

    done = run(ToySession(3, 4, 2), PROMPTS, GenerationSettings(max_new_tokens=4, temperature=0.7, samples=2), observe)
    assert {key: tuple(tokens) for key, tokens in told.items()} == {
        (c.prompt.index, c.sample): c.new_tokens for c in done
    }


def test_seeds_differ() -> None:
    first, second = (
        run(ToySession(4, 4), PROMPTS, GenerationSettings(max_new_tokens=6, temperature=1.0, seed=seed))
        for seed in (0, 1)
    )
    assert all(a.new_tokens != b.new_tokens for a, b in zip(first, second, strict=True))


def test_a_free_row_does_not_wait_for_ever() -> None:
    """The last prompts are fewer than are worth a call, and are read as soon as there is room for them."""
    session = ToySession(8, 4)
    prompts = np.arange(9 * 2).reshape(9, 2).tolist()
    done = run(session, prompts, GenerationSettings(max_new_tokens=3))
    assert [c.new_tokens for c in done] == [greedy(prompt, 3) for prompt in prompts]
    assert session.calls["prefill"] == 2


def test_logits_that_are_not_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToySession, "greedy", lambda self, logits: (np.full(len(logits), 50, np.int32),))
    with pytest.raises(DiagnosticError) as caught:
        run(ToySession(2, 4), PROMPTS, GenerationSettings(max_new_tokens=2))
    assert caught.value.render() == (
        "prompt 1: error: new token 1 of the prompt with index 0 cannot be chosen: its logits are not numbers"
        " [not-numbers]"
    )
