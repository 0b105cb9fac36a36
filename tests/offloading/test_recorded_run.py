"""A run that is recorded: what happened beside what was predicted, as `offload --timeline` writes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

PROMPTS = [{"tokens": [5, 9, 17, 4]}, {"tokens": [8, 3, 6]}, {"tokens": [7, 7]}]


@pytest.mark.parametrize("schedule", ["zigzag", "diagonal"])
def test_a_run_has_a_timeline(
    shardwright: Callable, checkpoint: Callable[..., Path], tmp_path: Path, schedule: str
) -> None:
    prompts, out, made = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "run.json"
    prompts.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    argv = ["--policy", "1,3,20,40,0,50,0,100", "--max-new-tokens", "3", "--ignore-eos", "--schedule", schedule]
    got = shardwright("offload", checkpoint("opt"), "--prompts", prompts, "-o", out, *argv, "--timeline", made)
    assert got.status == 0, got.err
    timeline = json.loads(made.read_text())
    assert timeline["title"].endswith(f", 1 x 3, 20, 40, 0, 50, 0, 100, {schedule}")
    measured, predicted = timeline["measured"]["events"], timeline["predicted"]["events"]
    for one, other in zip(measured, predicted, strict=True):
        assert {**one, "start": 0, "end": 0} == {**other, "start": 0, "end": 0}  # the same events in the same order
    # Nothing was used before it had arrived.
    for event in measured:
        assert all(measured[before]["end"] <= event["start"] for before in event["after"])
    computed = {event["name"] for event in measured if event["name"].startswith("compute") and "M=" in event["name"]}
    assert len({name.split(" ", 2)[2] for name in computed}) >= 3 * 2 * len(PROMPTS)  # tokens, layers, batches
    assert set(timeline["measured"]["memory_bytes"]) == {"device", "host", "disk"}
    assert shardwright("draw", made, "-o", tmp_path / "run.svg").status == 0
