"""Where collectives come from that compilers write without saying so, as those of several merged ones."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

import numpy as np
import pytest

from shardwright import explain
from shardwright.backends.hlo.collectives import collectives_of
from shardwright.backends.hlo.faults import Fault, faults_of
from shardwright.backends.hlo.module import HloModule, SourceFrame, parse

jax = cast(Any, import_module("jax"))
MESH = {"data": 2, "model": 4}
MERGED = """HloModule merged, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0), metadata={op_name="psum"}
  %b = f32[] parameter(1), metadata={op_name="psum"}
  ROOT %sum = f32[] add(%a, %b), metadata={op_name="add" source_file="step.py" source_line=4}
}

%part (both: f32[24]) -> f32[8] {
  %both = f32[24]{0} parameter(0)
  ROOT %slice = f32[8]{0} slice(%both), slice={[0:8]}
}

ENTRY %main (x: f32[24]) -> f32[2,4] {
  %x = f32[24]{0} parameter(0), sharding={replicated}
  %start = f32[24]{0} all-reduce-start(%x), replica_groups=[2,4]<=[8], to_apply=%add
  %done = f32[24]{0} all-reduce-done(%start)
  %own = f32[8]{0} fusion(%done), kind=kLoop, calls=%part
  ROOT %r = f32[2,4]{1,0} bitcast(%own), metadata={op_name="jit(step)/PATH" source_file="step.py" source_line=9}
}
"""


def told(module: HloModule) -> list[tuple[str, tuple[SourceFrame, ...]]]:
    return [(fault.reason, fault.stack) for fault in faults_of(module, MESH)]


def test_what_takes_the_results_apart_says_it() -> None:
    """XLA for GPUs merges values into one buffer, which has no line of its own."""
    module = parse(MERGED.replace("PATH", "shard_map/psum"))
    (collective,) = collectives_of(module)
    assert (collective.op_name, collective.stack) == ("jit(step)/shard_map/psum", (SourceFrame("step.py", 9),))
    assert told(module) == []


@pytest.mark.parametrize("path", ["psum", "while/body/closed_call/reduce_scatter"])
def test_or_else_the_operation_that_it_reduces_by(path: str) -> None:
    """libtpu writes all-reduces without a line in place of reduce-scatters, whose path begins within loops and
    conditionals."""
    module = parse(MERGED.replace("bitcast(%own)", "tanh(%own)").replace('"psum"', f'"{path}"'))
    (collective,) = collectives_of(module)
    assert (collective.op_name, collective.stack) == (path, (SourceFrame("step.py", 4),))
    assert told(module) == []


def test_what_nobody_wrote_by_hand_is_checked_and_has_its_place() -> None:
    module = parse(MERGED.replace("PATH", "dot_general"))
    reason = "sums equal addends over model, 4 of each: it waits for no sum"
    assert told(module) == [(reason, (SourceFrame("step.py", 9),))]
    nowhere = "\n".join(line.partition(", metadata")[0] for line in MERGED.splitlines())
    assert faults_of(parse(nowhere), MESH) == [Fault("start", reason, ())]
    place = 'metadata={source_file="step.py" source_line=2}'
    made = parse(nowhere.replace("parameter(0), sharding", f"parameter(0), {place}, sharding"))
    assert told(made) == [(reason, (SourceFrame("step.py", 2),))]
    (collective,) = collectives_of(made)
    assert (collective.op_name, collective.stack, collective.made_by) == ("", (), (SourceFrame("step.py", 2),))


def swapped(block: Any) -> Any:
    """The other half of what a gather brings."""
    both = jax.lax.all_gather(block, "a", tiled=True)
    return jax.lax.dynamic_slice_in_dim(both, (1 - jax.lax.axis_index("a")) * len(block), len(block))


def turned(block: Any) -> Any:
    """Each device's rows the other way round, between two exchanges that undo each other."""
    across = jax.lax.all_to_all(block, "a", 1, 0, tiled=True)
    return jax.lax.all_to_all(across[::-1], "a", 0, 1, tiled=True)


@pytest.mark.parametrize("moving", [swapped, turned])
def test_blocks_that_somebody_moves_by_hand_lie_as_is_meant(moving: Callable[[Any], Any]) -> None:
    mesh = jax.make_mesh((2,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    function = jax.jit(jax.shard_map(moving, mesh=mesh, in_specs=jax.P("a"), out_specs=jax.P("a")))
    array = jax.ShapeDtypeStruct((8, 8), np.dtype("f4"), sharding=jax.NamedSharding(mesh, jax.P("a")))
    (func,) = explain(function, args=[array]).functions
    assert (func.bytes_received, func.faults) == (128, ())


def test_what_lowers_a_function_is_no_line_of_it() -> None:
    """Nothing but the library and the callers of `explain` is in the text of a library's function."""
    mesh = jax.sharding.AbstractMesh((2, 4), ("data", "model"))
    x = jax.ShapeDtypeStruct((64, 64), np.float32, sharding=jax.NamedSharding(mesh, jax.P(None, "data")))
    w = jax.ShapeDtypeStruct((64, 64), np.float32, sharding=jax.NamedSharding(mesh, jax.P("data")))
    (collective,) = explain(import_module("jax.numpy").dot, "cpu", args=[x, w]).functions[0].collectives
    assert (collective.op, collective.source) == ("all_reduce", None)
