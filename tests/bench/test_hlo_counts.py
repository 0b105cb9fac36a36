"""The counter of collectives: on modules written by hand, and on what XLA makes of the feedforward layers."""

from __future__ import annotations

import pytest
from hlo_counts import UncountableError, count

MODULE = """HloModule jit_f, is_scheduled=true, num_partitions=8

%add (x: f16[], y: f16[]) -> f16[] {{
  %x = f16[] parameter(0)
  %y = f16[] parameter(1)
  ROOT %sum = f16[] add(%x, %y)
}}
{called}
ENTRY %main (p: f16[8,16]) -> f16[8,16] {{
  %p = f16[8,16]{{1,0}} parameter(0), sharding={{devices=[1,8]<=[8]}}
{body}
}}
"""


def module(body: str, called: str = "") -> str:
    return MODULE.format(body=body, called=called)


@pytest.mark.parametrize(
    ("line", "kind", "nbytes"),
    [
        ("f16[8,64]{1,0} all-gather(%p), replica_groups=[2,4]<=[8], dimensions={1}", "all-gather", 768),
        ("f16[8,64]{0,1} all-gather(f16[8,16]{1,0} %p), replica_groups={{0,1,2,3},{4,5,6,7}}", "all-gather", 768),
        ("f16[8,16]{1,0} all-reduce(%p), replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add", "all-reduce", 256),
        ("f16[8,2]{1,0} reduce-scatter(%p), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add", "reduce-scatter", 224),
        ("(f16[4,16]{1,0}, f16[4,16]{1,0}) all-to-all(%p, %p), replica_groups={{0,1},{2,3}}", "all-to-all", 128),
        ("f16[8,16]{1,0} all-to-all(%p), replica_groups=[1,8]<=[8], dimensions={1}", "all-to-all", 224),
        ("f16[8,16]{1,0} collective-permute(%p), source_target_pairs={{0,0},{1,2},{2,1}}", "collective-permute", 256),
        ("(f16[8,16]{1,0}, f16[8,32]{1,0}) all-gather-start(%p), replica_groups=[4,2]<=[8]", "all-gather", 256),
        ("f32[8,16]{1,0} all-reduce-start(%p), replica_groups=[4,2]<=[8], to_apply=%add", "all-reduce", 512),
        (
            "(f16[8,16]{1,0}, f16[8,16]{1,0}, u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1}}",
            "collective-permute",
            256,
        ),
        ("f16[8,64]{1,0} all-gather(%p), replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={1}", "all-gather", 768),
        (
            "f16[8,16]{1,0} all-reduce(%p), replica_groups=mesh['a'=1,'b'=4,'c'=2], device_ids=([2,4]T(1,0)) {'b'}",
            "all-reduce",
            384,
        ),
        ("f16[8,32]{1,0} all-gather(%p), replica_groups=mesh['a'=8] {'a':(2)2}, dimensions={1}", "all-gather", 256),
        ("(s8[8,16]{1,0}, pred[8]{0}) all-reduce(%p, %p), replica_groups=[1,8]<=[8]", "all-reduce", 238),
    ],
)
def test_each_collective(line: str, kind: str, nbytes: int) -> None:
    counted = count(module(f'  ROOT %c = {line}, metadata={{op_name="a(b)"}}'))
    assert [(c.kind, c.bytes, c.trips) for c in counted.collectives] == [(kind, nbytes, 1)]
    assert (counted.number, counted.bytes) == (1, nbytes)


def test_a_permute_that_moves_nothing_is_none() -> None:
    line = "  ROOT %c = f16[8,16]{1,0} collective-permute(%p), source_target_pairs={{0,0},{1,1}}"
    assert count(module(line)).number == 0


def test_a_done_is_not_counted_again() -> None:
    body = """  %s = f16[8,16]{1,0} all-reduce-start(%p), replica_groups=[4,2]<=[8], to_apply=%add
  ROOT %d = f16[8,16]{1,0} all-reduce-done(%s)"""
    assert count(module(body)).bytes == 256


LOOP = """
%body (t: (s32[], f16[8,16])) -> (s32[], f16[8,16]) {
  %t = (s32[], f16[8,16]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %v = f16[8,16]{1,0} get-tuple-element(%t), index=1
  %r = f16[8,16]{1,0} all-reduce(%v), replica_groups=[4,2]<=[8], to_apply=%add
  ROOT %o = (s32[], f16[8,16]{1,0}) tuple(%i, %r)
}

%condition (t: (s32[], f16[8,16])) -> pred[] {
  %t = (s32[], f16[8,16]{1,0}) parameter(0)
  ROOT %c = pred[] constant(true)
}

%outer (t: (s32[], f16[8,16])) -> (s32[], f16[8,16]) {
  %t = (s32[], f16[8,16]{1,0}) parameter(0)
  ROOT %w = (s32[], f16[8,16]{1,0}) while(%t), condition=%condition, body=%body, TRIPS
}
""".replace("TRIPS", 'backend_config={"known_trip_count":{"n":"3"}}')
WHILE = "  %w = (s32[], f16[8,16]{1,0}) while(%p), condition=%condition, body=%"


def test_loops_count_by_their_trips() -> None:
    once = count(module(WHILE + 'body, backend_config={"known_trip_count":{"n":"118"}}', LOOP))
    assert (once.number, once.bytes) == (118, 118 * 256)
    nested = count(module(WHILE + 'outer, backend_config={"known_trip_count":{"n":"5"}}', LOOP))
    assert (nested.number, nested.bytes) == (15, 15 * 256)


def test_a_loop_of_unknown_length_is_refused() -> None:
    with pytest.raises(UncountableError, match=r"^the loop w has no known trip count$"):
        count(module(WHILE + "body", LOOP))


def test_a_collective_without_groups_is_refused() -> None:
    with pytest.raises(UncountableError, match=r"^c has no groups of known size$"):
        count(module("  ROOT %c = f16[8,64]{1,0} all-gather(%p), replica_groups={}, dimensions={1}"))


REDUCED = "  %r = f16[8,16]{1,0} all-reduce(%p), replica_groups=[1,8]<=[8], to_apply=%add\n"
SLICING = """
%fused (a: s32[], b: f16[8,16]) -> f16[8,2] {
  %at = s32[] parameter(0)
  %b = f16[8,16]{1,0} parameter(1)
  %wide = f32[8,16]{1,0} convert(%b)
  %narrow = f16[8,16]{1,0} convert(%wide)
  ROOT %s = f16[8,2]{1,0} dynamic-slice(%narrow, %at, %at), dynamic_slice_sizes={8,2}
}

%converting (b: f16[8,16]) -> f16[16,8] {
  %b = f16[8,16]{1,0} parameter(0)
  ROOT %t = f16[16,8]{1,0} transpose(%b), dimensions={1,0}
}
"""


@pytest.mark.parametrize(
    ("uses", "sliced"),
    [
        ("  ROOT %s = f16[8,2]{1,0} dynamic-slice(%r, %i, %i), dynamic_slice_sizes={8,2}", True),
        ("  ROOT %s = f16[8,4]{1,0} dynamic-slice(%r, %i, %i), dynamic_slice_sizes={8,4}", False),
        ("  ROOT %f = f16[8,2]{1,0} fusion(%i, %r), kind=kLoop, calls=%fused", True),
        ("  %f = f16[8,2]{1,0} fusion(%i, %r), kind=kLoop, calls=%fused\n  ROOT %n = f16[8,16]{1,0} negate(%r)", False),
        (
            "  %f = f16[16,8]{1,0} fusion(%r), kind=kLoop, calls=%converting\n"
            "  ROOT %s = f16[2,8]{1,0} dynamic-slice(%f, %i, %i), dynamic_slice_sizes={2,8}",
            True,
        ),
        ("  ROOT %f = f16[16,8]{1,0} fusion(%r), kind=kLoop, calls=%converting", False),
    ],
)
def test_an_all_reduce_that_is_sliced_could_be_a_reduce_scatter(uses: str, sliced: bool) -> None:
    counted = count(module(f"  %i = s32[] constant(0)\n{REDUCED}{uses}", SLICING))
    assert counted.bytes == 448
    assert counted.bytes_with_reduce_scatters == (224 if sliced else 448)


def test_all_reduces_in_one_are_sliced_if_each_is() -> None:
    body = """  %i = s32[] constant(0)
  %r = (f16[8,16]{1,0}, f16[8,64]{1,0}) all-reduce(%p, %p), replica_groups=[1,8]<=[8], to_apply=%add
  %a = f16[8,16]{1,0} get-tuple-element(%r), index=0
  %b = f16[8,64]{1,0} get-tuple-element(%r), index=1
  %sa = f16[8,2]{1,0} dynamic-slice(%a, %i, %i), dynamic_slice_sizes={8,2}
  ROOT %sb = f16[8,8]{1,0} dynamic-slice(%b, %i, %i), dynamic_slice_sizes={8,8}"""
    counted = count(module(body))
    assert (counted.bytes, counted.bytes_with_reduce_scatters) == (2240, 1120)
    whole = count(module(body.replace("dynamic-slice(%a, %i, %i), dynamic_slice_sizes={8,2}", "negate(%a)")))
    assert whole.bytes_with_reduce_scatters == 2240
