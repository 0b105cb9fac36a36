"""Norms, softmax, rotary embeddings and attention that models of 16 bits write out in f32 are recognized as well."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwright import trace

HEADS, GROUPS, SIZE, WIDTH = 4, 2, 8, 24
random = np.random.default_rng(0)


def norm(x: Any, gain: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)).astype(x.dtype) * gain


def rotary(x: Any, positions: Any) -> Any:
    half = SIZE // 2
    angles = positions[:, None] * 1e4 ** (-jnp.arange(half) / half)
    cos, sin = (turn(angles)[None, :, None] for turn in (jnp.cos, jnp.sin))
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x.dtype)


def attention(w: dict[str, Any], h: Any) -> Any:
    batch, length, _ = h.shape
    a = norm(h, w["gain"])
    q, k, v = ((a @ w[name]).reshape(batch, length, -1, SIZE) for name in "qkv")
    q, k = (rotary(each, jnp.arange(length)) for each in (q, k))
    k, v = (jnp.repeat(each, GROUPS, axis=2) for each in (k, v))
    scores = jnp.einsum("blhd,bthd->bhlt", q, k) / SIZE**0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e30)
    weights = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(h.dtype)
    o = jnp.einsum("bhlt,bthd->blhd", weights, v)
    return h + o.reshape(batch, length, -1) @ w["o"]


def arguments(dtype: Any) -> tuple[dict[str, Any], Any]:
    def normal(*shape: int) -> Any:
        return jnp.asarray(random.normal(size=shape) * 0.3, dtype)

    keys = HEADS // GROUPS * SIZE
    sizes = {"q": HEADS * SIZE, "k": keys, "v": keys}
    weights = {name: normal(WIDTH, size) for name, size in sizes.items()}
    return weights | {"o": normal(HEADS * SIZE, WIDTH), "gain": normal(WIDTH)}, normal(2, 6, WIDTH)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_what_is_rounded_between_is_one_operation(dtype: Any) -> None:
    made, exact = trace(attention, arguments(dtype)), trace(attention, arguments(jnp.float32))
    operations = [*re.findall(r"(rmsnorm|rotary|attend)\[", made.text)]
    assert operations == ["rmsnorm", "rotary", "rotary", "attend"]
    assert re.search(r"rmsnorm\[E, eps=1e-5\]\(h, gain\)", made.text)
    assert made.operations.get("softmax", 0) == made.operations.get("where", 0) == 0
    for name in ("rmsnorm", "rotary", "attend"):
        assert made.operations[name] == exact.operations[name]
    assert made.largest_relative_difference < (3e-2 if dtype is jnp.bfloat16 else 3e-3)


def test_a_norm_that_somebody_reads_in_f32_stays() -> None:
    def both(h: Any, gain: Any) -> Any:
        wide = h.astype(jnp.float32)
        normed = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-5)
        return normed, normed.astype(h.dtype) * gain

    shape = jax.ShapeDtypeStruct((4, 16), jnp.bfloat16)
    made = trace(both, (shape, jax.ShapeDtypeStruct((16,), jnp.bfloat16)))
    assert made.largest_relative_difference < 1e-2
    assert "convert[bf16](normed)" in made.text


def test_products_of_8_bit_floats() -> None:
    """Rows and weights in 8 bits with scales, as inference engines multiply them."""

    def product(x: Any, w: Any, scale: Any) -> Any:
        step = jnp.maximum(jnp.max(jnp.abs(x), axis=-1, keepdims=True), 1e-20) / 448.0
        rows = jnp.clip(x / step, -448.0, 448.0).astype(jnp.float8_e4m3fn)
        return jnp.einsum("be,ef->bf", rows, w, preferred_element_type=jnp.float32) * step * scale

    x, w = random.normal(size=(6, 16)), random.normal(size=(16, 8))
    made = trace(product, (x.astype(np.float32), jnp.asarray(w, jnp.float8_e4m3fn), np.ones(8, np.float32)))
    assert re.search(r"w: f8e4m3 \w+\?, scale: f32 \w\?\)", made.text)
    assert re.search(r": f32 \w+\? = \w+ @\[\w\] w\n", made.text)
    assert made.largest_relative_difference < 1e-5
