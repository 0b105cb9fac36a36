"""Lines of output: in order, whole, and nothing else where something fails."""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardwright.serving.generation.engine import Completion
from shardwright.serving.generation.outputs import completion_keys, in_order, json_line
from shardwright.serving.generation.prompts import Prompt


def completion(index: int, sample: int = 0, **keys: Any) -> Completion:
    return Completion(Prompt(index, (1,), keys), sample, (7, 8))


def test_completions_come_in_order_as_soon_as_they_can() -> None:
    given = [completion(1), completion(0), completion(3), completion(2)]
    seen: list[int] = []

    def arriving() -> Any:
        for each in given:
            yield each
            seen.append(each.prompt.index)

    found = [(each.prompt.index, len(seen)) for each in in_order(arriving(), [(index, 0) for index in range(4)])]
    assert found == [(0, 1), (1, 1), (2, 3), (3, 3)]


def test_samples_come_in_order() -> None:
    given = [completion(1, 0), completion(0, 1), completion(1, 1), completion(0, 0)]
    texts = [(index, sample) for index in (0, 1) for sample in (0, 1)]
    assert [(c.prompt.index, c.sample) for c in in_order(given, texts)] == texts


def test_what_is_answered_already_is_not_waited_for() -> None:
    given = [completion(3), completion(1)]
    assert [c.prompt.index for c in in_order(given, [(1, 0), (3, 0)])] == [1, 3]


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
