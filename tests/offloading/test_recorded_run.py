"""A run that is recorded: what happened beside what was predicted, as `offload --timeline` writes it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from models.greedy_generation import FEW, truth

from shardwright.backends.timeline.recorder import Recorder
from shardwright.cost.offloading.policy import parse_policy
from shardwright.serving.generation.prompts import make_prompts
from shardwright.serving.generation.settings import GenerationSettings
from shardwright.serving.offloading.buckets import buckets
from shardwright.serving.offloading.run import OffloadedModel, OffloadRequest

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


@pytest.mark.parametrize("stored", [None, "int4"])
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "copied"])
def test_events_have_the_bytes_that_they_moved(
    checkpoint: Callable[..., Path], in_place: bool, stored: Literal["int4"] | None
) -> None:
    """Nothing but new rows of a cache in three memories leaves the device, and what of these is on disk is written."""
    folder, new = checkpoint("llama-grouped"), 3
    made = make_prompts([prompt.tolist() for prompt in truth(folder, FEW).prompts], 96, None)
    policy = replace(parse_policy(f"{len(made)},1,20,30,20,40,100,0"), weight_format=stored,
                     cache_format=stored)  # fmt: skip
    recorder = Recorder()
    request = OffloadRequest(policy, in_place=in_place)
    with OffloadedModel(folder, request, made, GenerationSettings(new), observe=recorder) as model:
        list(model.completions())
    said = Counter[str]()
    for event in recorder.recording.events:
        said[str(event.resource)] += event.nbytes
    assert +said == model.moved
    assert said["disk read"] > said["disk write"] > 0
    config = json.loads((folder / "config.json").read_text())
    size = config["hidden_size"] // config["num_attention_heads"]
    row = config["num_key_value_heads"] * (4 * size if stored is None else size + 4)  # numbers of 4 bits in 8
    (bucket,) = buckets(made, len(made), 96)
    rows = len(made) * (bucket.length + new - 1)
    assert said["from device"] == (0 if in_place else 2 * config["num_hidden_layers"] * rows * row)
