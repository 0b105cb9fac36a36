"""Where collectives come from that compilers write without saying so, as those of several merged ones."""

from __future__ import annotations

from shardwright.backends.hlo.collectives import collectives_of
from shardwright.backends.hlo.faults import Fault, faults_of
from shardwright.backends.hlo.module import HloModule, SourceFrame, parse

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
    """As of what XLA for GPUs merges into one buffer."""
    module = parse(MERGED.replace("PATH", "shard_map/psum"))
    (collective,) = collectives_of(module)
    assert (collective.op_name, collective.stack) == ("jit(step)/shard_map/psum", (SourceFrame("step.py", 9),))
    assert told(module) == []


def test_or_else_the_operation_that_it_reduces_by() -> None:
    """As of the all-reduces that libtpu writes in place of reduce-scatters."""
    module = parse(MERGED.replace("bitcast(%own)", "tanh(%own)"))
    (collective,) = collectives_of(module)
    assert (collective.op_name, collective.stack) == ("psum", (SourceFrame("step.py", 4),))
    assert told(module) == []


def test_what_nobody_wrote_by_hand_is_checked_and_has_its_place() -> None:
    module = parse(MERGED.replace("PATH", "dot_general"))
    reason = "sums equal addends over model, 4 of each: it waits for no sum"
    assert told(module) == [(reason, (SourceFrame("step.py", 9),))]
    nowhere = parse("\n".join(line.partition(", metadata")[0] for line in MERGED.splitlines()))
    assert faults_of(nowhere, MESH) == [Fault("start", reason, ())]
    assert [(each.op_name, each.stack) for each in collectives_of(nowhere)] == [("", ())]
