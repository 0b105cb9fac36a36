"""Sampling from logits split over the vocabulary: what is kept, how often what is drawn, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from shardwright.backends.simulation.simulator import SimulationResult, simulate
from shardwright.compiling.compile_program import explicit
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse
from shardwright.serving.generation.sampling import sampling_functions

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """A mesh and where the logits lie on it."""

    mesh: str
    logits: str

    def __str__(self) -> str:
        return f"{self.logits} on {self.mesh or 'one chip'}"


CASES = (
    Case("", "f32 BV"),
    Case("x=2", "f32 BV_x"),
    Case("x=2", "f32 B_xV"),
    Case("x=2 y=2", "f32 BV_xy"),
    Case("x=2 y=2", "f32 B_yV_x"),
    Case("x=2 y=2 z=2", "f32 BV_xyz"),
    Case("x=2 y=2 z=2", "f32 B_xV_yz"),
    Case("x=2 y=2 z=2", "f32 B_xyzV"),
)


@cache
def program(case: Case, batch: int, vocab: int, *, top_k: bool = True, top_p: bool = True) -> Program:
    """The sampling functions, compiled."""
    mesh = f"mesh {case.mesh}\n" if case.mesh else ""
    functions = sampling_functions(case.logits, vocab, top_k=top_k, top_p=top_p)
    text = f"{mesh}dim B={batch} V={vocab}\n{functions}"
    return explicit(elaborate(parse(Source("sampling.shard", text))))


def random_logits(batch: int, vocab: int, seed: int = 0) -> Array:
    return (3 * np.random.default_rng(seed).standard_normal((batch, vocab))).astype(np.float32)


def rows(batch: int, **given: Any) -> dict[str, Array]:
    """Arguments for a batch: one key, consecutive positions, and what is given for each row or for all."""
    made = {"key": 7, "position": np.arange(batch), "temperature": 1.0, "top_k": 0, "top_p": 1.0} | given
    return {name: np.broadcast_to(np.asarray(value), (batch,)) for name, value in made.items()}


def run(made: Program, name: str, **args: Any) -> SimulationResult:
    return simulate(made, name, args, precision="declared")


def sampled(made: Program, logits: Array, **given: Any) -> Array:
    (tokens,) = run(made, "sample", logits=logits, **rows(len(logits), **given)).results
    return tokens


def kept(made: Program, logits: Array, **given: Any) -> Array:
    """Which tokens may be drawn: the value `kept` of the program."""
    sample = made.func("sample")
    value = next(v for s, _ in sample.walk() for v in getattr(s, "results", ()) if v.name == "kept")
    shown = replace(sample, returns=("kept",), results=(value.type,))
    watching = replace(made, funcs=tuple(shown if f is sample else f for f in made.funcs))
    (mask,) = run(watching, "sample", logits=logits, **rows(len(logits), **given)).results
    return mask


def as_transformers(logits: Array, temperature: Array, top_k: Array, top_p: Array) -> Array:
    """Which tokens transformers keeps, row by row, as its `generate` chains the warpers."""
    import torch
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    made: list[Array] = []
    for row, t, k, p in zip(logits, temperature.tolist(), top_k.tolist(), top_p.tolist(), strict=True):
        scores: Any = torch.tensor(row[None])
        scores = TemperatureLogitsWarper(t)(None, scores)  # type: ignore[arg-type]
        scores = TopKLogitsWarper(k)(None, scores) if k else scores  # type: ignore[arg-type]
        scores = TopPLogitsWarper(p)(None, scores) if p < 1 else scores  # type: ignore[arg-type]
        made.append(np.isfinite(scores.numpy()[0]))
    return np.array(made)


# ---------------------------------------------------------------- what is kept


@pytest.mark.parametrize("case", [CASES[0], CASES[-2]], ids=str)
def test_keeps_what_transformers_keeps(case: Case) -> None:
    batch, vocab = 120, 500
    rng = np.random.default_rng(1)
    given = {
        "temperature": rng.choice([0.3, 0.7, 1.0, 1.7], batch),
        "top_k": rng.choice([0, 1, 5, 40, 499, 500, 1000], batch),
        "top_p": rng.choice([0.01, 0.3, 0.9, 0.999, 1.0], batch),
    }
    logits = random_logits(batch, vocab)
    found = kept(program(case, batch, vocab), logits, **given)
    np.testing.assert_array_equal(found, as_transformers(logits, **given))


def test_a_large_vocabulary_is_counted_exactly() -> None:
    """Many small probabilities, whose sum in f32 would depend on its order."""
    batch, vocab = 4, 2**17
    logits = random_logits(batch, vocab) / 3
    given = {
        "temperature": np.ones(batch),
        "top_k": np.array([0, 0, 0, 50_000]),
        "top_p": np.array([0.1, 0.5, 0.9, 0.9]),
    }
    found = kept(program(CASES[5], batch, vocab), logits, **given)
    for row, k, p, mask in zip(logits.astype(np.float64), given["top_k"], given["top_p"], found, strict=True):
        order = np.sort(row)[::-1][: k or vocab]
        powers = np.exp(order)
        mass = np.cumsum(powers) / powers.sum()
        assert abs(int(mask.sum()) - int((mass - powers / powers.sum() < p).sum())) <= 1


def test_equals_of_the_last_kept_are_kept() -> None:
    logits = np.array([[0, 2, 1, 1, 1, -1], [0, 0, 0, 0, 0, 0]], np.float32)
    made = program(CASES[1], 2, 6)
    np.testing.assert_array_equal(kept(made, logits, top_k=2), [[0, 1, 1, 1, 1, 0], [1] * 6])
    np.testing.assert_array_equal(kept(made, logits, top_p=0.6), [[0, 1, 1, 1, 1, 0], [1] * 6])


def test_zeros_of_both_signs_are_equal() -> None:
    logits = np.array([[0.0, -0.0, -1, 0.0, -0.0, -2], [-0.0, 0.0, -1, -0.0, 0.0, -2]], np.float32)
    np.testing.assert_array_equal(kept(program(CASES[1], 2, 6), logits, top_k=1), [[1, 1, 0, 1, 1, 0]] * 2)


def test_at_least_one_token_is_kept() -> None:
    logits = np.array([[0, 5, 1, 4, 1, -np.inf], [-3, -2, -1, -0.5, -0.4, -9]], np.float32)
    np.testing.assert_array_equal(
        kept(program(CASES[1], 2, 6), logits, top_p=0.0), [[0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 0]]
    )


# ---------------------------------------------------------------- what is drawn


def test_frequencies_are_the_probabilities() -> None:
    """Pearson's chi-squared of 20,000 draws, against its 99.99 percent point for 15 degrees of freedom."""
    n, vocab = 20_000, 16
    logits = np.tile(random_logits(1, vocab, seed=3) / 2, (n, 1))
    made = program(CASES[1], n, vocab)
    for given in ({}, {"temperature": 0.6}, {"key": np.arange(n) + 2**31, "position": 3}):
        tokens = sampled(made, logits, **given)
        powers = np.exp(logits[0].astype(np.float64) / given.get("temperature", 1.0))
        expected = n * powers / powers.sum()
        counts = np.bincount(tokens, minlength=vocab)
        assert float(((counts - expected) ** 2 / expected).sum()) < 44.3


def test_draws_only_what_is_kept() -> None:
    n = 2000
    logits = np.tile(np.array([[0, 2, 1, 1.5, -1, 0.5]], np.float32), (n, 1))
    tokens = sampled(program(CASES[1], n, 6), logits, top_k=3, temperature=2.0)
    assert set(tokens.tolist()) == {1, 2, 3}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("case", CASES[1:], ids=str)
def test_tokens_are_the_same_on_every_mesh_and_layout(case: Case) -> None:
    batch, vocab = 16, 120
    logits = random_logits(batch, vocab)
    given = {
        "key": np.arange(batch) % 3,
        "temperature": np.array([0.0, 0.5, 1.0, 2.0] * 4),
        "top_k": np.array([0, 0, 3, 30] * 4),
        "top_p": np.array([1.0, 0.8] * 8),
    }
    alone, here = program(CASES[0], batch, vocab), program(case, batch, vocab)
    np.testing.assert_array_equal(sampled(here, logits, **given), sampled(alone, logits, **given))
    (greedy,) = run(here, "greedy", logits=logits).results
    np.testing.assert_array_equal(greedy, logits.argmax(1))
    (found,) = run(here, "logprob", logits=logits, token=greedy).results
    wide = logits.astype(np.float64)
    np.testing.assert_allclose(found, wide.max(1) - np.log(np.exp(wide).sum(1)), atol=1e-5)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", [CASES[i] for i in (0, 1, 4, 5, 7)], ids=str)
def test_jax_draws_what_the_simulator_draws(case: Case) -> None:
    from shardwright.backends.jax.session import Session

    batch, vocab = 16, 120
    logits = random_logits(batch, vocab)
    given = rows(batch, key=2**32 - 5, temperature=np.array([0.0, 0.5, 1.0, 2.0] * 4), top_k=40, top_p=0.95)
    made = program(case, batch, vocab)
    session = Session(made, {})
    (tokens,) = session.call("sample", {"logits": logits, **given})
    np.testing.assert_array_equal(tokens, sampled(made, logits, **given))
    (greedy,) = session.call("greedy", {"logits": logits})
    np.testing.assert_array_equal(greedy, logits.argmax(1))
    (found,) = session.call("logprob", {"logits": logits, "token": tokens})
    np.testing.assert_allclose(found, run(made, "logprob", logits=logits, token=tokens).results[0], atol=1e-5)


def test_a_row_depends_on_nothing_but_itself() -> None:
    logits = random_logits(8, 60)
    given = rows(8, key=np.arange(8), position=np.arange(8) * 5, top_p=0.9)
    together = sampled(program(CASES[1], 8, 60), logits, **given)
    reversed_rows = {name: value[::-1] for name, value in given.items()}
    np.testing.assert_array_equal(sampled(program(CASES[1], 8, 60), logits[::-1], **reversed_rows), together[::-1])
    first = {name: value[:2] for name, value in given.items()}
    np.testing.assert_array_equal(sampled(program(CASES[1], 2, 60), logits[:2], **first), together[:2])


def test_a_single_token_may_be_sampled_without_a_batch() -> None:
    made = program(Case("x=2", "f32 V_x"), 1, 60)
    logits = random_logits(1, 60)
    args = {name: value[0] for name, value in rows(1, temperature=0.8).items()}
    (alone,) = run(made, "sample", logits=logits[0], **args).results
    assert alone == sampled(program(CASES[1], 1, 60), logits, temperature=0.8)[0]


# ---------------------------------------------------------------- logits that are no numbers


def strange_logits() -> Array:
    """Rows with NaN, with +inf, with all -inf; then with one -inf, and with numbers alone."""
    logits = random_logits(16, 120)
    logits[0, 3], logits[1, 119], logits[2, 60] = np.nan, np.nan, np.inf
    logits[3, [5, 100]] = np.inf, np.nan
    logits[4], logits[5], logits[6] = -np.inf, np.nan, np.inf
    logits[7, 0] = -np.inf
    return logits


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", [CASES[i] for i in (0, 1, 4, 7)], ids=str)
def test_a_row_that_has_no_next_token_says_so_on_every_mesh(case: Case) -> None:
    """In the simulator, under JAX and, on one chip, under PyTorch; rows beside it are drawn as ever."""
    from shardwright.backends.jax.session import Session

    logits, given, wanted = strange_logits(), rows(16, top_p=0.9), [-3, -3, -2, -3, -1, -3, -2]
    made = program(case, 16, 120)
    session = Session(made, {})
    found = [sampled(made, logits, **given), session.call("sample", {"logits": logits, **given})[0]]
    greedy = [run(made, "greedy", logits=logits).results[0], session.call("greedy", {"logits": logits})[0]]
    if not case.mesh:
        from shardwright.backends.torch.session import run_program
        from shardwright.backends.torch.world import alone

        for name, more, tokens in (("sample", given, found), ("greedy", {}, greedy)):
            tokens.append(run_program(made, name, {"logits": logits, **more}, world=alone())[0][0])
    usual = sampled(made, random_logits(16, 120), **given)
    for tokens in (*found, *greedy):
        assert tokens[:7].tolist() == wanted
        assert tokens[7] > 0
    for tokens in found:
        np.testing.assert_array_equal(tokens[8:], usual[8:])
    for tokens in greedy:
        np.testing.assert_array_equal(tokens[8:], logits[8:].argmax(1))
    scores = session.call("logprob", {"logits": logits, "token": np.arange(16) % 3 + 1})[0]
    assert np.isnan(scores).tolist() == [True] * 7 + [False] * 9


# ---------------------------------------------------------------- what it costs


@pytest.mark.parametrize("case", CASES, ids=str)
def test_bytes_received(case: Case) -> None:
    """Each collective is an all-reduce of one number of 4 bytes per row: 2 for greedy, 70 for sample, 3 for logprob."""
    batch, vocab = 16, 120
    made = program(case, batch, vocab)
    kind = made.func("greedy").params[0].concrete
    here, chips = batch // made.mesh.product(kind.split("B")), made.mesh.product(kind.split("V"))
    logits = random_logits(batch, vocab)
    token = np.zeros(batch, np.int32)
    for numbers, name, more in ((2, "greedy", {}), (70, "sample", rows(batch)), (3, "logprob", {"token": token})):
        assert run(made, name, logits=logits, **more).total == numbers * 2 * (4 * here * (chips - 1) / chips)


@pytest.mark.parametrize(("top_k", "top_p", "numbers"), [(False, False, 3), (True, False, 35), (False, True, 38)])
def test_what_is_not_asked_for_costs_nothing(top_k: bool, top_p: bool, numbers: int) -> None:
    """And draws the same as a program that can do more."""
    logits, given = random_logits(16, 120), rows(16, temperature=np.array([0, 0.5, 1, 2] * 4))
    given["top_k"] = given["top_k"] + (7 if top_k else 0)
    given["top_p"] = given["top_p"] - (0.2 if top_p else 0.0)
    made = program(CASES[5], 16, 120, top_k=top_k, top_p=top_p)
    found = run(made, "sample", logits=logits, **given)
    assert found.total == numbers * 2 * 4 * 16 * 7 / 8
    np.testing.assert_array_equal(found.results[0], sampled(program(CASES[5], 16, 120), logits, **given))


def test_a_type_that_is_not_of_logits() -> None:
    for kind in ("bf16 BV_x", "f32 BE", "f32 BV(partialsum-x)", "f32"):
        with pytest.raises(DiagnosticError) as raised:
            sampling_functions(kind, 10)
        assert raised.value.diagnostics[0].message == f"sampling is from f32 logits with a dimension V, not from {kind}"
    for kind in ("f32 BV?", "f32 BV_?"):
        with pytest.raises(DiagnosticError) as raised:
            sampling_functions(kind, 10)
        message = f"sampling is from logits whose layout is known, and {kind} has holes"
        assert raised.value.diagnostics[0].message == message
