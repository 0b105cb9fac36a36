"""The lines that are written of completions: a JSON object for each on a line of its own, in order."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwright.serving.generation.engine import Completion
    from shardwright.serving.generation.prompts import Prompt
    from shardwright.serving.generation.tokenizer import Tokenizer


def completion_keys(completion: Completion, tokenizer: Tokenizer | None, samples: int = 1) -> dict[str, Any]:
    """The keys of the prompt's line, then `index`; `sample` where there are several; `new_tokens`; `text` with a
    tokenizer; `logprobs` and `prompt_logprobs` where they were asked for. Of a prompt without room `error` alone
    follows `index`."""
    keys: dict[str, Any] = {**completion.prompt.keys, "index": completion.prompt.index}
    if completion.error is not None:
        return keys | {"error": completion.error}
    if samples > 1:
        keys["sample"] = completion.sample
    keys["new_tokens"] = list(completion.new_tokens)
    if tokenizer is not None:
        keys["text"] = tokenizer.decode(completion.new_tokens)
    if completion.logprobs is not None:
        keys["logprobs"] = [_finite(value) for value in completion.logprobs]
    if completion.prompt_logprobs is not None:
        keys["prompt_logprobs"] = [None if value is None else _finite(value) for value in completion.prompt_logprobs]
    return keys


def _finite(value: float) -> float | None:
    """The number, null in JSON where it is none or infinite."""
    return value if math.isfinite(value) else None


def texts_of(prompts: Iterable[Prompt], samples: int, refused: Collection[int] = ()) -> list[tuple[int, int]]:
    """The indices of prompts with numbers of samples: of one that is `refused` a single one, its error."""
    return [(each.index, sample) for each in prompts for sample in range(1 if each.index in refused else samples)]


def in_order(completions: Iterable[Completion], texts: Iterable[tuple[int, int]]) -> Iterator[Completion]:
    """The completions in the order of `texts`, indices of prompts with numbers of samples, each as soon as those before
    it are there."""
    early: dict[tuple[int, int], Completion] = {}
    order = iter(texts)
    following = next(order, None)
    for completion in completions:
        early[completion.prompt.index, completion.sample] = completion
        while following in early:
            yield early.pop(following)
            following = next(order, None)


_ENDS_OF_LINES = str.maketrans({character: f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"})
"""Characters that JSON has as they are, and that end a line for some who read, as Python's `splitlines` does."""


def json_line(keys: Mapping[str, Any]) -> str:
    """The object on a line, which is one whoever reads it; in ASCII only where it has halves of surrogate pairs, which
    UTF-8 cannot hold."""
    line = json.dumps(keys, ensure_ascii=False, allow_nan=False).translate(_ENDS_OF_LINES)
    return (line if line.isascii() or line.encode("utf-8", "replace").decode() == line else json.dumps(keys)) + "\n"


def write_line(keys: Mapping[str, Any]) -> None:
    """A line on standard output, as soon as it is there."""
    sys.stdout.write(json_line(keys))
    sys.stdout.flush()
