"""Functions of JAX as others write them, with example arguments at small sizes. None imports anything of ours."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
B, L, E, H, D, F, V, N = 2, 8, 16, 4, 4, 24, 32, 3
_random = np.random.default_rng(0)


def example(*args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS[function.__name__] = (function, args)
        return function

    return add


def normal(*shape: int) -> Any:
    return jnp.asarray(_random.normal(size=shape) * 0.3, jnp.float32)


def ids(*shape: int, below: int = V) -> Any:
    made = np.asarray(_random.integers(0, below, shape), np.int32)
    made.flat[:2] = (0, below - 1)
    return jnp.asarray(made)


def rmsnorm(x: Any, g: Any) -> Any:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g


def layernorm(x: Any, g: Any, b: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * g + b


def rope(x: Any, positions: Any) -> Any:
    half = x.shape[-1] // 2
    angles = positions[..., None, None] / 10000 ** (jnp.arange(half) / half)
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * jnp.cos(angles) - b * jnp.sin(angles), b * jnp.cos(angles) + a * jnp.sin(angles)], -1)


def attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = jnp.einsum("blhd,bthd->bhlt", q, k) / q.shape[-1] ** 0.5
    return jnp.einsum("bhlt,bthd->blhd", jax.nn.softmax(jnp.where(mask, scores, -1e30), -1), v)


def llama_weights() -> dict[str, Any]:
    layers = {"wq": normal(N, E, H * D), "wk": normal(N, E, 2 * D), "wv": normal(N, E, 2 * D),
              "wo": normal(N, H * D, E), "w1": normal(N, E, F), "w2": normal(N, F, E), "w3": normal(N, E, F),
              "g1": normal(N, E), "g2": normal(N, E)}  # fmt: skip
    return {"embed": normal(V, E), "layers": layers, "norm": normal(E)}


def llama_layer(h: Any, w: Any) -> Any:
    b, n = h.shape[:2]
    at = jnp.arange(n)
    x = rmsnorm(h, w["g1"])
    q, k, v = (x @ w["wq"]).reshape(b, n, H, D), (x @ w["wk"]).reshape(b, n, 2, D), (x @ w["wv"]).reshape(b, n, 2, D)
    q, k = rope(q, at), jnp.repeat(rope(k, at), H // 2, axis=2)
    o = attention(q, k, jnp.repeat(v, H // 2, axis=2), at[:, None] >= at)
    h = h + o.reshape(b, n, H * D) @ w["wo"]
    x = rmsnorm(h, w["g2"])
    return h + (jax.nn.silu(x @ w["w1"]) * (x @ w["w3"])) @ w["w2"], None


@example(llama_weights(), ids(B, L))
def llama(w: Any, tokens: Any) -> Any:
    h = jax.lax.scan(llama_layer, w["embed"][tokens], w["layers"])[0]
    return rmsnorm(h, w["norm"]) @ w["embed"].T


def cross_entropy(w: Any, tokens: Any, labels: Any) -> Any:
    logits = jax.nn.log_softmax(llama(w, tokens))
    return -jnp.take_along_axis(logits, labels[..., None], -1).mean()


@example(llama_weights(), ids(B, L), ids(B, L))
def llama_gradient(w: Any, tokens: Any, labels: Any) -> Any:
    return jax.value_and_grad(cross_entropy)(w, tokens, labels)


_W = llama_weights()


@example(_W, jax.tree.map(jnp.zeros_like, _W), jax.tree.map(jnp.zeros_like, _W), jnp.int32(3), ids(B, L), ids(B, L))
@partial(jax.jit, donate_argnums=(0, 1, 2))
def adam_step(w: Any, mu: Any, nu: Any, count: Any, tokens: Any, labels: Any) -> Any:
    g = jax.grad(lambda w: cross_entropy(w, tokens, labels))(w)
    mu = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mu, g)
    nu = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, nu, g)
    c1, c2 = 1 - 0.9 ** (count + 1), 1 - 0.99 ** (count + 1)
    return jax.tree.map(lambda w, m, v: w - 1e-3 * (m / c1) / (jnp.sqrt(v / c2) + 1e-6), w, mu, nu), mu, nu, count + 1


@example(llama_weights(), ids(B, L))
def llama_remat(w: Any, tokens: Any) -> Any:
    return jax.lax.scan(jax.checkpoint(llama_layer), w["embed"][tokens], w["layers"])[0].sum(0)


@example([(normal(E, F), normal(F)), (normal(F, 4), normal(4))], normal(B, E), ids(B, below=4))
def mlp_gradient(params: Any, x: Any, labels: Any) -> Any:
    def loss(params: Any) -> Any:
        h = x
        for w, b in params:
            h = jnp.tanh(h @ w + b)
        return -(jax.nn.log_softmax(h) * jax.nn.one_hot(labels, 4)).sum(-1).mean()

    return jax.grad(loss)(params)


@example(normal(B, L, E), normal(E, 3 * E), normal(E, E), normal(E, F), normal(F, E), normal(E), normal(E))
def gpt2_block(x: Any, wqkv: Any, wo: Any, w1: Any, w2: Any, g: Any, b: Any) -> Any:
    q, k, v = (part.reshape(B, L, H, D) for part in jnp.split(layernorm(x, g, b) @ wqkv, 3, axis=-1))
    x = x + attention(q, k, v, jnp.tril(jnp.ones((L, L), bool))).reshape(B, L, E) @ wo
    return x + jax.nn.gelu(layernorm(x, g, b) @ w1) @ w2


@example(
    normal(B, 1, E), {"k": normal(B, 16, H, D), "v": normal(B, 16, H, D)}, jnp.int32(5), normal(E, E), normal(E, E)
)
def decode_step(x: Any, cache: Any, pos: Any, wq: Any, wkv: Any) -> Any:
    q, new = (x @ wq).reshape(B, 1, H, D), (x @ wkv).reshape(B, 1, H, D)
    k = jax.lax.dynamic_update_slice(cache["k"], new, (0, pos, 0, 0))
    v = jax.lax.dynamic_update_slice_in_dim(cache["v"], new * 2, pos, axis=1)
    return attention(q, k, v, jnp.arange(16) <= pos), {"k": k, "v": v}


@example(normal(B, E), normal(N, E, E), normal(N, B, 16, E), jnp.int32(3))
def decode_layers(x: Any, w: Any, cache: Any, pos: Any) -> Any:
    def layer(h: Any, of: Any) -> Any:
        w, c = of
        c = c.at[:, pos].set(h @ w)
        p = jax.nn.softmax(jnp.where(jnp.arange(16) <= pos, jnp.einsum("be,bte->bt", h, c), -jnp.inf))
        return h + jnp.einsum("bt,bte->be", p, c), c

    return jax.lax.scan(layer, x, (w, cache))


@example(normal(B, L, E), normal(E, 4), normal(4, E, F), normal(4, F, E))
def dense_experts(x: Any, router: Any, w1: Any, w2: Any) -> Any:
    best, chosen = jax.lax.top_k(jax.nn.softmax(x @ router), 2)
    gates = (jax.nn.one_hot(chosen, 4) * best[..., None]).sum(-2)
    return jnp.einsum(
        "blx,blxe->ble", gates, jnp.einsum("xfe,blxf->blxe", w2, jax.nn.relu(jnp.einsum("ble,xef->blxf", x, w1)))
    )


@example(normal(B, L, H, D), normal(B, L, H, D), normal(B, L, H, D))
def sliding_window(q: Any, k: Any, v: Any) -> Any:
    at = jnp.arange(L)
    return attention(q, k, v, (at[:, None] >= at) & (at[:, None] - at < 3))


@example(normal(B, L, H, D), normal(B, L, H, D), normal(B, L, H, D), normal(2 * L - 1, H))
def relative_bias(q: Any, k: Any, v: Any, table: Any) -> Any:
    bias = table[jnp.arange(L)[:, None] - jnp.arange(L) + L - 1]
    return jnp.einsum(
        "bhlt,bthd->blhd", jax.nn.softmax(jnp.einsum("blhd,bthd->bhlt", q, k) + bias.transpose(2, 0, 1)), v
    )


@example(normal(B, E), normal(L, B, E), normal(E, E), normal(E, E))
def recurrence(h: Any, xs: Any, w: Any, u: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        z = jax.nn.sigmoid(x @ w + h @ u)
        h = z * h + (1 - z) * jnp.tanh(x @ u)
        return h, h

    return jax.lax.scan(step, h, xs)


@example(normal(B, E), normal(L, B, E), normal(E, E), normal(E, E))
def recurrence_gradient(h: Any, xs: Any, w: Any, u: Any) -> Any:
    return jax.grad(lambda w, u: (recurrence(h, xs, w, u)[1] ** 2).mean(), argnums=(0, 1))(w, u)


@example(normal(B, L, E), normal(E, 6), normal(6, H * D), normal(6, H * D), normal(E, H * D))
def low_rank_cache(x: Any, down: Any, uk: Any, uv: Any, wq: Any) -> Any:
    c = x @ down
    q, k, v = ((y).reshape(B, L, H, D) for y in (x @ wq, c @ uk, c @ uv))
    return attention(q, k, v, jnp.tri(L, dtype=bool))


@example(normal(E, F), normal(E, F), normal(E, F))
def sgd_momentum(w: Any, m: Any, g: Any) -> Any:
    m = 0.9 * m + g * jnp.minimum(1.0, 1.0 / (jnp.sqrt((g**2).sum()) + 1e-6))
    return w - 0.1 * m, m


@example(normal(E, F), jnp.abs(normal(E)), jnp.abs(normal(F)), normal(E, F))
def adafactor(w: Any, row: Any, column: Any, g: Any) -> Any:
    row, column = 0.9 * row + 0.1 * (g * g).mean(1), 0.9 * column + 0.1 * (g * g).mean(0)
    return w - 0.1 * g * jax.lax.rsqrt(row[:, None] * column / row.mean() + 1e-6), row, column


@example(normal(E, E), normal(E, E))
def lion(w: Any, g: Any) -> Any:
    return w - 0.01 * jnp.sign(g) - 0.1 * jnp.clip(w, -0.1, 0.1)


@example(normal(8, E), normal(8, E))
def contrastive(a: Any, b: Any) -> Any:
    a, b = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (a, b))
    s = a @ b.T * 10
    return -(jnp.diag(jax.nn.log_softmax(s, 0)) + jnp.diag(jax.nn.log_softmax(s, 1))).mean()


@example(normal(B, L, E))
def rotary_pairs(x: Any) -> Any:
    a, b = x[..., ::2], x[..., 1::2]
    angles = jnp.arange(L)[:, None] * 0.1 ** jnp.arange(E // 2)
    return jnp.stack(
        [a * jnp.cos(angles) - b * jnp.sin(angles), a * jnp.sin(angles) + b * jnp.cos(angles)], -1
    ).reshape(B, L, E)


@example(normal(B, L, E), normal(4, E))
def causal_convolution(x: Any, w: Any) -> Any:
    padded = jnp.pad(x, ((0, 0), (3, 0), (0, 0)))
    return jax.nn.silu(sum(padded[:, i : i + L] * w[i] for i in range(4)))


@example(normal(B, V), ids(B))
def label_smoothing(logits: Any, labels: Any) -> Any:
    logp = jax.nn.log_softmax(logits)
    return jnp.mean(-0.9 * logp[jnp.arange(B), labels] - 0.1 * logp.mean(-1))


@example(normal(B, L, E), normal(2, E, E))
def cumulative(x: Any, w: Any) -> Any:
    return jnp.cumsum(x @ w[0], axis=1) / (1 + jnp.arange(L))[:, None] + jnp.flip(x, 1) @ w[1]


@example(normal(B, L, E), normal(B, L, E), normal(E))
def custom_gradient(x: Any, y: Any, g: Any) -> Any:
    @jax.custom_vjp
    def scaled(x: Any) -> Any:
        return jnp.sin(x) * 2

    scaled.defvjp(lambda x: (scaled(x), x), lambda x, dy: (jnp.cos(x) * dy * 2,))
    return jax.grad(lambda x: (scaled(x) * y * g).sum())(x)


@example(normal(B, V))
def greedy(logits: Any) -> Any:
    best = jnp.argmax(logits, -1)
    return best, jnp.sort(logits, -1), jax.nn.one_hot(best, V)


_MASK = np.tri(L, k=2, dtype=np.float32) - 0.25


@example(normal(B, L, L), ids(B, L, below=L))
def closed_over(x: Any, at: Any) -> Any:
    return jnp.take_along_axis(x * _MASK + jnp.logaddexp(x, 0.0), at[..., None], 2)[..., 0]


@example(normal(L, E), normal(E, F), normal(F, E), ids(L, below=4))
def segment_means(x: Any, w1: Any, w2: Any, group: Any) -> Any:
    y = jax.nn.gelu(x @ w1, approximate=False) @ w2
    return jax.ops.segment_sum(y, group, 4) / jnp.maximum(jax.ops.segment_sum(jnp.ones(L), group, 4), 1)[:, None]
