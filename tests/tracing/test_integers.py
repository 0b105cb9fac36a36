"""Integers over their whole range, which the draw between an example's least and greatest does not reach."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import Outcome
from jax import lax

from shardwright import DiagnosticError, advise, optimize, trace
from shardwright.backends.simulation.reference import evaluate

random = np.random.default_rng(0)


def whole_range(dtype: Any, *more: int) -> np.ndarray:
    """Numbers of a format, its ends and their neighbours among them, in no order."""
    info = np.iinfo(dtype)
    ends = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, *more]
    drawn = random.integers(info.min, info.max, 40, dtype=dtype, endpoint=True)
    return random.permutation(np.concatenate([np.array(ends, dtype), drawn]))


def check(function: Callable[..., Any], *given: np.ndarray) -> None:
    """A function traced at ones, where nothing gives a fault away, on other arguments."""
    made = trace(function, [jnp.ones_like(each) for each in given])
    assert made.largest_relative_difference < 1e-6
    wide = [each.astype(np.int32) if each.dtype in (np.uint8, np.int16) else each for each in given]
    (func,) = made.program.funcs
    args = dict(zip((value.name for value in func.params), wide, strict=True))
    results, _ = evaluate(made.program, func.name, args, precision="declared")
    wanted = jax.tree.leaves(function(*map(jnp.asarray, given)))
    for found, expected in zip(results, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(found).astype(np.int64), np.asarray(expected).astype(np.int64))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int8])
@pytest.mark.parametrize("which", ["div", "rem", "//", "%"])
def test_quotients_of_any_sign(which: str, dtype: Any) -> None:
    """But for what no quotient fits: by 0, and the least number by -1."""
    functions: dict[str, Any] = {"div": lax.div, "rem": lax.rem, "//": lambda a, b: a // b, "%": lambda a, b: a % b}
    divisors = [number for number in (3, 2, 7, -3, -2, -7) if number > 0 or dtype is not np.uint32]
    a, b = whole_range(dtype), whole_range(dtype, *divisors)[: len(whole_range(dtype))]
    fits = (b != 0) & ((a != np.iinfo(dtype).min) | (b != np.array(-1).astype(dtype)))
    check(functions[which], a[fits], b[fits])


@pytest.mark.parametrize("number", [3, 7, 128, -3, -128])
def test_quotients_by_a_number(number: int) -> None:
    check(lambda a: (a // number, a % number, lax.div(a, number), lax.rem(a, number)), whole_range(np.int32))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int8, np.uint8, np.int16])
def test_sorts(dtype: Any) -> None:
    check(lambda a: (jnp.sort(a), jnp.argsort(a), lax.top_k(a, 3)), whole_range(dtype))


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int8, np.uint8])
def test_the_least_and_the_greatest(dtype: Any) -> None:
    check(lambda a: (jnp.max(a), jnp.min(a), jnp.argmax(a), jnp.argmin(a)), whole_range(dtype))


def test_bools() -> None:
    given = np.array([True, False, True, True, False])
    check(lambda a: (jnp.sort(a), jnp.argsort(a)), given)
    check(lambda a: (jnp.max(a), jnp.min(a), jnp.argmax(a), jnp.argmin(a)), given)
    with pytest.raises(DiagnosticError, match="top_k chooses among bools"):
        trace(lambda a: lax.top_k(a, 2), (given,))


def test_the_greatest_of_one() -> None:
    check(
        lambda a: (jnp.argmax(a[:, :1], 1), jnp.argmin(jnp.zeros((4, 3), jnp.int32), 1) + a[:, 0]),
        np.ones((4, 2), np.int32),
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_formats_that_are_kept_wider_wrap_around(dtype: Any) -> None:
    a = whole_range(dtype)
    check(lambda a, b: (a + b, a - b, a * b, -a, a.astype(jnp.int32) * 3), a, random.permutation(a))
    check(lambda a: a.astype(dtype), whole_range(np.int32))


def test_optimized_functions_give_formats_as_they_are() -> None:
    made = optimize(lambda a: a.astype(jnp.uint8), (jnp.arange(16),), {"x": 2})
    found = made(jnp.arange(16) * 100 - 7)
    assert found.dtype == jnp.uint8
    np.testing.assert_array_equal(found, (np.arange(16) * 100 - 7).astype(np.uint8))


def test_keys_of_random_numbers_are_arguments() -> None:
    def dropped(key: Any, x: Any) -> Any:
        return jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0.0)

    def next_key(key: Any, x: Any) -> Any:
        first, second = jax.random.split(key)
        return first, jax.random.normal(second, x.shape) + x

    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    args = jax.random.key(3), jax.device_put(jnp.ones((8, 16)), jax.NamedSharding(mesh, jax.P("x")))
    for objective in ("time", "bytes"):
        np.testing.assert_array_equal(optimize(dropped, args, mesh, objective=objective)(*args), dropped(*args))
        key, drawn = optimize(next_key, args, mesh, objective=objective)(*args)
        assert key == jax.random.split(args[0])[0]
        np.testing.assert_allclose(drawn, next_key(*args)[1], rtol=1e-6)


def test_a_gradient_through_a_sort() -> None:
    def sorted_sum(x: Any) -> Any:
        return (jnp.sort(x, -1) * jnp.arange(8)).sum()

    made = trace(jax.grad(sorted_sum), (jnp.asarray(random.normal(size=(3, 8)), jnp.float32),))
    assert made.largest_relative_difference < 1e-6


def test_a_gradient_of_a_diagonal() -> None:
    """Which JAX writes for two platforms, the one with memory that nobody has written yet."""
    made = trace(jax.grad(lambda x: (jnp.diag(x) ** 2).sum()), (jnp.asarray(random.normal(size=(4, 4)), jnp.float32),))
    assert made.largest_relative_difference < 1e-6


def test_nothing_returned_is_refused() -> None:
    with pytest.raises(DiagnosticError, match="nothing returns no array"):
        trace(lambda x: (), (jnp.ones(3),), name="nothing")


def test_meshes_that_want_every_sharding_said() -> None:
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    table = jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(mesh, jax.P("x")))
    with pytest.raises(DiagnosticError, match="ShardingTypeError") as refused:
        advise(lambda table, ids: table[ids], (table, jnp.arange(4)))
    assert "axis_types=(AxisType.Auto,) * n" in refused.value.render()


def test_the_command_refuses_a_program_that_differs(tmp_path: Path, shardwright: Callable[..., Outcome]) -> None:
    (tmp_path / "f.py").write_text(
        "import jax, jax.numpy as jnp\nargs = (jnp.arange(6.0),)\n"
        "def differs(x):\n    return jax.pure_callback(lambda x: x, x, x)\n"
        "def f(x):\n    return x[jnp.arange(6) + 3]\n"
    )
    done = shardwright("trace", f"{tmp_path}/f.py:f", "--args", f"{tmp_path}/f.py:args", "-o", tmp_path / "f.shard")
    assert done.status == 1
    assert "differs from the function by" in done.err
    assert not (tmp_path / "f.shard").exists()
