"""The output file as the journal: kill -9 at any moment, and every prompt is answered exactly once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from interrupting import await_output
from nursery import TORCH, start

PROMPTS = [{"tokens": [3 + i % 90, 5, 7 + i % 11][: 1 + i % 3], "id": i} for i in range(60)]
OPTIONS = ("--policy", "4,2,0,50,30,30,0,100", "--max-new-tokens", "8", "--ignore-eos")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return path


def lines(path: Path) -> list[dict[str, Any]]:
    """In the order of the prompts."""
    found: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(found, key=lambda line: line["index"])


def test_killed_and_started_again(
    checkpoint: Callable[..., Path], prompts: Path, tmp_path: Path, shardwright: Callable[..., Any]
) -> None:
    folder, whole, out, spill = checkpoint("llama-grouped"), tmp_path / "whole", tmp_path / "out", tmp_path / "spill"
    spill.mkdir()
    command = ["offload", folder, "--prompts", prompts, *OPTIONS, "--spill-dir", spill]
    assert shardwright(*command, "-o", whole).status == 0
    process = start(TORCH, "-m", "shardwright", *command, "-o", out)
    await_output(out, 400, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(spill.iterdir()) == []
    before = len(out.read_bytes().split(b"\n")) - 1
    with out.open("ab") as file:
        file.write(b'{"tokens": [3], "id": 0, "ind')
    again = shardwright(*command, "-o", out, "--json")
    assert again.status == 0
    assert json.loads(again.out)["resumed"] == before
    assert json.loads(again.out).get("prompts", 0) == len(PROMPTS) - before
    assert lines(out) == lines(whole)
    assert [line["index"] for line in lines(out)] == list(range(len(PROMPTS)))


def test_another_file_is_not_touched(
    checkpoint: Callable[..., Path], prompts: Path, tmp_path: Path, shardwright: Callable[..., Any]
) -> None:
    out = tmp_path / "out"
    out.write_text('{"index": 0, "new_tokens": [1], "tokens": [9, 9], "id": 0}\n')
    made = shardwright("offload", checkpoint("llama-grouped"), "--prompts", prompts, "-o", out, *OPTIONS)
    assert made.status == 1
    assert "error: this line is not the answer to one of these prompts [not-resumable]" in made.err
    assert out.read_text() == '{"index": 0, "new_tokens": [1], "tokens": [9, 9], "id": 0}\n'


def test_output_that_is_no_regular_file(
    checkpoint: Callable[..., Path], prompts: Path, tmp_path: Path, shardwright: Callable[..., Any]
) -> None:
    """It is written to, and never read: /dev/full would be read for ever, and a pipe waited for."""
    command = ["offload", checkpoint("llama-grouped"), "--prompts", prompts, *OPTIONS]
    full = shardwright(*command, "-o", "/dev/full")
    assert full.status == 1
    assert full.err.splitlines()[-2:] == [
        "/dev/full: error: no space left on device [file]",
        "note: make room there, or write to another disk",
    ]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert shardwright(*command, "-o", pipe).status == 0
        answers = [json.loads(line) for line in os.read(reading, 1 << 16).splitlines()]
    finally:
        os.close(reading)
    assert sorted(answer["index"] for answer in answers) == list(range(len(PROMPTS)))
