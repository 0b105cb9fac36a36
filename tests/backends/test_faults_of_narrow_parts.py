"""The checker of partitioned programs where devices have one row each or half of one, windows, and stacked blocks."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import numpy as np
import pytest

from shardwright import explain
from shardwright.backends.hlo.faults import faults_of
from shardwright.backends.hlo.module import parse

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


WINDOWS = """HloModule windows, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (x: f32[1]) -> f32[32] {
  %x = f32[1]{0} parameter(0), sharding={devices=[8]<=[8]}
  %one = f32[] reshape(%x)
  %four_times = f32[4]{0} broadcast(%one), dimensions={}
  %all = f32[32]{0} all-gather(%four_times), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  %zero = f32[] constant(0)
  %padded = f32[39]{0} pad(%all, %zero), padding=7_0
  %device = u32[] partition-id()
  %held = u32[] constant(4)
  %first = u32[] multiply(%device, %held)
  %own = f32[11]{0} dynamic-slice(%padded, %first), dynamic_slice_sizes={11}
  %sums = f32[4]{0} reduce-window(%own, %zero), window={size=8}, to_apply=%add
  ROOT %result = f32[32]{0} all-gather(%sums), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
}
"""


def test_windows_of_repeated_rows_that_are_padded_differ() -> None:
    """Cumulative sums of how many tokens each expert has, gathered from devices that have some of the experts each."""
    assert faults_of(parse(WINDOWS), {"a": 8}) == []


PARTED = """HloModule parted, num_partitions=8

ENTRY %main (x: f32[2,4]) -> f32[1,2,4] {
  %x = f32[2,4]{1,0} parameter(0), sharding={devices=[8,1]<=[2,2,2]T(0,2,1)}
  %t = f32[2,4]{1,0} tanh(%x), metadata={op_name="jit(f)/tanh"}
  ROOT %parted = f32[1,2,4]{2,1,0} bitcast(%t), metadata={op_name="jit(f)/tanh"}
}
"""


@pytest.mark.parametrize(("order", "reasons"), [("[2,2,2]T(0,2,1)", 0), ("[8]", 1)])
def test_rows_that_are_parted_under_the_name_of_another_operation(order: str, reasons: int) -> None:
    """Each device has half of a row of the result, and no name says that a program parted them."""
    found = faults_of(parse(PARTED), {"x": 2, "y": 2, "z": 2}, [f"{{devices=[4,2,1]<={order}}}"])
    assert len(found) == reasons
    assert all(fault.reason.startswith("the result has other blocks of dimension 1") for fault in found)


DIAGONAL = """HloModule diagonal, num_partitions=8

ENTRY %main (x: f32[16,2]) -> f32[2,2] {
  %x = f32[16,2]{1,0} parameter(0), sharding={devices=[1,8]<=[8]}
  %device = u32[] partition-id()
  %held = u32[] constant(2)
  %first = u32[] multiply(%device, %held)
  %zero = u32[] constant(0)
  ROOT %own = f32[2,2]{1,0} dynamic-slice(%x, %first, %zero), dynamic_slice_sizes={2,2}
}
"""


def test_rows_taken_of_columns_along_the_same_axis() -> None:
    """No loop takes the others in turn, and nobody has the blocks beside the diagonal."""
    (fault,) = faults_of(parse(DIAGONAL), {"x": 8})
    assert fault.reason == "splits along x what differs along x already"
