"""Llama with a KV cache in plain jax.numpy, by hand, as one would write it for `jax.jit` to partition.

It takes the weights and the state of an imported program by their names, whole arrays with heads as [K, G]: K heads of
keys and values, G queries for each. Nothing in it says where anything is to lie.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

LAYER = ("attention_norm", "wq", "wk", "wv", "wo", "feedforward_norm", "w_gate", "w_up", "w_down")
"""The weights with a dimension for the layers, outermost."""

Arrays = Mapping[str, Any]


def rms_norm(x: Any, scale: Any, eps: float = 1e-6) -> Any:
    return x * lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + eps) * scale


def rotated(x: Any, at: Any, base: float = 10000.0) -> Any:
    """The rotary embedding of x [B, L, heads..., D] at the positions [B, L]: pairs are half of D apart."""
    half = x.shape[-1] // 2
    angle = at[..., None] * base ** (-jnp.arange(half) / half)
    angle = angle.reshape(*at.shape, *(1,) * (x.ndim - 3), half)
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)], -1)


def appended(cache: Any, new: Any, pos: Any) -> Any:
    """The cache [B, T, K, D] with new [B, L, K, D] from the position of each row on."""
    return jax.vmap(lambda row, rows, at: lax.dynamic_update_slice_in_dim(row, rows, at, 0))(cache, new, pos)


def hidden(weights: Arrays, state: Arrays, ids: Any) -> tuple[Any, Any, Any]:
    """The residual stream [B, L, E] after the last layer, and the cache with the tokens [B, L] appended."""
    pos = state["pos"]
    at = pos[:, None] + jnp.arange(ids.shape[1])

    def layer(x: Any, own: Any) -> tuple[Any, Any]:
        w, k, v = own
        a = rms_norm(x, w["attention_norm"])
        q = rotated(jnp.einsum("ble,ekgd->blkgd", a, w["wq"]), at)
        k = appended(k, rotated(jnp.einsum("ble,ekd->blkd", a, w["wk"]), at), pos)
        v = appended(v, jnp.einsum("ble,ekd->blkd", a, w["wv"]), pos)
        s = jnp.einsum("blkgd,btkd->blkgt", q, k) * q.shape[-1] ** -0.5
        seen = jnp.arange(k.shape[1]) <= at[..., None]
        p = jax.nn.softmax(jnp.where(seen[:, :, None, None], s, -jnp.inf), -1)
        x = x + jnp.einsum("blkgd,kgde->ble", jnp.einsum("blkgt,btkd->blkgd", p, v), w["wo"])
        b = rms_norm(x, w["feedforward_norm"])
        return x + (jax.nn.silu(b @ w["w_gate"]) * (b @ w["w_up"])) @ w["w_down"], (k, v)

    x, (k, v) = lax.scan(layer, weights["embed"][ids], ({n: weights[n] for n in LAYER}, state["k"], state["v"]))
    return x, k, v


def logits(weights: Arrays, x: Any) -> Any:
    """[B, V] of the residual stream [B, E]."""
    return rms_norm(x, weights["final_norm"]) @ weights["unembed"].T


def prefill(weights: Arrays, state: Arrays, ids: Any, length: Any) -> tuple[tuple[Any], dict[str, Any]]:
    """Logits after the first `length` tokens of each row, and the state with them."""
    x, k, v = hidden(weights, state, ids)
    last = jnp.take_along_axis(x, (length - 1)[:, None, None], 1)[:, 0]
    return (logits(weights, last),), {"k": k, "v": v, "pos": state["pos"] + length}


def decode(weights: Arrays, state: Arrays, ids: Any) -> tuple[tuple[Any], dict[str, Any]]:
    """Logits after one token of each row, and the state with it."""
    x, k, v = hidden(weights, state, ids)
    return (logits(weights, x[:, 0]),), {"k": k, "v": v, "pos": state["pos"] + 1}
