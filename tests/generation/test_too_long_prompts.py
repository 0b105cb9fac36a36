"""Prompts that are too long: each gets a line with its error, and the rest goes on, under both engines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LONG = list(range(1, 61))
LINES: list[dict[str, Any]] = [{"tokens": [5, 6], "id": "a"}, {"tokens": LONG, "id": "b"}, {"tokens": [7]}]
ERROR = "the prompt has 60 tokens and 6 more are wanted, and the model has 64 positions"
ENGINES = {"generate": ("--mesh", "x=1"), "offload": ("--policy", "2,1,100,0,100,0,100,0", "--dtype", "f32")}


@pytest.fixture
def run(
    checkpoint: Callable[..., Path], tmp_path: Path, shardwright: Callable[..., Any]
) -> Callable[..., tuple[Any, list[dict[str, Any]]]]:
    def made(engine: str, *more: str, lines: list[dict[str, Any]] = LINES) -> tuple[Any, list[dict[str, Any]]]:
        given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        given.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        options = ("--prompts", given, "-o", out, "--max-new-tokens", "6", "--ignore-eos", *ENGINES[engine], *more)
        got = shardwright(engine, checkpoint("llama-grouped"), *options)
        return got, [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []

    return made


@pytest.mark.parametrize("engine", ENGINES)
def test_the_rest_goes_on(run: Callable[..., Any], engine: str, tmp_path: Path) -> None:
    got, found = run(engine, "--json")
    assert got.status == 0
    said = f"prompt {tmp_path}/in.jsonl:2 is too long and left out ({ERROR}); --refuse-too-long refuses all\n"
    assert got.err.startswith(said)
    assert json.loads(got.out)["refused"] == 1
    assert [line["index"] for line in found] == [0, 1, 2]
    assert found[1] == {"tokens": LONG, "id": "b", "index": 1, "error": ERROR}
    assert [len(line["new_tokens"]) for line in (found[0], found[2])] == [6, 6]
    whole = (tmp_path / "out.jsonl").read_bytes()
    (tmp_path / "out.jsonl").write_bytes(whole[: whole.rindex(b"\n", 0, -1) + 1])  # the last line is gone
    again, _ = run(engine)
    assert again.status == 0
    assert "answers 2 of 3" in again.err
    assert (tmp_path / "out.jsonl").read_bytes() == whole


@pytest.mark.parametrize("engine", ENGINES)
def test_all_are_refused_where_that_is_wanted_or_none_is_left(run: Callable[..., Any], engine: str) -> None:
    for more, lines in ((("--refuse-too-long",), LINES), ((), LINES[1:2])):
        got, found = run(engine, *more, lines=lines)
        assert (got.status, got.out, found) == (1, "", [])
        assert f"error: {ERROR} [cache-full]" in got.err
        assert "5 new tokens fit: give --max-new-tokens 5" in got.err


def test_samples_of_the_rest(run: Callable[..., Any], tmp_path: Path) -> None:
    """A prompt without room has one error for all of them; the first of several is told with their number."""
    _, found = run("generate", "--samples", "2", "--temperature", "1", "--cache", "16")
    assert [(line["index"], line.get("sample"), "error" in line) for line in found] == [
        (0, 0, False), (0, 1, False), (1, None, True), (2, 0, False), (2, 1, False),
    ]  # fmt: skip
    assert found[2]["error"] == "the prompt has 60 tokens, and the cache has 16 positions"
    (tmp_path / "out.jsonl").unlink()
    got, found = run("generate", lines=[*LINES, *LINES[1:2]])
    assert got.err.startswith(f"2 of 4 prompts are too long and left out (the first at {tmp_path}/in.jsonl:2: {ERROR})")
    assert ["error" in line for line in found] == [False, True, False, True]


def test_a_prompt_that_there_is_room_for_now_is_not_answered_by_its_error(run: Callable[..., Any]) -> None:
    _, found = run("generate", "--cache", "16", lines=[*LINES[:1], {"tokens": LONG[:20]}])
    assert "error" in found[1]
    got, after = run("generate", lines=[*LINES[:1], {"tokens": LONG[:20]}])
    assert (got.status, after) == (1, found)
    assert ":2:1: error: this prompt was too long, and there is room for it now [not-resumable]" in got.err


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ({"token": [1, 2]}, 'write tokens for "token"'),
        ({"id": "a", "input_ids": [1, 2]}, 'write tokens for "input_ids"'),
        ({"Prompt": "w5", "more": "x"}, 'write prompt for "Prompt"'),
        ({"question": "w5", "id": 3}, 'write prompt for "question"'),
        ({"text": "w5"}, "write prompt for it"),
        ({"a": "w5", "b": "w6"}, 'a line is like {"prompt": "Once upon"} or {"tokens": [1, 2, 3]}'),
    ],
)
def test_a_wrong_key_is_told_with_the_right_one(run: Callable[..., Any], line: dict[str, Any], note: str) -> None:
    got, _ = run("offload", lines=[line])
    assert got.status == 1
    assert f"note: {note}\n" in got.err
