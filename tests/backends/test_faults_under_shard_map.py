"""The checker of partitioned programs, of what somebody wrote under `shard_map`."""

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


@pytest.fixture(scope="module")
def mesh() -> Any:
    """Devices of this process, which functions are compiled for in it."""
    return jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)


@pytest.mark.parametrize("axis", ["a", "b"])
@pytest.mark.parametrize("after", [jnp.negative, jnp.tanh])
def test_a_sum_over_the_wrong_axis_that_somebody_wrote(axis: str, after: Callable[..., Any], mesh: Any) -> None:
    """A psum over `a` leaves the sum over `b` to be made, and that over `b` nothing."""

    def function(x: Any, w: Any) -> Any:
        return after(jax.lax.psum(x @ w, axis))

    specs = Spec("a", "b"), Spec("b")
    args = [
        jax.ShapeDtypeStruct((16, 16), np.float32, sharding=jax.sharding.NamedSharding(mesh, spec)) for spec in specs
    ]
    mapped = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=Spec("a"), check_vma=False)
    reasons = [fault.reason for fault in explain(mapped, args=args).functions[0].faults]
    waits = "the result is a sum that is still to be made over b"
    used = "tanh uses a sum over b as whole, which is still to be made: a reduction is missing before it"
    assert reasons == ([] if axis == "b" else [used if after is jnp.tanh else waits])


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("reduces", [True, False])
def test_a_sum_that_is_left_out_between_layers(layers: int, reduces: bool, mesh: Any) -> None:
    """A sum of each device's own addends is multiplied by the columns of the next layer's weight that it has."""

    def layer(x: Any, weights: Any) -> Any:
        y = jnp.tanh(x @ weights[0]) @ weights[1]
        return (jax.lax.psum(y, "b") if reduces else y), None

    def function(x: Any, w: Any, v: Any) -> Any:
        return jax.lax.scan(layer, x, (w, v))[0] if layers > 1 else layer(x, (w[0], v[0]))[0] @ w[0]

    specs, result = (Spec("a"), Spec(None, None, "b"), Spec(None, "b")), Spec("a") if layers > 1 else Spec("a", "b")
    args = [
        jax.ShapeDtypeStruct(shape, np.float32, sharding=jax.sharding.NamedSharding(mesh, spec))
        for shape, spec in zip([(16, 16), (layers, 16, 32), (layers, 32, 16)], specs, strict=True)
    ]
    mapped = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=result, check_vma=False)
    reasons = {fault.reason for fault in explain(mapped, args=args).functions[0].faults}
    assert reasons == (set() if reduces else {"takes blocks along b of a sum over b that is still to be made"})


ROWS_OVER_A, COLUMNS_OVER_A, BOTH = Spec("a"), Spec(None, "a"), Spec("a", "b")


MAPPED: list[tuple[Callable[[Any], Any], Any, Any, Any]] = [
    (jnp.exp, ROWS_OVER_A, COLUMNS_OVER_A, None),
    (jnp.exp, ROWS_OVER_A, COLUMNS_OVER_A, COLUMNS_OVER_A),
    (jnp.exp, Spec(("a", "b")), Spec(("b", "a")), Spec(("b", "a"))),
    (jnp.exp, ROWS_OVER_A, BOTH, BOTH),
    (lambda x: jax.lax.psum(x, "a"), BOTH, Spec("b"), Spec("b")),
    (lambda x: jax.lax.all_gather(x, "a", tiled=True), BOTH, BOTH, None),
    (lambda x: jax.lax.psum_scatter(x, "a", scatter_dimension=1, tiled=True), BOTH, BOTH, BOTH),
]
"""Functions of each device, their `in_specs` and `out_specs`, and where an array lies that is read with the result."""


@pytest.mark.parametrize(("function", "before", "after", "other"), MAPPED)
def test_blocks_that_shard_map_puts_elsewhere_are_not_accused(
    function: Callable[[Any], Any], before: Any, after: Any, other: Any, mesh: Any
) -> None:
    """`out_specs` may say another dimension, another order of axes, or an axis along which values are the same; so lies
    what the rest of the program reads, another array there and a sum over everything included."""
    mapped = jax.shard_map(function, mesh=mesh, in_specs=before, out_specs=after, check_vma=False)
    x = jax.ShapeDtypeStruct((64, 64), np.float32, sharding=jax.NamedSharding(mesh, before))
    args = [x]
    if other is not None:
        whole = jax.eval_shape(mapped, x)
        args.append(jax.ShapeDtypeStruct(whole.shape, np.float32, sharding=jax.NamedSharding(mesh, other)))

    def program(x: Any, *others: Any) -> Any:
        y = mapped(x)
        return (y * others[0], jnp.sum(y)) if others else y

    assert explain(program, args=args).functions[0].faults == ()
