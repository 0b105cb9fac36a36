"""Functions at the sizes of real models are traced in seconds, compared at smaller sizes where they are alike."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from conftest import Outcome

from shardwright import trace

LAYERS, WIDTH, HIDDEN, HEADS = 80, 8192, 28672, 64


def shape(*sizes: int) -> Any:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def layer(h: Any, w: dict[str, Any]) -> Any:
    b, length, _ = h.shape
    q, k, v = (jnp.einsum("ble,ef->blf", h, w[name]).reshape(b, length, HEADS, -1) for name in "qkv")
    scores = jnp.einsum("blhd,bthd->bhlt", q, k) / q.shape[-1] ** 0.5
    o = jnp.einsum("bhlt,bthd->blhd", jax.nn.softmax(scores, -1), v)
    h = h + o.reshape(b, length, -1) @ w["o"]
    return h + jax.nn.silu(h @ w["up"]) @ w["down"]


def model(w: dict[str, Any], h: Any) -> Any:
    return jax.lax.scan(lambda h, each: (layer(h, each), None), h, w)[0]


SQUARE = shape(LAYERS, WIDTH, WIDTH)
WEIGHTS = {"up": shape(LAYERS, WIDTH, HIDDEN), "down": shape(LAYERS, HIDDEN, WIDTH)} | dict.fromkeys("qkvo", SQUARE)


def test_a_model_of_70_billion_numbers_is_compared_at_smaller_sizes() -> None:
    made = trace(model, (WEIGHTS, shape(4, 4096, WIDTH)))
    sizes = {dim.name: dim.size for dim in made.program.dims}
    assert {"B": 4, "D": 128, "E": WIDTH, "F": HIDDEN, "H": HEADS, "L": 4096, "N": LAYERS}.items() <= sizes.items()
    assert made.compared_at.keys() == sizes.keys()
    assert all(made.compared_at[name] <= sizes[name] for name in sizes)
    assert made.compared_at["H"] == HEADS  # the function reshapes to so many
    assert max(made.compared_at[name] for name in "BEFLN") < 40
    assert made.largest_relative_difference < 1e-4


def test_a_function_that_is_another_at_smaller_sizes_is_not_compared_there() -> None:
    def doubled(x: Any, w: Any) -> Any:
        y = x @ w
        return 2 * y if len(x) > 1000 else y

    made = trace(doubled, (shape(8192, 8192), shape(8192, 8192)))
    assert not made.compared_at
    assert math.isnan(made.largest_relative_difference)
    small = trace(doubled, (shape(1001, 16), shape(16, 16)))
    assert not small.compared_at
    assert small.largest_relative_difference < 1e-5


def test_a_function_that_stays_as_large_at_smaller_arguments_is_not_compared() -> None:
    traced = trace(lambda x: jnp.zeros((10**6, 10**6)) + x.sum(), (jnp.ones((4, 8)),))
    assert traced.not_compared == "the function takes long at these sizes, and is another at smaller ones"
    assert traced.compared_at == {}


def test_shardings_stay_at_smaller_sizes() -> None:
    mesh = jax.sharding.AbstractMesh((2, 4), ("data", "tp"))
    rows, columns = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("data",), (None, "tp")))

    def sharded(x: Any, w: Any) -> Any:
        return jnp.tanh(x @ w)

    args = [jax.ShapeDtypeStruct((8192, 8192), jnp.float32, sharding=each) for each in (rows, columns)]
    made = trace(sharded, args)
    assert "x: f32 [A_{data} B], w: f32 [B E_{tp}]" in made.text
    assert max(made.compared_at.values()) < 100
    assert made.largest_relative_difference < 1e-5


@pytest.mark.parametrize("kind", ["constraints", "jit", "explicit"])
def test_a_mesh_without_devices_says_where_values_lie(kind: str) -> None:
    """The function runs without what it says of that, so that it is compared all the same."""
    types = (jax.sharding.AxisType.Explicit if kind == "explicit" else jax.sharding.AxisType.Auto,) * 2
    mesh = jax.sharding.AbstractMesh((2, 4), ("data", "tp"), axis_types=types)
    over = [jax.NamedSharding(mesh, jax.P("data", *last)) for last in ((), ("tp",))]

    def constrained(x: Any, w: Any) -> Any:
        def layer(h: Any, w: Any) -> Any:
            return jax.lax.with_sharding_constraint(jnp.tanh(h @ w), over[1]), None

        return jax.lax.scan(layer, x, w)[0]

    def resharded(x: Any, w: Any) -> Any:
        return jax.sharding.reshard(x, over[0]) @ w[0]

    functions = {"constraints": constrained, "jit": jax.jit(constrained, out_shardings=over[0]), "explicit": resharded}
    made = trace(functions[kind], (shape(8, 16), shape(3, 16, 16)))
    assert made.not_compared == ""
    assert made.largest_relative_difference < 1e-5
    assert "_{data}" in made.text


FIXED = """
import jax
import jax.numpy as jnp


def fixed(x, w):
    return x.reshape(64, 128, 8192) @ w


def example_args():
    return jax.ShapeDtypeStruct((8192, 8192), jnp.float32), jax.ShapeDtypeStruct((8192, 8192), jnp.float32)
"""


@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_says_that_nothing_was_compared(
    tmp_path: Path, shardwright: Callable[..., Outcome], as_json: bool
) -> None:
    (tmp_path / "fixed.py").write_text(FIXED)
    option = ("--json",) if as_json else ()
    got = shardwright("trace", f"{tmp_path}/fixed.py:fixed", "-o", tmp_path / "fixed.shard", *option)
    assert got.status == 0
    if as_json:
        made = json.loads(got.out)
        assert (made["largest_relative_difference"], made["compared_at"]) == (None, None)
    else:
        said = "not compared: the function takes long at these sizes, and is another at smaller ones"
        assert got.out.splitlines()[-1] == said
