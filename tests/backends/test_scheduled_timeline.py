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

CLOCK = 1e6
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

CHIP = load_chip("tpu-v4")
TOPOLOGY = topology_of(CHIP, Mesh((("x", 2),)))


def seconds(kind: CollectiveKind, nbytes: int) -> float:
    latency, transfer = latency_and_transfer(kind, ("x",), nbytes, TOPOLOGY)
    return latency + transfer


def course(text: str) -> Course:
    return scheduled_course(parse(text), TOPOLOGY, DATASHEET, lambda kernel: (kernel.cycles or 0) / CLOCK)


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


TEXT = "mesh x=2\ndim B=8 E=128\nfunc f(a: BE_x) -> BE {\n  b = all_gather[x](a)\n  return gelu(b)\n}\n"


def test_it_stands_beside_the_prediction(tmp_path: Path) -> None:
    program = explicit(load(Source("f", TEXT)))
    (func,) = program.funcs
    timeline = replace(predicted_timeline(program, func, cost_of(program, func, CHIP)), scheduled=course(PARTED))
    picture = draw_timeline(timeline).svg
    assert "predicted: " in picture
    assert "as compiled: " in picture
    draw_timeline(timeline).save(tmp_path / "a.trace.json")
    trace: dict[str, Any] = json.loads((tmp_path / "a.trace.json").read_text())
    named = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert named == ["predicted", "as compiled"]


def test_a_compiler_that_gives_no_cycles_is_refused() -> None:
    with pytest.raises(DiagnosticError, match="the compiler of cpu does not say how long kernels take") as caught:
        draw(explicit(load(Source("f", TEXT))), timeline=True, chip="tpu-v4", target="cpu")
    assert [note.message for note in caught.value.diagnostics[0].notes] == ["TPUs' do"]


def test_a_target_is_beside_a_timeline(shardwright: Callable[..., Any]) -> None:
    got = shardwright("draw", "a.shard", "-o", "a.svg", "--target", "tpu-v4:2")
    assert got.err == "shardwright draw: error: --target is beside --timeline\n"
