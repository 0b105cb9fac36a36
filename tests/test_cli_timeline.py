"""`offload --timeline` and `draw` of what it writes: from a policy to a picture and a trace, and every wrong usage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PLAN = [
    "offload",
    "opt-6.7b",
    "--machine",
    "t4",
    "--prompt-len",
    "64",
    "--gen-len",
    "3",
    "--plan-only",
    "--runtime",
    "ours",
]
POLICY = ["--policy", "8,2,20,80,0,100,100,0"]


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The timeline of a policy for OPT-6.7B on a T4."""
    from shardwright.__main__ import main

    path = tmp_path_factory.mktemp("timeline") / "plan.json"
    assert main([*PLAN, *POLICY, "--timeline", str(path)]) == 0
    return path


def test_a_plan_has_a_timeline(timeline: Path) -> None:
    made = json.loads(timeline.read_text())
    assert made["title"] == "opt-6.7b on t4, 8 x 2, 20, 80, 0, 100, 100, 0, runtime ours"
    assert set(made) == {"format", "title", "capacity_bytes", "predicted"}
    events = made["predicted"]["events"]
    assert set(events[0]) == {"resource", "name", "start", "end", "bytes", "after", "step"}
    assert {event["resource"] for event in events} == {"to device", "device", "from device", "host"}
    layers = {event["name"].split(" ", 2)[2] for event in events if " N=" in event["name"] and " M=" in event["name"]}
    assert len(layers) == 32 * 2 * 3
    assert set(made["predicted"]["memory_bytes"]) == {"device", "host"}


def test_what_is_in_4_bits_moves_as_that(timeline: Path, tmp_path: Path) -> None:
    """A layer's matrices and cache: a half of a byte for each element, and two for a group of 64, or four for the 128
    of a row of a head."""
    from shardwright.__main__ import main

    packed = tmp_path / "packed.json"
    assert main([*PLAN, *POLICY, "--compress", "4bit", "--attention", "device", "--timeline", str(packed)]) == 0
    moved = [
        sum(event["bytes"] for event in json.loads(file.read_text())["predicted"]["events"]
            if event["name"].startswith("copy") and "token=0 N=" in event["name"])
        for file in (timeline, packed)
    ]  # fmt: skip
    assert moved[1] / moved[0] == pytest.approx((0.5 + 2 / 64) / 2, rel=0.002)


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf", "trace.json"])
def test_a_timeline_is_drawn(shardwright: Callable, timeline: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"out.{suffix}"
    got = shardwright("draw", timeline, "-o", out)
    assert (got.status, got.out, got.err) == (0, "", "")
    begins = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF", "trace.json": b'{"displayTimeUnit":"ms"'}
    assert out.read_bytes().startswith(begins[suffix])


def test_the_diagonal_schedule_has_a_timeline_under_a_runtime_that_has_it(
    shardwright: Callable, tmp_path: Path
) -> None:
    out = tmp_path / "diagonal.json"
    diagonal = [*POLICY, "--schedule", "diagonal", "--timeline", out]
    assert shardwright(*PLAN, *diagonal).status == 0
    made = json.loads(out.read_text())
    assert made["title"].endswith(", runtime ours, diagonal")
    steps = {event["name"].split(" ", 2)[2] for event in made["predicted"]["events"] if event["step"] is not None}
    assert {"token=0 N=0", "token=0 N=0 M=1", "token=2 N=0 M=1"} <= steps  # one begins, and two go on
    got = shardwright(*PLAN[:-1], "flexgen", *diagonal)
    assert (got.status, got.err) == (
        1,
        "offload: error: flexgen has the zig-zag block schedule alone [no-diagonal]\nnote: --runtime ours has both\n",
    )


def test_a_window_of_a_timeline_is_drawn(shardwright: Callable, timeline: Path, tmp_path: Path) -> None:
    assert shardwright("draw", timeline, "-o", tmp_path / "a.svg", "--window", "0.1:0.4").status == 0
    got = shardwright("draw", timeline, "-o", tmp_path / "b.svg", "--window", "100:200")
    assert got.status == 1
    message, note = got.err.splitlines()
    assert message.startswith(f"{timeline}: error: nothing happens from 100 s on: the timeline ends at ")
    assert note == "note: give a --window that begins earlier"
    assert not (tmp_path / "b.svg").exists()


def test_what_is_not_a_timeline_is_refused(shardwright: Callable, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"policy": {}}')
    got = shardwright("draw", plan, "-o", tmp_path / "a.svg")
    assert got.status == 1
    assert got.err == (
        f'{plan}: error: this is not a timeline: it lacks "format": "shardwright-timeline" [timeline-file]\n'
        "note: `shardwright offload ... --timeline OUT.json` writes one\n"
    )


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["t.json", "-o", "a.dot"], "a timeline is drawn as .svg, .png, .pdf, .trace.json"),
        (["t.json", "-o", "a.svg", "--func", "f"], "--func is of programs; FILE is a timeline"),
        (
            ["a.shard", "-o", "a.svg", "--timeline", "--chip", "h100", "--cost"],
            "--cost colours the graph; --timeline is another picture",
        ),
        (
            ["a.shard", "-o", "a.dot", "--timeline", "--chip", "h100"],
            "a timeline is drawn as .svg, .png, .pdf, .trace.json",
        ),
        (["t.json", "-o", "a.svg", "--timeline", "--chip", "h100"], "--timeline is of programs; FILE is a timeline"),
        (["a.shard", "-o", "a.dot", "--value", "w"], "--value is a picture of its own, drawn as .svg, .png or .pdf"),
        (
            ["a.shard", "-o", "a.svg", "--value", "w", "--chip", "h100", "--timeline"],
            "--value is a picture of its own, drawn as .svg, .png or .pdf",
        ),
        (["t.json", "-o", "a.svg", "--value", "w"], "--value is of programs; FILE is a timeline"),
        (["t.json", "-o", "a.svg", "--mesh", "x=2"], "--mesh is of programs; FILE is a timeline"),
        (["t.json", "-o", "a.trace.json", "--window", "0:1"], "--window is of pictures; a trace has everything"),
        (["a.shard", "-o", "a.svg", "--window", "0:1"], "--window is of timelines: add --timeline"),
        (["a.shard", "-o", "a.trace.json"], ".trace.json is of timelines: add --timeline"),
        (
            ["t.json", "-o", "a.svg", "--window", "3:1"],
            "argument --window: '3:1' is not BEGIN:END in seconds, as in 0.5:2",
        ),
        (
            ["t.json", "-o", "a.svg", "--window", "3"],
            "argument --window: '3' is not BEGIN:END in seconds, as in 0.5:2",
        ),
        (
            ["t.json", "-o", "a.json"],
            "argument -o/--output: 'a.json' does not say which picture; end it in .svg, .png, .pdf, .dot, .html, "
            ".trace.json",
        ),
    ],
)
def test_wrong_usage_of_draw(shardwright: Callable, argv: list[str], why: str) -> None:
    got = shardwright("draw", *argv)
    assert (got.status, got.out) == (2, "")
    assert got.err == f"shardwright draw: error: {why}\n"


def test_a_timeline_that_would_be_too_long_is_not_made(shardwright: Callable, tmp_path: Path) -> None:
    out = tmp_path / "long.json"
    got = shardwright(
        *PLAN[:6], "--gen-len", "1500", "--plan-only", "--policy", "1,2,20,80,0,100,100,0", "--timeline", out
    )
    assert (got.status, out.exists()) == (1, False)
    assert got.err == (
        "offload: error: the timeline has about 792000 events; one of more than 400000 is not made [long-timeline]\n"
        "note: with --gen-len 757 it has fewer\n"
    )


def test_a_program_has_a_timeline(
    shardwright: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = Path(__file__).parents[1] / "examples"
    file, out = examples / "10_palm_parallel_block.shard", tmp_path / "block.trace.json"
    assert shardwright("draw", file, "--timeline", "--chip", "tpu-v4", "-o", out).status == 0
    named = {event["args"]["name"] for event in json.loads(out.read_text())["traceEvents"] if event["ph"] == "M"}
    assert {"predicted", "device", "links x", "links yz"} <= named
    picture = tmp_path / "block.svg"
    assert shardwright("draw", file, "--timeline", "--chip", "tpu-v4", "-o", picture).status == 0
    assert "block on 64 tpu-v4" in picture.read_text()
    monkeypatch.setattr("shardwright.compiling.compile_program.explicit", None)  # told before any layout is chosen
    whole = shardwright("draw", examples / "13_palm_model.shard", "--timeline", "--chip", "tpu-v4", "-o", picture)
    assert whole.status == 1
    assert "a timeline is of one function [which-function]\nnote: name it: --func, of prefill, decode" in whole.err
