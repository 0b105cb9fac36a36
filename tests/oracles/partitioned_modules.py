"""Programs that XLA has partitioned, to be checked: functions of a model's parts under random shardings."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

jax = cast(Any, importlib.import_module("jax"))
jnp = cast(Any, importlib.import_module("jax.numpy"))

MESHES = ({"x": 2, "y": 4}, {"x": 4, "y": 2}, {"x": 2, "y": 2, "z": 2}, {"x": 8}, {"x": 8, "y": 1})


@dataclass(frozen=True)
class PartitionedModule:
    """An optimized module with its mesh, its results' shardings as HLO writes them, and for each parameter the global
    shape, the format and the sharding. `whole` is what it computes, on arrays that no mesh splits."""

    name: str
    text: str
    mesh: dict[str, int]
    results: list[str]
    arguments: list[tuple[tuple[int, ...], Any, Any]]
    whole: Any


def compiled_module(name: str, jitted: Any, args: Sequence[Any], mesh: Any, options: Any = None) -> PartitionedModule:
    """A jitted function compiled for the devices of its arguments, of shape and sharding alone."""
    compiled = jitted.lower(*args).compile(compiler_options=options)
    results = [
        str(sharding._to_xla_hlo_sharding(len(leaf.shape)))
        for sharding, leaf in zip(
            jax.tree.leaves(compiled.output_shardings), jax.tree.leaves(jax.eval_shape(jitted, *args)), strict=True
        )
    ]
    kept = sorted(compiled._executable._kept_var_idx)
    leaves = jax.tree.leaves(args)
    arguments = [(leaves[at].shape, leaves[at].dtype, leaves[at].sharding) for at in kept]

    def whole(*kept_leaves: Any) -> list[Any]:
        given = dict(zip(kept, kept_leaves, strict=True))
        filled = [given.get(at, np.zeros(leaf.shape, leaf.dtype)) for at, leaf in enumerate(leaves)]
        return jax.tree.leaves(
            getattr(jitted, "__wrapped__", jitted)(*jax.tree.unflatten(jax.tree.structure(args), filled))
        )

    return PartitionedModule(name, compiled.as_text(), dict(mesh.shape), results, arguments, whole)


def random_module(seed: int, devices: Sequence[Any], options: Any = None) -> PartitionedModule:
    """One of the families under random shardings of its arguments and, as often as not, of its results."""
    rng = random.Random(seed)
    sizes = rng.choice(MESHES)
    auto = (jax.sharding.AxisType.Auto,) * len(sizes)
    mesh = jax.sharding.Mesh(np.array(devices[:8]).reshape(tuple(sizes.values())), tuple(sizes), axis_types=auto)
    family = FAMILIES[seed % len(FAMILIES)]
    function, shapes = family(rng)

    def sharded(shape: tuple[int, ...], dtype: Any) -> Any:
        spec = random_spec(rng, shape, sizes)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=jax.sharding.NamedSharding(mesh, spec))

    args = [
        sharded(shape[:-1], shape[-1]) if isinstance(shape[-1], type) else sharded(shape, np.float32)
        for shape in shapes
    ]
    if seed % 3 == 0:
        function = _gradient(function, shapes)
    outs = jax.eval_shape(function, *args)
    shardings = None
    if rng.random() < 0.6:
        shardings = jax.tree.map(lambda o: jax.sharding.NamedSharding(mesh, random_spec(rng, o.shape, sizes)), outs)
    jitted = jax.jit(function, **({"out_shardings": shardings} if shardings is not None else {}))
    name = f"{family.__name__}{'_gradient' if seed % 3 == 0 else ''}_{seed}"
    return compiled_module(name, jitted, args, mesh, options)


def random_spec(rng: random.Random, shape: Sequence[int], sizes: dict[str, int]) -> Any:
    """Each axis on a dimension that it divides, or on none."""
    axes: list[list[str]] = [[] for _ in shape]
    left = list(shape)
    for axis in rng.sample(list(sizes), len(sizes)):
        fits = [at for at, n in enumerate(left) if n % sizes[axis] == 0 and n > 1]
        if fits and rng.random() < 0.8:
            at = rng.choice(fits)
            axes[at].append(axis)
            left[at] //= sizes[axis]
    return jax.sharding.PartitionSpec(*(tuple(each) if each else None for each in axes))


def _gradient(function: Callable[..., Any], shapes: Sequence[Any]) -> Callable[..., Any]:
    """By all arguments that are floats."""
    floats = tuple(at for at, shape in enumerate(shapes) if not isinstance(shape[-1], type))

    def loss(*args: Any) -> Any:
        return sum((leaf.astype(np.float32) ** 2).sum() for leaf in jax.tree.leaves(function(*args)))

    return jax.grad(loss, floats)


# ---------------------------------------------------------------- the families: a function and its arguments' shapes


def _norm(x: Any, g: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * g


def feedforward(rng: random.Random) -> tuple[Callable[..., Any], list[Any]]:
    activation = rng.choice([jax.nn.gelu, jax.nn.silu, jax.nn.relu, jnp.tanh])
    return lambda x, a, b: activation(x @ a) @ b, [(16, 8, 32), (32, 64), (64, 32)]


def gated(rng: random.Random) -> tuple[Callable[..., Any], list[Any]]:
    del rng
    return lambda x, a, b, c: x + (jax.nn.silu(x @ a) * (x @ b)) @ c, [(16, 32), (32, 64), (32, 64), (64, 32)]


def attention(rng: random.Random) -> tuple[Callable[..., Any], list[Any]]:
    causal = rng.random() < 0.5

    def function(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
        q, k, v = (jnp.einsum("ble,ehd->blhd", x, w) for w in (wq, wk, wv))
        s = jnp.einsum("blhd,bmhd->bhlm", q, k) / 4
        if causal:
            at = jnp.arange(s.shape[-1])
            s = jnp.where(at[:, None] >= at[None, :], s, -1e9)
        return jnp.einsum("blhd,hde->ble", jnp.einsum("bhlm,bmhd->blhd", jax.nn.softmax(s), v), wo)

    return function, [(8, 16, 32), (32, 8, 8), (32, 8, 8), (32, 8, 8), (8, 8, 32)]


def multiquery(rng: random.Random) -> tuple[Callable[..., Any], list[Any]]:
    del rng

    def function(x: Any, wq: Any, wk: Any, wv: Any, wo: Any) -> Any:
        b, t, _ = x.shape
        q, k, v = (x @ wq).reshape(b, t, 8, 16), x @ wk, x @ wv
        p = jax.nn.softmax(jnp.einsum("blhd,bmd->bhlm", q, k) / 4)
        return jnp.einsum("bhlm,bmd->blhd", p, v).reshape(b, t, 128) @ wo

    return function, [(8, 16, 32), (32, 128), (32, 16), (32, 16), (128, 32)]


def decode(rng: random.Random) -> tuple[Callable[..., Any], list[Any]]:
    at = rng.randrange(32)

    def function(x: Any, wq: Any, wk: Any, k: Any, v: Any) -> Any:
        q = jnp.einsum("be,ehd->bhd", x, wq)
        new = jnp.einsum("be,ehd->bhd", x, wk)
        k = jax.lax.dynamic_update_slice(k, new[:, None], (0, at, 0, 0))
        s = jnp.einsum("bhd,bthd->bht", q, k)
        s = jnp.where(jnp.arange(32) <= at, s, -1e9)
        return jnp.einsum("bht,bthd->bhd", jax.nn.softmax(s), v), k

    return function, [(8, 32), (32, 8, 16), (32, 8, 16), (8, 32, 8, 16), (8, 32, 8, 16)]


def layernorm(rng: random.Random) -> tuple[Callable[..., Any], list[Any]]:
    del rng
    return lambda x, g, w: _norm(_norm(x, g) @ w, g), [(16, 8, 32), (32,), (32, 32)]


def softmax_loss(rng: random.Random) -> tuple[Callable[..., Any], list[Any]]:
    del rng

    def function(x: Any, w: Any, labels: Any) -> Any:
        logits = jax.nn.log_softmax(x @ w)
        return -jnp.take_along_axis(logits, labels[:, None], 1).mean()

    return function, [(16, 32), (32, 64), (16, np.int32)]


def embedding(rng: random.Random) -> tuple[Callable[..., Any], list[Any]]:
    del rng
    return lambda table, ids, w: jax.nn.gelu(table[ids] @ w), [(64, 32), (8, 16, np.int32), (32, 16)]


def scanned(rng: random.Random) -> tuple[Callable[..., Any], list[Any]]:
    del rng

    def function(x: Any, a: Any, b: Any, g: Any) -> Any:
        def layer(x: Any, weights: Any) -> Any:
            a, b, g = weights
            return x + jax.nn.gelu(_norm(x, g) @ a) @ b, x.mean()

        return jax.lax.scan(layer, x, (a, b, g))

    return function, [(16, 32), (4, 32, 64), (4, 64, 32), (4, 32)]


def block(rng: random.Random) -> tuple[Callable[..., Any], list[Any]]:
    attend, shapes = attention(rng)

    def function(x: Any, wq: Any, wk: Any, wv: Any, wo: Any, g: Any, a: Any, b: Any) -> Any:
        y = _norm(x, g)
        return x + attend(y, wq, wk, wv, wo) + jax.nn.silu(y @ a) @ b

    return function, [*shapes, (32,), (32, 64), (64, 32)]


def experts(rng: random.Random) -> tuple[Callable[..., Any], list[Any]]:
    del rng

    def function(x: Any, gate: Any, a: Any, b: Any) -> Any:
        weights = jax.nn.softmax(x @ gate)
        h = jax.nn.gelu(jnp.einsum("te,nef->ntf", x, a))
        return jnp.einsum("ntf,nfe,tn->te", h, b, weights)

    return function, [(32, 32), (32, 8), (8, 32, 16), (8, 16, 32)]


def rearranged(rng: random.Random) -> tuple[Callable[..., Any], list[Any]]:
    order = rng.sample(range(3), 3)
    return lambda x, w: (x.transpose(order).reshape(16, -1) @ w).reshape(4, 4, 16), [(8, 16, 16), (128, 16)]


def pooled(rng: random.Random) -> tuple[Callable[..., Any], list[Any]]:
    kind = rng.choice([jnp.max, jnp.min, jnp.mean, jnp.sum])
    return lambda x, w: jnp.tanh(kind(x, axis=1) @ w) / (1e-3 + jnp.abs(x).max()), [(8, 16, 32), (32, 16)]


def normalized_quantized(rng: random.Random) -> tuple[Callable[..., Any], list[Any]]:
    del rng

    def function(x: Any, w: Any) -> Any:
        scale = jnp.abs(x).max(-1, keepdims=True) / 127
        return (jnp.round(x / scale) @ w) * scale

    return function, [(16, 64), (64, 32)]


def variance(rng: random.Random) -> tuple[Callable[..., Any], list[Any]]:
    del rng
    return lambda x, w: (jnp.var(x @ w, axis=0), jnp.linalg.norm(x), (x @ w).std()), [(32, 32), (32, 16)]


FAMILIES: list[Callable[[random.Random], tuple[Callable[..., Any], list[Any]]]] = [
    feedforward, gated, attention, multiquery, decode, layernorm, softmax_loss, embedding, scanned, block, experts,
    rearranged, pooled, normalized_quantized, variance,
]  # fmt: skip
