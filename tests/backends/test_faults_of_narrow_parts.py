"""The checker of partitioned programs, of right ones: where devices have one row each, windows, and stacked blocks."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import numpy as np
import pytest

from shardwright import explain

jax = cast(Any, import_module("jax"))
jnp = cast(Any, import_module("jax.numpy"))

Spec = jax.sharding.PartitionSpec


def told(function: Callable[[Any], Any], shape: tuple[int, int], spec: Any, result: Any = None) -> list[str]:
    """Faults of a function of an array on eight devices, whose numbers are held against one device's before."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    whole = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    x = jax.device_put(whole, jax.NamedSharding(mesh, spec))
    jitted = jax.jit(function, out_shardings=result and jax.NamedSharding(mesh, result))
    np.testing.assert_allclose(jitted(x), jax.jit(function)(whole), rtol=1e-4, atol=1e-4)
    return [fault.reason for fault in explain(jitted, args=[x]).functions[0].faults]


@pytest.mark.parametrize("rows", [8, 16])
def test_sums_of_windows_are_no_addends(rows: int) -> None:
    """XLA gathers, and each device sums the rows up to its own."""
    assert told(lambda x: jnp.tanh(jnp.cumsum(x, 0)), (rows, 16), Spec("a")) == []


@pytest.mark.parametrize("columns", [8, 16])
def test_the_index_of_a_maximum_lies_where_the_maximum_does(columns: int) -> None:
    assert told(lambda x: jnp.argmax(x, 0), (24, columns), Spec(None, "a"), Spec("a")) == []


@pytest.mark.parametrize("rows", [8, 16])
def test_a_row_of_each_device_written_at_its_own_place(rows: int) -> None:
    assert told(lambda x: jax.lax.dynamic_update_slice(x, x[:3] * 2, (5, 0)), (rows, 16), Spec("a")) == []


def test_blocks_of_a_dimension_that_is_stacked_and_merged() -> None:
    """Which of the two arrays a device has says its place as well as the block does."""
    assert told(lambda x: jnp.stack([x, -x]).reshape(32, 16), (16, 16), Spec("a"), Spec("a")) == []
