"""What XLA for GPUs writes of right programs, and near it what is wrong."""

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
