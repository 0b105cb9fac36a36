"""The reader of HLO text, on modules written by hand."""

from __future__ import annotations

import pytest
from collective_sums import count

from shardwright.backends.hlo.collectives import CompiledCollective, collectives_of
from shardwright.backends.hlo.module import Array, HloError, SourceFrame, parse
from shardwright.backends.hlo.statements import Statement, matched

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
    ("line", "op", "nbytes"),
    [
        ("f16[8,64]{1,0} all-gather(%p), replica_groups=[2,4]<=[8], dimensions={1}", "all_gather", 768),
        ("f16[8,64]{0,1} all-gather(f16[8,16]{1,0} %p), replica_groups={{0,1,2,3},{4,5,6,7}}", "all_gather", 768),
        ("f16[8,16]{1,0} all-reduce(%p), replica_groups=[4,2]<=[2,4]T(1,0), to_apply=%add", "all_reduce", 256),
        ("f16[8,2]{1,0} reduce-scatter(%p), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add", "reduce_scatter", 224),
        ("(f16[4,16]{1,0}, f16[4,16]{1,0}) all-to-all(%p, %p), replica_groups={{0,1},{2,3}}", "all_to_all", 128),
        ("f16[8,16]{1,0} all-to-all(%p), replica_groups=[1,8]<=[8], dimensions={1}", "all_to_all", 224),
        ("f16[8,16]{1,0} collective-permute(%p), source_target_pairs={{0,0},{1,2},{2,1}}", "permute", 256),
        ("f16[8,16]{1,0} collective-broadcast(%p), replica_groups={{0,1,2,3},{4,5,6,7}}", "permute", 256),
        ("(f16[8,16]{1,0}, f16[8,32]{1,0}) all-gather-start(%p), replica_groups=[4,2]<=[8]", "all_gather", 256),
        ("f32[8,16]{1,0} all-reduce-start(%p), replica_groups=[4,2]<=[8], to_apply=%add", "all_reduce", 512),
        (
            "(f16[8,16]{1,0}, f16[8,16]{1,0}, u32[], u32[]) collective-permute-start(%p), source_target_pairs={{0,1}}",
            "permute",
            256,
        ),
        ("f16[8,64]{1,0} all-gather(%p), replica_groups=mesh['a'=2,'b'=4] {'b'}, dimensions={1}", "all_gather", 768),
        (
            "f16[8,16]{1,0} all-reduce(%p), replica_groups=mesh['a'=1,'b'=4,'c'=2], device_ids=([2,4]T(1,0)) {'b'}",
            "all_reduce",
            384,
        ),
        ("f16[8,32]{1,0} all-gather(%p), replica_groups=mesh['a'=8] {'a':(2)2}, dimensions={1}", "all_gather", 256),
        ("f32[4]{0} all-reduce(%p), replica_groups={{0,1,2},{3,4,5}}, to_apply=%add", "all_reduce", 24),
        ("(s8[8,16]{1,0}, pred[8]{0}) all-reduce(%p, %p), replica_groups=[1,8]<=[8]", "all_reduce", 238),
    ],
)
def test_each_collective(line: str, op: str, nbytes: int) -> None:
    counted = count(module(f'  ROOT %c = {line}, metadata={{op_name="a(b)"}}'))
    assert [(c.op, c.bytes, c.trips) for c in counted.collectives] == [(op, nbytes, 1)]
    assert (counted.number, counted.bytes) == (1, nbytes)


def test_a_permute_that_moves_nothing_is_none() -> None:
    line = "  ROOT %c = f16[8,16]{1,0} collective-permute(%p), source_target_pairs={{0,0},{1,1}}"
    assert count(module(line)).number == 0


RECEIVED = """  %t = token[] after-all()
  %r = (f16[8,16]{1,0}, u32[], token[]) recv(%t), channel_id=1, ATTRIBUTES
  %s = (f16[8,16]{1,0}, u32[], token[]) send(%p, %t), channel_id=1, ATTRIBUTES
  %d = (f16[8,16]{1,0}, token[]) recv-done(%r), channel_id=1
  ROOT %v = f16[8,16]{1,0} get-tuple-element(%d), index=0"""


@pytest.mark.parametrize("pairs", ["{{0,4},{4,0}}", '"{{0,4},{4,0}}"'])
def test_what_is_received_from_other_devices_is_a_permute(pairs: str) -> None:
    """XLA for GPUs writes permutes so that it pipelines."""
    sent = RECEIVED.replace("ATTRIBUTES", f"frontend_attributes={{_xla_send_recv_source_target_pairs={pairs}}}")
    (collective,) = count(module(sent)).collectives
    assert (collective.op, collective.bytes, collective.axes(MESH)) == ("permute", 256, ("data",))


def test_what_is_received_from_the_host_is_no_collective() -> None:
    assert count(module(RECEIVED.replace("ATTRIBUTES", "is_host_transfer=true"))).number == 0


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
    with pytest.raises(HloError, match=r"^r is in a loop without a known trip count$"):
        count(module(WHILE + "body", LOOP))


def test_a_configuration_of_several_lines_ends_no_computation() -> None:
    kernel = """  %k = f16[8,16]{1,0} custom-call(%p), custom_call_target="k", backend_config={"cost_estimate": {
"bytes_accessed":512,
"flops":64
}, "needs_layout_passes": true}
  ROOT %c = f16[8,64]{1,0} all-gather(%k), replica_groups=[2,4]<=[8], dimensions={1}"""
    assert [c.op for c in count(module(kernel)).collectives] == ["all_gather"]


def test_no_listed_group_is_all_devices() -> None:
    counted = count(module("  ROOT %c = f16[8,128]{1,0} all-gather(%p), replica_groups={}, dimensions={1}"))
    assert counted.bytes == 2048 * 7 // 8


def test_a_collective_without_groups_is_refused() -> None:
    with pytest.raises(HloError, match=r"^c has no groups of known size$"):
        count(module("  ROOT %c = f16[8,64]{1,0} all-gather(%p), dimensions={1}"))


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(HloError, match=r"^there is no ENTRY computation: this is not the text of an HLO module$"):
        count("module @jit_f {}")


# ---------------------------------------------------------------- groups by the axes of a mesh

MESH = {"data": 2, "model": 4}


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", ("model",)),
        ("{{0,4},{1,5},{2,6},{3,7}}", ("data",)),
        ("[4,2]<=[2,4]T(1,0)", ("data",)),
        ("[2,4]<=[8]", ("model",)),
        ("[1,8]<=[8]", ("data", "model")),
        ("{}", ("data", "model")),
        ("[4,2]<=[8]", ("model:(2)2",)),
        ("[4,2]<=[2,2,2]T(0,2,1)", ("model:(1)2",)),
        ("[2,4]<=[2,2,2]T(1,0,2)", ("data", "model:(2)2")),
        ("mesh['a'=2,'b'=4] {'a'}", ("data",)),
        ("mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}", ("data",)),
        ("mesh['a'=8] {'a':(2)2}", ("model:(1)2",)),
        ("mesh['a'=8] {'a':(4)2}", ("model:(2)2",)),
        ("mesh['a'=8] {'a':(1)2,'a':(4)2}", ("data", "model:(2)2")),
        ("mesh['a b'=2,'c'=4] {'a b'}", ("data",)),
        ("mesh[a=2, b=4] {b}", ("model",)),
        ("mesh['a'=2,'b'=4], device_ids=(0,4,1,5,2,6,3,7) {'a'}", ("model:(1)2",)),
        ("{{0,1},{2,3},{4,5,6,7}}", ("irregular",)),
        ("{{0,3},{1,2},{4,7},{5,6}}", ("irregular",)),
        ("{{0,5},{1,4},{2,7},{3,6}}", ("irregular",)),
    ],
)
def test_groups_in_every_form(groups: str, axes: tuple[str, ...]) -> None:
    line = f"  ROOT %c = f16[8,16]{{1,0}} all-reduce(%p), replica_groups={groups}, to_apply=%add"
    (collective,) = count(module(line)).collectives
    assert collective.axes(MESH) == axes


@pytest.mark.parametrize(
    ("pairs", "axes"),
    [
        ("{{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}", ("model",)),
        ("{{0,4},{4,0},{1,5},{5,1},{2,6},{6,2},{3,7},{7,3}}", ("data",)),
        ("{{0,1},{2,3},{4,5},{6,7}}", ("model:(2)2",)),
        ("{{0,1},{1,2},{2,3}}", ("model",)),
        ("{{1,4}}", ("data", "model")),
    ],
)
def test_permutes_go_along_the_axes_that_they_join(pairs: str, axes: tuple[str, ...]) -> None:
    (collective,) = count(
        module(f"  ROOT %c = f16[8,16]{{1,0}} collective-permute(%p), source_target_pairs={pairs}")
    ).collectives
    assert collective.axes(MESH) == axes


def test_a_broadcast_goes_along_the_axes_of_its_groups() -> None:
    line = "f16[8,16]{1,0} collective-broadcast(%p), replica_groups={{0,4},{1,5},{2,6},{3,7}}"
    (collective,) = count(module(f"  ROOT %c = {line}")).collectives
    assert collective.axes(MESH) == ("data",)


@pytest.mark.parametrize(
    ("second", "nbytes"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", 512),  # the same devices receive again
        ("{{1,0},{3,2},{5,4},{7,6}}", 256),  # the others do
        ("{{1,0},{3,2},{5,4},{6,7}}", 512),  # one of them does
        ("{{1,1},{3,3},{5,5},{1,0}}", 256),  # what keeps its own part receives nothing
    ],
)
def test_a_module_receives_what_one_device_does(second: str, nbytes: int) -> None:
    first = "  %a = f16[8,16]{1,0} collective-permute(%p), source_target_pairs={{0,1},{2,3},{4,5},{6,7}}"
    then = f"  ROOT %c = f16[8,16]{{1,0}} collective-permute(%a), source_target_pairs={second}"
    counted = count(module(f"{first}\n{then}"))
    assert (counted.bytes, counted.number) == (nbytes, 2)
    gathered = then.replace("(%a)", "(%b)")
    between = "  %b = f16[8,16]{1,0} all-reduce(%a), replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add"
    assert count(module(f"{first}\n{between}\n{gathered}")).bytes == nbytes + 256


# ---------------------------------------------------------------- what accelerators' compilers write

COUNTED = """
%step (t: (s32[], f16[8,16], s32[])) -> (s32[], f16[8,16], s32[]) {
  %t = (s32[]{:T(128)}, f16[8,16]{1,0:T(8,128)(2,1)S(1)}, s32[]) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%t), index=0
  %v = f16[8,16]{1,0} get-tuple-element(%t), index=1
  %n = s32[] get-tuple-element(%t), index=2
  %two = s32[] constant(2)
  %next = s32[]{:T(128)} add(%i, %two)
  %r = f16[8,16]{1,0:T(8,128)(2,1)} all-reduce(%v), replica_groups=[4,2]<=[8], to_apply=%add
  ROOT %o = (s32[], f16[8,16]{1,0}, s32[]) tuple(%next, %r, %n)
}

%less (t: (s32[], f16[8,16], s32[])) -> pred[] {
  %t = (s32[], f16[8,16]{1,0}, s32[]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %n = s32[] get-tuple-element(%t), index=2
  ROOT %lt = pred[]{:T(512)} compare(%i, %n), direction=LT
}
"""
STARTED = """  %zero = s32[] constant(BEGIN)
  %end = s32[] END
  %begin = (s32[], f16[8,16]{1,0}, s32[]) tuple(%zero, %p, %end)
  %w = (s32[], f16[8,16]{1,0}, s32[]) while(%begin), condition=%less, body=%step"""


@pytest.mark.parametrize(("begin", "end", "trips"), [("0", "118", 59), ("5", "12", 4), ("3", "3", None)])
def test_trips_follow_from_condition_start_and_step(begin: str, end: str, trips: int | None) -> None:
    body = STARTED.replace("BEGIN", begin).replace("END", f"constant({end})")
    found = count(module(body, COUNTED)).collectives
    assert [c.trips for c in found] == ([trips] if trips else [0])


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("kind", "begin", "end", "trips"),
    [
        ("u8", "1", "255", 127),
        ("u8", "4", "2", 127),  # 254 and 2 are 0
        ("s8", "0", "-2", 127),  # 126 and 2 are -128
        ("u8", "1", "0", None),  # for ever
        ("f32", "0", "8", None),  # numbers that are not whole are not computed with
    ],
)
def test_counters_are_held_in_the_bits_of_their_type(kind: str, begin: str, end: str, trips: int | None) -> None:
    loop = COUNTED.replace("s32[]", f"{kind}[]").replace("direction=LT", "direction=NE")
    body = STARTED.replace("BEGIN", begin).replace("END", f"constant({end})").replace("s32[]", f"{kind}[]")
    (found,) = collectives_of(parse(module(body, loop)))
    assert found.trips == trips


def test_a_loop_whose_end_is_an_argument_is_of_unknown_length() -> None:
    body = STARTED.replace("BEGIN", "0").replace("END", "parameter(1)")
    with pytest.raises(HloError, match=r"^r is in a loop without a known trip count$"):
        count(module(body, COUNTED))


FUSED = """
%all-reduce-scatter (input: f16[8,60]) -> f16[8,16] {
  %input = f16[8,60]{1,0} parameter(0)
  %zero = f16[] constant(0)
  %pad = f16[8,64]{1,0} pad(%input, %zero), padding=0_0x0_4
  %all-reduce.1 = f16[8,64]{1,0} all-reduce(%pad), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  %at = s32[] constant(0)
  ROOT %s = f16[8,16]{1,0} dynamic-slice(%all-reduce.1, %at, %at), dynamic_slice_sizes={8,16}
}
"""


def test_a_fused_reduce_scatter_is_one() -> None:
    line = (
        "  ROOT %f = f16[8,16]{1,0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter,"
        ' backend_config={"collective_algorithm_config":{"emitter":"SingleInputAllReduceScatterFusion"}}'
    )
    (collective,) = count(module(line, FUSED)).collectives
    assert (collective.op, collective.bytes, collective.axes(MESH)) == (
        "reduce_scatter",
        8 * 64 * 2 * 3 // 4,
        ("model",),
    )


@pytest.mark.parametrize(
    ("start", "done", "op", "nbytes"),
    [
        (
            "((f16[8,16], f16[8,32]), (f16[8,4], f16[8,8])) reduce-scatter-start(%p, %p)",
            "(f16[8,4], f16[8,8]) reduce-scatter-done(%s)",
            "reduce_scatter",
            3 * (64 + 128),
        ),
        ("((f16[8,16]), f16[8,16]) all-to-all-start(%p)", "f16[8,16] all-to-all-done(%s)", "all_to_all", 192),
        ("(f16[8,16], f16[8,64]) all-gather-start(%p)", "f16[8,64] all-gather-done(%s)", "all_gather", 768),
        (
            "(f16[8,16], f16[8,32]) all-reduce-start(%p, %p)",
            "(f16[8,16], f16[8,32]) all-reduce-done(%s)",
            "all_reduce",
            1152,
        ),
    ],
)
def test_starts_have_the_results_of_their_dones(start: str, done: str, op: str, nbytes: int) -> None:
    body = f"  %s = {start}, replica_groups=[2,4]<=[8], dimensions={{0}}\n  ROOT %d = {done}"
    (collective,) = count(module(body)).collectives
    assert (collective.op, collective.bytes) == (op, nbytes)


WRAPPED = """
%wrapped (p: f16[8,16]) -> f16[8,64] {
  %w = f16[8,16]{1,0} parameter(0)
  ROOT %g = f16[8,64]{1,0} all-gather(%w), replica_groups=[2,4]<=[8], dimensions={1}
}
"""


def test_a_wrapped_collective_counts_once() -> None:
    body = """  %s = ((f16[8,16]{1,0}), f16[8,64]{1,0}) async-start(%p), calls=%wrapped
  %u = ((f16[8,16]{1,0}), f16[8,64]{1,0}) async-update(%s), calls=%wrapped
  ROOT %d = f16[8,64]{1,0} async-done(%u), calls=%wrapped"""
    assert count(module(body, WRAPPED)).bytes == 768


BESIDE = """
%begin (p: f16[8,16]) -> (f16[8,16], f16[8,64], u32[]) {
  %w = f16[8,16]{1,0} parameter(0)
  %g = f16[8,64]{1,0} all-gather(%w), replica_groups=[2,4]<=[8], dimensions={1}, frontend_attributes={chain_id="0"}
  ROOT %c = (f16[8,16], f16[8,64], u32[]) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion (p: f16[8,16], q: f16[8,64]) -> (f16[8,16], f16[8,64]) {
  %v = f16[8,16]{1,0} parameter(0)
  %q = f16[8,64]{1,0} parameter(1)
  %h = f16[8,64]{1,0} all-gather(%v), replica_groups=[2,4]<=[8], dimensions={1}, frontend_attributes={chain_id="0"}
  %work = f16[8,64]{1,0} add(%q, %q)
  ROOT %t = (f16[8,16], f16[8,64]) tuple(%v, %work, %h)
}

%end (p: f16[8,16]) -> f16[8,64] {
  %u = f16[8,16]{1,0} parameter(0)
  %i = f16[8,64]{1,0} all-gather(%u), replica_groups=[2,4]<=[8], dimensions={1}, frontend_attributes={chain_id="0"}
  ROOT %d = f16[8,64]{1,0} custom-call(%u, %i), custom_call_target="AsyncCollectiveDone"
}
"""


def test_a_collective_beside_fusions_counts_once() -> None:
    body = """  %async-collective-start = (f16[8,16], f16[8,64], u32[]) fusion(%p), kind=kCustom, calls=%begin
  %a = f16[8,16] get-tuple-element(%async-collective-start), index=0
  %b = f16[8,64] get-tuple-element(%async-collective-start), index=1
  %f = (f16[8,16], f16[8,64]) fusion(%a, %b), kind=kOutput, calls=%async_collective_fusion
  ROOT %async-collective-done = f16[8,64] fusion(%a), kind=kCustom, calls=%end"""
    assert [(c.name, c.bytes) for c in count(module(body, BESIDE)).collectives] == [("g", 768)]


def test_replicas_are_devices_too() -> None:
    body = "  ROOT %c = f16[8,16]{1,0} all-reduce(%p), replica_groups={}, to_apply=%add"
    text = module(body).replace("num_partitions=8", "replica_count=4")
    assert count(text).bytes == 2 * 256 * 3 // 4


FRAMES = """
FileNames
1 "model.py"
2 "main.py"

FunctionNames
1 "layer"
2 "<module>"

FileLocations
1 {file_name_id=2 function_name_id=2 line=9 end_line=9 column=1 end_column=2}
2 {file_name_id=1 function_name_id=1 line=70 end_line=70 column=12 end_column=12}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

"""


def test_places_in_the_source() -> None:
    line = '  ROOT %c = f16[8,16] all-reduce(%p), replica_groups={}, metadata={op_name="jit(f)/sum" stack_frame_id=2}'
    text = module(line).replace("\n\n", f"\n{FRAMES}", 1)
    (collective,) = count(text).collectives
    assert [(f.file, f.line, f.function) for f in collective.stack] == [
        ("model.py", 70, "layer"),
        ("main.py", 9, "<module>"),
    ]
    assert collective.op_name == "jit(f)/sum"
    older = line.replace("stack_frame_id=2", 'source_file="old.py" source_line=3')
    (collective,) = count(module(older)).collectives
    assert [(f.file, f.line) for f in collective.stack] == [("old.py", 3)]


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


def test_a_slice_a_long_way_behind() -> None:
    way = "\n".join(["  %c0 = f16[8,16] copy(%r)", *(f"  %c{i + 1} = f16[8,16] copy(%c{i})" for i in range(1000))])
    part = "  ROOT %s = f16[8,2]{1,0} dynamic-slice(%c1000, %i, %i), dynamic_slice_sizes={8,2}"
    counted = count(module(f"  %i = s32[] constant(0)\n{REDUCED}{way}\n{part}"))
    assert (counted.bytes, counted.bytes_with_reduce_scatters) == (448, 224)


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


def test_one_collective_of_several_products() -> None:
    """XLA makes one product of those of queries, keys and values, and one array of their sums."""

    def reduced(name: str, line: int, *sizes: int) -> CompiledCollective:
        arrays = tuple(Array(16, (size,)) for size in sizes)
        stack = (SourceFrame("m.py", line),) if line else ()
        return CompiledCollective(name, "all_reduce", ((0, 1),), (), arrays, arrays, 8, 1, "", stack)

    names = {1: "q", 2: "k", 3: "v", 4: "o"}
    asked = [Statement(names[line], reduced("", line, size)) for line, size in ((1, 64), (2, 8), (3, 8), (4, 64))]

    def found(*compiled: CompiledCollective) -> list[list[str]]:
        return [[s.name for s in own] for own in matched(compiled, asked, "m.py", names, 2)]

    assert found(reduced("", 0, 16), reduced("", 4, 64), reduced("", 1, 64)) == [["k", "v"], ["o"], ["q"]]
    assert found(reduced("", 1, 80), reduced("", 0, 64)) == [["q", "k", "v"], ["o"]]
    assert found(reduced("", 0, 17)) == [[]]
