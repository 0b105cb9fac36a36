"""Trips of loops, masks and numbers that depend on no argument are known when a function is traced."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownLambdaType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from shardwright import DiagnosticError, trace

BOUND = jnp.int32(5)


def every_second(x: jax.Array, w: jax.Array) -> Any:
    return lax.while_loop(lambda c: c[0] < 7, lambda c: (c[0] + 2, jnp.tanh(c[1] @ w)), (1, x))


def never(x: jax.Array, w: jax.Array) -> Any:
    return lax.while_loop(lambda c: c[0] < 0, lambda c: (c[0] + 2, jnp.tanh(c[1] @ w)), (1, x))


def bound_in_an_array(x: jax.Array, w: jax.Array) -> Any:
    return lax.fori_loop(0, BOUND, lambda i, h: jnp.tanh(h @ w) + i, x)


def until_small(x: jax.Array, w: jax.Array) -> Any:
    """Two numbers decide, one of which follows from the other."""

    def body(c: Any) -> Any:
        return c[0] + 1, c[1] * 0.1 / c[0], c[2] @ w

    return lax.while_loop(lambda c: (c[0] < 9) & (c[1] > 1e-3), body, (1, 1.0, x))[2]


@pytest.mark.parametrize(
    ("function", "trips"), [(every_second, 3), (never, 0), (bound_in_an_array, 5), (until_small, 3)]
)
def test_loops_that_count_have_their_trips(function: Callable[..., Any], trips: int) -> None:
    traced = trace(function, (jnp.ones((3, 4)), jnp.ones((4, 4))))
    assert traced.largest_relative_difference < 1e-5
    assert ("loop[" in traced.text) == bool(trips)
    assert (f"N={trips}" in traced.text) == bool(trips)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: lax.while_loop(lambda c: c.sum() > 1, lambda c: c / 2, x),
        lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] * 1, c[1]), (0, x))[1],
    ],
    ids=["arguments", "for ever"],
)
def test_others_are_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(DiagnosticError, match="while runs until a condition holds") as caught:
        trace(function, (jnp.ones(4),))
    assert "note: use jax.lax.scan, or fori_loop with bounds that are Python numbers" in caught.value.render()


POSITIONS = np.arange(6)
MASKS = {
    "causal=L": np.tril(np.ones((6, 6), bool)),
    "causal=L, window=3": (POSITIONS[:, None] >= POSITIONS) & (POSITIONS[:, None] - POSITIONS < 3),
    "added": np.where(np.tril(np.ones((1, 1, 6, 6), bool)), 0, -1e30).astype(np.float32),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_are_arrays(name: str) -> None:
    mask = MASKS[name]

    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum("bhld,bhtd->bhlt", q, k) / jnp.sqrt(4.0)
        scores = scores + mask if name == "added" else jnp.where(mask, scores, -jnp.inf)
        return jnp.einsum("bhlt,bhtd->bhld", jax.nn.softmax(scores, -1), v)

    traced = trace(attention, [jnp.ones((2, 3, 6, 4))] * 3)
    assert traced.largest_relative_difference < 1e-5
    assert traced.weights == {}
    found = re.search(r"attend\[T, D, (causal=L(?:, window=3)?), scale=0.5\]", traced.text)
    assert found is not None, traced.text
    assert found[1] == name.replace("added", "causal=L")


def test_an_array_of_other_numbers_is_a_weight() -> None:
    mask = np.array([[True, False, True], [True, True, False], [False, True, True]])
    traced = trace(lambda x: jnp.where(mask, x, 0.0), (jnp.ones((3, 3)),))
    assert traced.largest_relative_difference == 0
    assert len(traced.weights) == 1


def test_interleaved_rotary_embeddings() -> None:
    def rotated(x: jax.Array) -> jax.Array:
        angle = jnp.arange(6)[:, None] * jnp.exp(-jnp.arange(0, 8, 2) * (jnp.log(10000.0) / 8))
        cos, sin = jnp.cos(angle)[None, :, None], jnp.sin(angle)[None, :, None]
        a, b = x[..., ::2], x[..., 1::2]
        return jnp.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)

    traced = trace(rotated, (jnp.ones((2, 6, 3, 8)),))
    assert traced.largest_relative_difference < 1e-5
    assert "style=gptj" in traced.text
    assert "log(" not in traced.text
