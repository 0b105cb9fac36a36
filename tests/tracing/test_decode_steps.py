"""Decode steps whose queries have one position, which turns all of their rows alike."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright import trace

random = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return jnp.asarray(random.normal(size=shape), jnp.float32)


def halves(q: Any, pos: Any) -> Any:
    angle = pos * 10000.0 ** (-jnp.arange(8) / 8)
    a, b = jnp.split(q, 2, -1)
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)


def pairs(q: Any, pos: Any) -> Any:
    angle = pos / 10000.0 ** (jnp.arange(8) / 8)
    a, b = q[..., ::2], q[..., 1::2]
    turned = [a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)]
    return jnp.stack(turned, -1).reshape(q.shape)


def grouped(q: Any, k: Any, v: Any, pos: Any) -> Any:
    scores = jnp.einsum("bkgd,btkd->bkgt", halves(q, pos), k)
    scores = jnp.where(jnp.arange(k.shape[1]) <= pos, scores, -1e30)
    return jnp.einsum("bkgt,btkd->bkgd", jax.nn.softmax(scores), v)


def multi_query(q: Any, k: Any, pos: Any) -> Any:
    return jnp.einsum("bht,btd->bhd", jax.nn.softmax(jnp.einsum("bhd,btd->bht", halves(q, pos), k)), k)


def alone(q: Any, k: Any, pos: Any) -> Any:
    return jax.nn.softmax(halves(q, pos) @ k.T) @ k


def latent(q: Any, turned: Any, cache: Any, keys: Any, pos: Any) -> Any:
    scores = jnp.einsum("bhc,btc->bht", q, cache) + jnp.einsum("bhr,btr->bht", pairs(turned, pos), keys)
    return jnp.einsum("bht,btc->bhc", jax.nn.softmax(scores), cache)


POS = jnp.asarray(17, jnp.int32)

STEPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "grouped": (grouped, (normal(2, 2, 3, 16), normal(2, 40, 2, 16), normal(2, 40, 2, 16), POS)),
    "multi-query": (multi_query, (normal(2, 4, 16), normal(2, 40, 16), POS)),
    "heads alone": (alone, (normal(6, 16), normal(40, 16), POS)),
    "latent": (latent, (normal(2, 4, 8), normal(2, 4, 16), normal(2, 40, 8), normal(2, 40, 16), POS)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", STEPS)
def test_one_position_turns_all_rows_alike(name: str) -> None:
    function, args = STEPS[name]
    traced = trace(function, args)
    assert traced.largest_relative_difference < 1e-6
    assert "rotary[" in traced.text
