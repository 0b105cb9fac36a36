"""The letters of dimensions: one for each role in attention, the same in every layer, and none that nothing has."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwright import trace

LAYERS, HEADS, GROUPS, SIZE, WIDTH, HIDDEN, VOCABULARY = 2, 4, 2, 6, 20, 28, 11
random = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return jnp.asarray(random.normal(size=shape), jnp.float32) * 0.3


def layer() -> dict[str, Any]:
    return {
        "q": normal(WIDTH, HEADS * SIZE), "k": normal(WIDTH, HEADS // GROUPS * SIZE),
        "v": normal(WIDTH, HEADS // GROUPS * SIZE), "o": normal(HEADS * SIZE, WIDTH),
        "gate": normal(WIDTH, HIDDEN), "up": normal(WIDTH, HIDDEN), "down": normal(HIDDEN, WIDTH),
    }  # fmt: skip


def block(h: Any, w: dict[str, Any]) -> Any:
    b, length, _ = h.shape
    q, k, v = ((h @ w[name]).reshape(b, length, -1, SIZE) for name in "qkv")
    k, v = (jnp.repeat(each, GROUPS, axis=2) for each in (k, v))
    scores = jnp.einsum("blhd,bthd->bhlt", q, k) / SIZE**0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e30)
    o = jnp.einsum("bhlt,bthd->blhd", jax.nn.softmax(scores, -1), v)
    h = h + o.reshape(b, length, -1) @ w["o"]
    return h + (jax.nn.silu(h @ w["gate"]) * (h @ w["up"])) @ w["down"]


def model(weights: dict[str, Any], ids: Any) -> Any:
    h = weights["table"][ids]
    for each in weights["layers"]:
        h = block(h, each)
    return h @ weights["table"].T


def test_grouped_queries_layer_by_layer() -> None:
    weights = {"layers": [layer() for _ in range(LAYERS)], "table": normal(VOCABULARY, WIDTH)}
    made = trace(model, (weights, jnp.ones((3, 5), jnp.int32) * 4), name="model")
    assert made.largest_relative_difference < 1e-5
    assert made.text.count("attend[T, D, causal=L, scale=") == made.text.count("split[H -> KG]") == LAYERS
    sizes = {dim.name: dim.size for dim in made.program.dims}
    wanted = {"B": 3, "D": SIZE, "E": WIDTH, "F": HIDDEN, "G": GROUPS, "H": HEADS, "K": 2, "L": 5, "T": 5, "V": 11}
    assert wanted.items() <= sizes.items()
    others = sorted(sizes[name] for name in sizes.keys() - wanted.keys())
    assert others == [HEADS // GROUPS * SIZE, HEADS * SIZE]  # what heads are cut from
    assert "+ 0" not in made.text


def test_scanned_over_stacked_weights() -> None:
    each = [layer() for _ in range(LAYERS)]
    stacked = {name: jnp.stack([w[name] for w in each]) for name in each[0]}

    def scanned(weights: Any, h: Any) -> Any:
        return jax.lax.scan(lambda h, w: (block(h, w), None), h, weights)[0]

    made = trace(scanned, (stacked, normal(3, 5, WIDTH)), name="scanned")
    assert made.largest_relative_difference < 1e-5
    assert "loop[N as" in made.text
    assert re.search(r"attend\[T, D, causal=L", made.text)
    assert {"B", "D", "E", "F", "G", "H", "K", "L", "N", "T"} <= {dim.name for dim in made.program.dims}


def test_one_size_in_every_role() -> None:
    """Sizes say nothing of roles: all of them are 4 here."""

    def attention(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("blhd,bthd->bhlt", q, k)
        return jnp.einsum("bhlt,bthd->blhd", jax.nn.softmax(scores, -1), v)

    made = trace(attention, tuple(normal(4, 4, 4, 4) for _ in range(3)), name="attention")
    assert made.largest_relative_difference < 1e-5
    assert "attend[T, D](" in made.text
    assert {name: text.split()[1] for _, name, text in made.inputs}["k"].replace("?", "") in {"BTHD", "BTKD"}


def test_heads_are_what_projections_make() -> None:
    """Whatever order a product leaves them in: a batch comes with the positions, heads with the size of a head."""

    def attention(p: dict[str, Any], x: Any) -> Any:
        q, k, v = (jnp.einsum("bte,ehd->bhtd", x, p[name]) for name in "qkv")
        return jnp.einsum("bhtd,hde->bte", jax.nn.softmax(q @ k.swapaxes(-1, -2), -1) @ v, p["o"])

    weights = {name: normal(WIDTH, HEADS, SIZE) for name in "qkv"} | {"o": normal(HEADS, SIZE, WIDTH)}
    made = trace(attention, (weights, normal(3, 5, WIDTH)))
    sizes = {dim.name: dim.size for dim in made.program.dims}
    assert {"B": 3, "L": 5, "H": HEADS, "D": SIZE, "T": 5}.items() <= sizes.items()
    assert made.program.func("attention").params[-1].shape.names[:2] == ("B", "L")
