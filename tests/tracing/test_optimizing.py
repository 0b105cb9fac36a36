"""A function with the layouts that were found for it computes the same, and no chip receives more than by XLA's own."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from oracles.jax_functions import FUNCTIONS

from shardwright import DiagnosticError, explain, optimize, trace

SIZES = {"data": 2, "model": 4}


@pytest.fixture(scope="module")
def mesh() -> Any:
    return jax.make_mesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * 2)


def sharded(args: Any, mesh: Any, seed: int) -> Any:
    """The arguments, each split over axes drawn at random along dimensions that they divide."""
    drawn = random.Random(seed)

    def spec(shape: tuple[int, ...]) -> P:
        axes: list[str | None] = [None] * len(shape)
        for axis, n in SIZES.items():
            free = [at for at, size in enumerate(shape) if axes[at] is None and size % n == 0]
            if free and drawn.random() < 0.8:
                axes[drawn.choice(free)] = axis
        return P(*axes)

    return jax.tree.map(lambda a: jax.device_put(jnp.asarray(a), NamedSharding(mesh, spec(np.shape(a)))), args)


def received(function: Any, args: Any, mesh: Any) -> int:
    """Bytes of the module as compiled in this process, by the command that reads modules."""
    (func,) = explain(function, None, mesh, args=args).functions
    assert func.bytes_received is not None
    return func.bytes_received


NAMES = (
    "causal_convolution", "closed_over", "custom_gradient", "decode_step", "dense_experts", "gpt2_block", "greedy",
    "label_smoothing", "low_rank_cache", "mlp_gradient", "recurrence", "sgd_momentum", "sliding_window",
)  # fmt: skip


LESS = set(NAMES) - {"custom_gradient", "sgd_momentum"}
"""The functions that receive less at these shardings; the others receive the same."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NAMES)
def test_the_same_with_no_more_bytes(name: str, mesh: Any) -> None:
    function, args = FUNCTIONS[name]
    given = sharded(args, mesh, len(name))
    made = optimize(function, given, mesh, objective="bytes")
    expected, found = jax.tree.leaves(function(*args)), jax.tree.leaves(made(*given))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(np.asarray(b), np.asarray(a), atol=2e-6 * max(1.0, float(np.abs(a).max())))
    ours, plain = received(made, given, mesh), received(function, given, mesh)
    assert ours < plain if name in LESS else ours == plain


def test_shardings_of_arguments_and_of_the_function_are_demands(mesh: Any) -> None:
    def laid(*axes: Any) -> Any:
        return NamedSharding(mesh, P(*axes))

    def f(w: Any, x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x @ w, laid("data", "model")) * 2

    args = (jax.ShapeDtypeStruct((32, 64), "float32", sharding=laid(None, ("model", "data"))), jnp.ones((16, 32)))
    traced = trace(f, args, mesh=SIZES)
    assert "order model data" in traced.text
    assert traced.inputs[0][2].endswith("_{data,model}]")
    assert "_{data} " in traced.text
    jitted = jax.jit(lambda w, x: x @ w, in_shardings=(laid("data"), None), out_shardings=laid("model"))
    text = trace(jitted, (jnp.ones((32, 64)), jnp.ones((16, 32)))).text
    assert text.startswith("mesh data=2 model=4\n")
    assert "_{data} " in text
    assert "_{model} " in text


def test_a_loop_over_what_chips_divide(mesh: Any) -> None:
    def f(x: Any, w: Any) -> Any:
        return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, w)[0]

    w = jax.device_put(jnp.full((4, 16, 16), 0.1), NamedSharding(mesh, P("model")))
    made = optimize(f, (jnp.ones((8, 16)), w), mesh)
    np.testing.assert_allclose(made(jnp.ones((8, 16)), w), f(jnp.ones((8, 16)), w), rtol=1e-5)


def test_closed_over_weights_and_jit_around(mesh: Any) -> None:
    w = jnp.asarray(np.random.default_rng(1).normal(size=(16, 8)), jnp.float32)
    made = optimize(lambda tree: {"y": tree["x"] @ w, "z": tree["x"].sum()}, ({"x": jnp.ones((8, 16))},), SIZES)
    found = jax.jit(lambda tree: made(tree)["y"] + 1)({"x": jnp.ones((8, 16))})
    np.testing.assert_allclose(found, np.ones((8, 16)) @ w + 1, rtol=1e-5)
    with pytest.raises(ValueError, match="the function was optimized for"):
        made([jnp.ones((8, 16))])


def test_arguments_over_a_mesh_without_devices_in_bf16() -> None:
    """The mesh of the run has explicit axes, as `jax.make_mesh` makes them; rounding to bf16 is no other function."""
    abstract = jax.sharding.AbstractMesh(tuple(SIZES.values()), tuple(SIZES))

    def block(w: Any, v: Any, x: Any) -> Any:
        h = x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6)
        return x + jax.nn.silu(h @ w) @ v

    def array(*shape: int, spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=NamedSharding(abstract, spec))

    args = (
        array(64, 256, spec=P("data", "model")),
        array(256, 64, spec=P("model", "data")),
        array(16, 64, spec=P("data")),
    )
    step = optimize(block, args, jax.make_mesh(tuple(SIZES.values()), tuple(SIZES)), objective="bytes")
    given = [np.random.default_rng(0).normal(size=arg.shape).astype(jnp.bfloat16) for arg in args]
    difference = np.abs(np.asarray(step(*given), np.float32) - np.asarray(block(*given), np.float32))
    assert difference.max() < 0.05 * np.abs(np.asarray(block(*given), np.float32)).max()


def test_two_meshes_or_two_orders_are_refused(mesh: Any) -> None:
    other = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def laid(over: Any, *axes: Any) -> Any:
        return jax.ShapeDtypeStruct((8, 8), "float32", sharding=NamedSharding(over, P(*axes)))

    with pytest.raises(DiagnosticError, match="shardings name two meshes"):
        trace(lambda a, b: a + b, (laid(mesh, "data"), laid(other, "data")))
    with pytest.raises(DiagnosticError, match="split one dimension over data model in two orders"):
        trace(lambda a, b: a + b, (laid(mesh, ("data", "model")), laid(mesh, ("model", "data"))))


def test_a_mesh_that_contradicts_that_of_the_arguments(mesh: Any) -> None:
    x = jax.ShapeDtypeStruct((8, 8), "float32", sharding=NamedSharding(mesh.abstract_mesh, P("data")))
    with pytest.raises(DiagnosticError) as caught:
        optimize(jnp.tanh, (x,), {"data": 8, "model": 1})
    assert caught.value.render() == (
        "tanh: error: the arguments of tanh lie on the mesh data=2 model=4, and the mesh given is data=8 model=1"
        " [mesh-fit]\n"
        "note: data and model differ: give the mesh of the arguments"
    )


def test_arguments_of_another_shape_or_format_are_refused(mesh: Any) -> None:
    """The program has the sizes that it was traced at, 1/8 for a mean of 8 numbers say."""
    x = jnp.arange(128, dtype=jnp.float32).reshape(8, 16)
    made = optimize(lambda a: {"y": a["x"] - a["x"].mean(0)}, ({"x": x},), mesh)
    np.testing.assert_allclose(made({"x": x})["y"], x - x.mean(0), atol=1e-4)
    where = r"argument 0.x is float32\[16,16\], and the function was optimized for float32\[8,16\]"
    with pytest.raises(ValueError, match=where):
        made({"x": jnp.concatenate([x, x])})
    with pytest.raises(ValueError, match=where):
        jax.jit(made)({"x": jnp.concatenate([x, x])})
    with pytest.raises(ValueError, match=r"argument 0.x is bfloat16\[8,16\]"):
        made({"x": x.astype(jnp.bfloat16)})


def test_bytes_of_arguments_that_lie_nowhere(mesh: Any) -> None:
    """The plain function would run on one device, which is no layout over the mesh."""
    x, w = jnp.ones((8, 16)), jnp.ones((16, 8))
    made = optimize(lambda a, b: jnp.tanh(a @ b), (x, w), mesh, objective="bytes")
    assert not made.is_plain
    np.testing.assert_allclose(made(x, w), jnp.tanh(x @ w), rtol=1e-6)


def test_a_mesh_without_devices_is_given_those_there_are() -> None:
    over = jax.sharding.AbstractMesh(tuple(SIZES.values()), tuple(SIZES))
    made = optimize(jnp.tanh, (jnp.ones((8, 16)),), over)
    assert dict(made.mesh.shape) == SIZES
    np.testing.assert_allclose(made(jnp.ones((8, 16))), np.tanh(np.ones((8, 16))), rtol=1e-6)


@pytest.mark.parametrize("given", ["devices", "abstract", "bare"])
def test_constraints_that_name_axes_alone(given: str, mesh: Any) -> None:
    """The mesh is an argument, so the function needs no `jax.set_mesh` around it."""

    def moved(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x * 2, P(None, "model"))

    x: Any = jnp.arange(128, dtype=jnp.float32).reshape(8, 16)
    example = x
    if given != "bare":
        over = mesh if given == "devices" else mesh.abstract_mesh
        example = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(over, P("data")))
    made = optimize(moved, (example,), SIZES, objective="bytes")
    assert "_{model}" in made.traced.text
    np.testing.assert_array_equal(made(x), 2 * x)


def test_the_plain_function_with_constraints_that_name_axes_alone(mesh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is traced again when it runs, where nobody has set a mesh."""
    received = iter((0, 1))
    monkeypatch.setattr("shardwright.optimizing._bytes", lambda *_: next(received))
    x = jax.device_put(jnp.arange(128, dtype=jnp.float32).reshape(8, 16), NamedSharding(mesh, P("data")))
    made = optimize(lambda x: jax.lax.with_sharding_constraint(x * 2, P("data")), (x,), mesh, objective="bytes")
    assert made.is_plain
    np.testing.assert_array_equal(made(x), 2 * x)


def test_a_training_step_whose_shardings_are_types() -> None:
    """`jax.make_mesh` as it is: a gradient begins with a number that JAX lays over the mesh."""
    mesh = jax.make_mesh(tuple(SIZES.values()), tuple(SIZES))

    def step(w: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(lambda w: jnp.mean(jnp.abs(jnp.fft.rfft(jnp.tanh(x @ w))) ** 2))(w)
        return loss, w - 0.1 * gradient

    random = np.random.default_rng(0)
    w = jax.device_put(random.normal(size=(8, 6)).astype("f4"), NamedSharding(mesh, P()))
    x = jax.device_put(random.normal(size=(16, 8)).astype("f4"), NamedSharding(mesh, P("data")))
    for a, b in zip(jax.jit(step)(w, x), optimize(step, (w, x), mesh, objective="bytes")(w, x), strict=True):
        np.testing.assert_allclose(np.asarray(b), np.asarray(a), atol=1e-5)


EDGES = np.array([0.0, -0.0, 1.07, -2.5, 7.0, 1000.0, -3e9, 1e10, 1e30, np.inf, -np.inf, np.nan], "f4")
BYTES = np.array([-128, -127, -7, -1, 0, 1, 5, 127], "i1")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda x: jax.lax.rem(x, np.float32(3)), EDGES),
        (lambda x: jnp.fmod(x, 0.1), np.linspace(1000, 5000, 12, dtype="f4")),
        (lambda x: x % 0.1, np.linspace(1000, 5000, 12, dtype="f4")),
        (lambda x: x // 2.0, EDGES),
        (jnp.sign, EDGES),
        (lambda x: jax.lax.reduce_precision(x, 4, 3), EDGES),
        (lambda x: jax.lax.reduce_precision(x, 4, 3), EDGES.astype("bfloat16")),
        (jax.grad(lambda y: jnp.prod(y.reshape(3, 4), -1).sum()), EDGES[:8].repeat(2)[:12]),
        (lambda x: jax.lax.reshape(x.reshape(3, 4), (6, 2), (1, 0)), EDGES),
        (lambda a: a // 3, BYTES),
        (lambda a: a % 3, BYTES),
        (lambda a: a // -3, BYTES),
        (lambda a: a // 3, BYTES.view("u1")),
        (lambda a: jax.lax.shift_right_logical(a, np.int8(2)), BYTES),
        (lambda a: jax.lax.shift_right_logical(a, np.int16(3)), 255 * BYTES.astype("i2")),
        (lambda a: jax.lax.population_count(a) + jax.lax.clz(a), 255 * BYTES.astype("i2")),
        (lambda a: jax.lax.clz(a) * 10 + jax.lax.population_count(a), BYTES.view("u1")),
        (lambda a: a.reshape(2, 4) @ a.reshape(4, 2), BYTES),  # in int8, where it wraps around
    ],
)  # fmt: skip
def test_values_that_random_ones_do_not_meet(function: Callable[[Any], Any], given: Any) -> None:
    """Far from 0, infinite, not a number, of either sign: as JAX has them, bit by bit."""
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    made = np.asarray(optimize(function, (given,), mesh, "tpu-v5e")(given))
    wanted = np.asarray(jax.jit(function)(given))
    assert made.dtype == wanted.dtype
    np.testing.assert_allclose(made.astype("f8"), wanted.astype("f8"), rtol=2e-7)
