"""Lines of output: in order, whole, and nothing else where something fails."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from shardwright.generation.engine import Completion
from shardwright.generation.outputs import LineWriter, completion_keys, in_order, json_line
from shardwright.generation.prompts import Prompt


def completion(index: int, sample: int = 0, **keys: Any) -> Completion:
    return Completion(Prompt(index, (1,), keys), sample, (7, 8))


def test_completions_come_in_order_as_soon_as_they_can() -> None:
    given = [completion(1), completion(0), completion(3), completion(2)]
    seen: list[int] = []

    def arriving() -> Any:
        for each in given:
            yield each
            seen.append(each.prompt.index)

    found = [(each.prompt.index, len(seen)) for each in in_order(arriving(), 1)]
    assert found == [(0, 1), (1, 1), (2, 3), (3, 3)]


def test_samples_come_in_order() -> None:
    given = [completion(1, 0), completion(0, 1), completion(1, 1), completion(0, 0)]
    assert [(c.prompt.index, c.sample) for c in in_order(given, 2)] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize("text", ["a\u2028b\u2029c\x85d\x0be\x1cf\rg\nh", "ü☃𝒳", "\ud800\u2028", "\\u2028"])
def test_a_line_is_one_for_whoever_reads_it(text: str) -> None:
    line = json_line({"x": text})
    assert line.splitlines() == [line[:-1]]
    assert json.loads(line) == {"x": text}


def test_keys_of_a_line() -> None:
    done = Completion(Prompt(4, (1, 2), {"tokens": [1, 2], "id": "a"}), 1, (7,), (-0.5,), (None, float("-inf")))
    assert completion_keys(done, None, samples=2) == {
        "tokens": [1, 2],
        "id": "a",
        "index": 4,
        "sample": 1,
        "new_tokens": [7],
        "logprobs": [-0.5],
        "prompt_logprobs": [None, None],
    }
    assert list(completion_keys(completion(0, prompt="x"), None)) == ["prompt", "index", "new_tokens"]


def test_lines_replace_what_the_file_held_when_the_first_is_there(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text("what was here before, and is longer than what comes\n")
    with LineWriter(str(path)) as writer:
        assert path.read_text().startswith("what was here")
        writer.write({"a": "\u00e9"})
        assert path.read_text(encoding="utf-8") == '{"a": "\u00e9"}\n'
        writer.write({"b": "\ud800"})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"a": "\u00e9"}, {"b": "\ud800"}]


def test_a_run_that_fails_leaves_whole_lines_alone(tmp_path: Path) -> None:
    path, kept, new = (tmp_path / name for name in ("out.jsonl", "kept.jsonl", "new.jsonl"))
    kept.write_text("old\n")

    def failing(target: Path, lines: int) -> None:
        with LineWriter(str(target)) as writer:
            for i in range(lines):
                writer.write({"a": i})
            raise RuntimeError

    for target, lines in ((path, 1), (kept, 0), (new, 0)):
        with pytest.raises(RuntimeError):
            failing(target, lines)
    assert path.read_text() == '{"a": 0}\n'
    assert kept.read_text() == "old\n"
    assert not new.exists()


def test_a_disk_that_is_full_takes_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.jsonl"
    write = os.write

    def half(file: int, data: bytes) -> int:
        if len(data) <= 20:
            raise OSError(28, "No space left on device")
        return write(file, data[:20])

    with LineWriter(str(path)) as writer:
        writer.write({"a": "a" * 12})
        monkeypatch.setattr("os.write", half)
        with pytest.raises(OSError, match="No space left") as caught:
            writer.write({"b": "b" * 30})
    assert caught.value.filename == str(path)
    assert path.read_text() == '{"a": "aaaaaaaaaaaa"}\n'


def test_a_place_that_cannot_be_written_is_found_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        LineWriter(str(tmp_path / "nowhere" / "out.jsonl"))
