"""Modules that XLA for GPUs makes of right programs, and wrong ones that are close to them."""

from __future__ import annotations

import pytest

from shardwright.backends.hlo.faults import faults_of
from shardwright.backends.hlo.module import parse

STACKED = """HloModule stacked, num_partitions=8

%part (own: f32[16,8]) -> f32[4,32] {
  %own = f32[16,8]{1,0} parameter(0)
  %apart = f32[4,4,8]{2,1,0} bitcast(%own)
  %turned = f32[4,4,8]{2,1,0} transpose(%apart), dimensions={1,0,2}
  ROOT %rows = f32[4,32]{1,0} bitcast(%turned)
}

ENTRY %main (x: f32[4,8]) -> f32[4,32] {
  %x = f32[4,8]{1,0} parameter(0), sharding={devices=[2,4]<=[8]}
  %start = (f32[4,8]{1,0}, f32[16,8]{1,0}) all-gather-start(%x), replica_groups=[2,4]<=[8], dimensions={0}
  %all = f32[16,8]{1,0} all-gather-done(%start)
  ROOT %whole = f32[4,32]{1,0} fusion(%all), kind=kLoop, calls=%part
}
"""


@pytest.mark.parametrize(
    ("was", "now", "reasons"),
    [
        ("", "", []),
        ("dimensions={1,0,2}", "dimensions={0,1,2}",
         ["the result has other blocks of dimension 0 than its sharding says, along data"]),
        ("bitcast(%own)", "custom-call(%own)", ["gathers blocks of dimension 1 over model in dimension 0"]),
    ],
)  # fmt: skip
def test_blocks_gathered_outermost_that_go_where_they_belong(was: str, now: str, reasons: list[str]) -> None:
    module = parse(STACKED.replace(was, now) if was else STACKED)
    results = ["{devices=[2,1,4]<=[8] last_tile_dim_replicate}"]
    assert [fault.reason for fault in faults_of(module, {"data": 2, "model": 4}, results)] == reasons


MERGED = """HloModule merged, num_partitions=4

ENTRY %main (x: f32[6,5], a: f32[5,8,4], b: f32[5,8,4], c: f32[6,8,4]) -> f32[6,8,4] {
  %x = f32[6,5] parameter(0), sharding={replicated}
  %a = f32[5,8,4] parameter(1), sharding={devices=[1,1,4]<=[4]}
  %b = f32[5,8,4] parameter(2), sharding={devices=[1,1,4]<=[4]}
  %c = f32[6,8,4] parameter(3), sharding={devices=SHARDED}
  %left = f32[5,32] bitcast(%a)
  %right = f32[5,32] bitcast(%b)
  %both = f32[5,64] concatenate(%left, %right), dimensions={1}
  %products = f32[6,64] dot(%x, %both), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %own = f32[6,32] slice(%products), slice={[0:6], [32:64]}
  %heads = f32[6,8,4] bitcast(%own)
  ROOT %sum = f32[6,8,4] add(%heads, %c)
}
"""


@pytest.mark.parametrize(
    ("sharding", "reasons"),
    [
        ("[1,1,4]<=[4]", []),
        ("[1,4,1]<=[4]", ["joins different blocks of dimension 1, along x: whole and split along x"]),
    ],
)
def test_a_part_of_products_that_are_made_in_one(sharding: str, reasons: list[str]) -> None:
    """Weights that are split along the inner of two dimensions, added to a sum that is split so, or otherwise."""
    module = parse(MERGED.replace("SHARDED", sharding))
    assert [fault.reason for fault in faults_of(module, {"x": 4})] == reasons


SIDE_BY_SIDE = """HloModule both, num_partitions=4

ENTRY %main (a: f32[4], b: f32[1], c: f32[8,4], d: f32[16,2]) -> (f32[1], f32[16,2]) {
  %a = f32[4] parameter(0), sharding={devices=[4]<=[4]}
  %b = f32[1] parameter(1), sharding={replicated}
  %c = f32[8,4] parameter(2), sharding={devices=[1,4]<=[4]}
  %d = f32[16,2] parameter(3), sharding={devices=[1,4]<=[4]}
  %few = f32[5] concatenate(%a, %b), dimensions={0}
  %one = f32[1] slice(%few), slice={[4:5]}
  %left = f32[32] bitcast(%c)
  %right = f32[32] bitcast(%d)
  %many = f32[64] concatenate(%left, %right), dimensions={0}
  %own = f32[32] slice(%many), slice={[32:64]}
  %back = f32[16,2] bitcast(%own)
  ROOT %both = (f32[1], f32[16,2]) tuple(%one, %back)
}
"""


def test_parts_of_one_message_of_several_values() -> None:
    """One of them is whole, and blocks of others are of an inner dimension."""
    results = ["{replicated}", "{devices=[1,4]<=[4]}"]
    assert faults_of(parse(SIDE_BY_SIDE), {"x": 4}, results) == []
