"""What a target's compiler has scheduled, as a course: in the order of its text, beside what it parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwright.backends.graph import draw
from shardwright.backends.graph.drawing import draw_timeline
from shardwright.backends.hlo.module import parse
from shardwright.backends.targets.estimates import CompilerRates
from shardwright.backends.timeline.predicted import predicted_timeline
from shardwright.backends.timeline.record import Course
from shardwright.backends.timeline.scheduled import scheduled_course
from shardwright.compiling.compile_program import explicit, load
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.hardware.constants import DATASHEET
from shardwright.cost.hardware.topology import topology_of
from shardwright.cost.movements.collectives import CollectiveKind, latency_and_transfer
from shardwright.cost.programs.program_cost import cost_of
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.mesh import Mesh

RATES = CompilerRates(1e6, 1.0, 1.0, 1.0, 1.0, kernel_cycles=0, block_cycles=0, vector_cycles=0, alone=0)
"""A cycle is a microsecond."""


def cycles(count: int) -> str:
    return f'backend_config={{"window_config":{{"estimated_cycles":"{count}"}}}}'


PARTED = f"""HloModule jit_f, is_scheduled=true, num_partitions=2

ENTRY %main (p: bf16[8,128], w: bf16[128,128]) -> bf16[8,128] {{
  %p = bf16[8,128] parameter(0)
  %s = (bf16[8,128], bf16[8,128], u32[], u32[]) collective-permute-start(%p), source_target_pairs={{{{0,1}},{{1,0}}}}
  %a = bf16[8,128] copy(%p), {cycles(500)}
  %d = bf16[8,128] collective-permute-done(%s)
  %g = bf16[16,128] all-gather(%d), replica_groups={{{{0,1}}}}, dimensions={{0}}
  ROOT %c = bf16[8,128] copy(%d), {cycles(300)}
}}
"""

KNOWN = 'backend_config={"known_trip_count":{"n":"TRIPS"}}'
LOOPED = f"""HloModule jit_f, is_scheduled=true, num_partitions=2

%body (t: (s32[], bf16[8,128])) -> (s32[], bf16[8,128]) {{
  %t = (s32[], bf16[8,128]) parameter(0)
  %x = bf16[8,128] get-tuple-element(%t), index=1
  %r = bf16[8,128] all-reduce(%x), replica_groups={{{{0,1}}}}, to_apply=%add
  %k = bf16[8,128] copy(%r), {cycles(10)}
  ROOT %n = (s32[], bf16[8,128]) tuple(%x, %k)
}}

%test (t: (s32[], bf16[8,128])) -> pred[] {{
  %t = (s32[], bf16[8,128]) parameter(0)
  ROOT %p = pred[] compare(%t, %t), direction=LT
}}

ENTRY %main (p: (s32[], bf16[8,128])) -> (s32[], bf16[8,128]) {{
  %p = (s32[], bf16[8,128]) parameter(0)
  ROOT %w = (s32[], bf16[8,128]) while(%p), condition=%test, body=%body, {KNOWN}
}}
"""

ON_GPUS = """HloModule jit_f, is_scheduled=true, num_partitions=2

%sliced (w: bf16[3,16384,256], i: s32[]) -> bf16[128,128,256] {
  %w = bf16[3,16384,256] parameter(0)
  %i = s32[] parameter(1)
  %shown = bf16[3,128,128,256] bitcast(%w)
  %slice = bf16[1,128,128,256] dynamic-slice(%shown, %i, %i, %i, %i), dynamic_slice_sizes={1,128,128,256}
  ROOT %b = bf16[128,128,256] bitcast(%slice)
}

%multiplied (a: bf16[128,64,128], b: bf16[128,128,256]) -> f32[128,64,256] {
  %a = bf16[128,64,128] parameter(0)
  %b = bf16[128,128,256] parameter(1)
  ROOT %d = f32[128,64,256] dot(%a, %b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, \
rhs_contracting_dims={1}
}

%body (t: (s32[], bf16[64,8192], bf16[3,16384,256], bf16[256,8192])) -> (s32[], bf16[64,8192], bf16[3,16384,256], \
bf16[256,8192]) {
  %t = (s32[], bf16[64,8192], bf16[3,16384,256], bf16[256,8192]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = bf16[64,8192] get-tuple-element(%t), index=1
  %w = bf16[3,16384,256] get-tuple-element(%t), index=2
  %v = bf16[256,8192] get-tuple-element(%t), index=3
  %gathering = (bf16[64,8192], bf16[64,16384]) all-gather-start(%x), replica_groups={{0,1}}, dimensions={1}
  %row = bf16[128,128,256] fusion(%w, %i), kind=kLoop, calls=%sliced
  %done = bf16[64,16384] all-gather-done(%gathering)
  %split = bf16[128,64,128] bitcast(%done)
  %parts = f32[128,64,256] fusion(%split, %row), kind=kCustom, calls=%multiplied
  %h = bf16[64,256] reduce(%parts, %i), dimensions={0}, to_apply=%add
  %y = (bf16[64,8192], s8[33554432]) custom-call(%h, %v), custom_call_target="__cublas$gemm", backend_config=\
{"gemm_backend_config":{"beta":0,"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],\
"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]},"epilogue":"DEFAULT"}}
  %partial = bf16[64,8192] get-tuple-element(%y), index=0
  %sum = (bf16[64,8192], bf16[64,8192]) all-reduce-start(%partial), replica_groups={{0,1}}, to_apply=%add, \
backend_config={"collective_backend_config":{"is_sync":true}}
  %summed = bf16[64,8192] all-reduce-done(%sum)
  ROOT %n = (s32[], bf16[64,8192], bf16[3,16384,256], bf16[256,8192]) tuple(%i, %summed, %w, %v)
}

%test (t: (s32[], bf16[64,8192], bf16[3,16384,256], bf16[256,8192])) -> pred[] {
  %t = (s32[], bf16[64,8192], bf16[3,16384,256], bf16[256,8192]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %asked = s32[] copy(%i)
  ROOT %less = pred[] compare(%asked, %i), direction=LT
}

ENTRY %main (p: (s32[], bf16[64,8192], bf16[3,16384,256], bf16[256,8192])) -> (s32[], bf16[64,8192], \
bf16[3,16384,256], bf16[256,8192]) {
  %p = (s32[], bf16[64,8192], bf16[3,16384,256], bf16[256,8192]) parameter(0)
  ROOT %loop = (s32[], bf16[64,8192], bf16[3,16384,256], bf16[256,8192]) while(%p), condition=%test, body=%body, \
backend_config={"known_trip_count":{"n":"3"}}
}
"""
GATHERED = "all-gather-start(%x), replica_groups={{0,1}}, dimensions={1}"
WRAPPED = (
    ON_GPUS.replace(GATHERED, "async-start(%x), calls=%gathered")
    .replace("all-gather-done(%gathering)", "async-done(%gathering), calls=%gathered")
    .replace(
        "%sliced (w",
        """%gathered (p: bf16[64,8192]) -> bf16[64,16384] {
  %p = bf16[64,8192] parameter(0)
  ROOT %gathering = bf16[64,16384] all-gather(%p), replica_groups={{0,1}}, dimensions={1}
}

%sliced (w""",
    )
)
"""The gather in a computation of its own, which its end names once more."""

CHIP = load_chip("tpu-v4")
TOPOLOGY = topology_of(CHIP, Mesh((("x", 2),)))


def seconds(kind: CollectiveKind, nbytes: int) -> float:
    latency, transfer = latency_and_transfer(kind, ("x",), nbytes, TOPOLOGY)
    return latency + transfer


def course(text: str) -> Course:
    return scheduled_course(parse(text), TOPOLOGY, DATASHEET, RATES)


def test_what_is_parted_goes_on_beside_what_stands_between() -> None:
    made = course(PARTED)
    assert [(entry.resource, entry.name) for entry in made.entries] == [
        ("links x", "permute s"),
        ("device", "a"),
        ("links x", "all_gather g"),
        ("device", "c"),
    ]
    permute, a, gather, c = made.entries
    assert permute.start == a.start == 0.0
    assert a.end == pytest.approx(500e-6)
    assert gather.start == a.end  # the permute has come long before
    assert gather.bytes == 8 * 128 * 2
    assert gather.end - gather.start == pytest.approx(seconds(CollectiveKind.ALL_GATHER, 2 * 8 * 128 * 2))
    assert c.start == gather.end
    assert made.seconds == c.end
    assert [bound.resource for bound in made.bounds] == ["device", "links x", "device"]


@pytest.mark.parametrize("trips", [3, 100_000])
def test_every_trip_of_a_loop_is_executed_or_told(trips: int) -> None:
    made = course(LOOPED.replace("TRIPS", str(trips)))
    one = seconds(CollectiveKind.ALL_REDUCE, 8 * 128 * 2) + 10e-6
    assert made.seconds == pytest.approx(trips * one)
    assert len(made.entries) == 6 if trips == 3 else made.entries[-1].name.endswith("trips like the last")


BRANCHED = f"""HloModule jit_f, is_scheduled=true, num_partitions=2

%short (a: bf16[8,128]) -> bf16[8,128] {{
  %a = bf16[8,128] parameter(0)
  ROOT %s = bf16[8,128] copy(%a), {cycles(100)}
}}

%long (b: bf16[8,128]) -> bf16[8,128] {{
  %b = bf16[8,128] parameter(0)
  %r = bf16[8,128] all-reduce(%b), replica_groups={{{{0,1}}}}, to_apply=%add
  ROOT %l = bf16[8,128] copy(%r), {cycles(300)}
}}

%middle (m: bf16[8,128]) -> bf16[8,128] {{
  %m = bf16[8,128] parameter(0)
  ROOT %n = bf16[8,128] copy(%m), {cycles(200)}
}}

ENTRY %main (p: bf16[8,128], i: s32[]) -> bf16[8,128] {{
  %p = bf16[8,128] parameter(0)
  %i = s32[] parameter(1)
  %c = bf16[8,128] conditional(%i, %p, %p, %p), branch_computations={{%short, %long, %middle}}
  ROOT %e = bf16[8,128] copy(%c), {cycles(50)}
}}
"""


def test_of_a_conditional_the_branch_runs_that_takes_longest() -> None:
    made = course(BRANCHED)
    assert [entry.name for entry in made.entries] == ["all_reduce r", "l", "e"]
    assert made.seconds == pytest.approx(seconds(CollectiveKind.ALL_REDUCE, 8 * 128 * 2) + 350e-6)
    assert [bound.resource for bound in made.bounds] == ["links x", "device", "device"]
    assert [entry.number for entry in made.entries] == [0, 1, 2]


@pytest.mark.parametrize("text", [ON_GPUS, WRAPPED])
def test_kernels_of_a_compiler_that_says_no_cycles_are_priced_by_products_and_bytes(text: str) -> None:
    topology = topology_of(load_chip("h100"), Mesh((("x", 2),)))
    made = scheduled_course(parse(text), topology, DATASHEET)
    assert made.told == "order by the compiler, kernels and collectives estimated by the cost model"
    trip = ["all_gather gathering", "row", "parts", "h", "y", "all_reduce sum"]
    assert [entry.name for entry in made.entries] == 3 * trip
    gather, *kernels, reduced = made.entries[:6]
    row, h, v, x = 2 * 16384 * 256, 2 * 64 * 256, 2 * 256 * 8192, 2 * 64 * 8192
    parts, product = 4 * 128 * 64 * 256, 2 * 64 * 16384 * 256 / 9.9e14
    wanted = [  # one of three rows; not the workspace
        (2 * row + 4) / 3.35e12,
        (2 * x + row + parts) / 3.35e12 + product,
        (parts + 4 + h) / 3.35e12,
        (h + v + x) / 3.35e12 + product / 2,
    ]
    assert [kernel.end - kernel.start for kernel in kernels] == pytest.approx(wanted)
    assert gather.start == kernels[0].start  # beside each other
    assert kernels[1].start == gather.end > kernels[0].end
    assert reduced.start == kernels[-1].end
    assert made.entries[6].start == reduced.end  # a synchronous one, though it is parted


TEXT = "mesh x=2\ndim B=8 E=128\nfunc f(a: BE_x) -> BE {\n  b = all_gather[x](a)\n  return gelu(b)\n}\n"


def test_it_stands_beside_the_prediction(tmp_path: Path) -> None:
    program = explicit(load(Source("f", TEXT)))
    (func,) = program.funcs
    timeline = replace(predicted_timeline(program, func, cost_of(program, func, CHIP)), scheduled=course(PARTED))
    picture = draw_timeline(timeline).svg
    assert "predicted: " in picture
    assert "as compiled: " in picture
    told = "order and cycles by the compiler, collectives estimated by the cost model"
    assert f">{told}<" in picture
    draw_timeline(timeline).save(tmp_path / "a.trace.json")
    trace: dict[str, Any] = json.loads((tmp_path / "a.trace.json").read_text())
    named = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert named == ["predicted", f"as compiled ({told})"]


def test_a_target_is_a_chip_or_beside_one() -> None:
    program = explicit(load(Source("f", TEXT)))
    with pytest.raises(DiagnosticError, match="cpu is no chip whose rates are known") as caught:
        draw(program, timeline=True, target="cpu")
    assert [note.message for note in caught.value.diagnostics[0].notes] == ["name one: --chip NAME"]
    picture = draw(program, timeline=True, chip="h100", target="cpu").svg
    assert "f on 2 h100" in picture
    assert ">order by the compiler, kernels and collectives estimated by the cost model<" in picture


def test_a_target_is_beside_a_timeline(shardwright: Callable[..., Any], tmp_path: Path) -> None:
    got = shardwright("draw", "a.shard", "-o", "a.svg", "--target", "tpu-v4:2")
    assert got.err == "shardwright draw: error: --target is beside --timeline\n"
    (tmp_path / "a.shard").write_text(TEXT)
    got = shardwright("draw", tmp_path / "a.shard", "-o", tmp_path / "a.svg", "--timeline", "--target", "cpu")
    assert got.err.startswith("--target: error: cpu is no chip whose rates are known [no-chip]\n")
