"""Prompts: reading them from JSON lines or from words, and what is at fault in them."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

from shardwright.ir.diagnostics import (
    NOWHERE,
    Diagnostic,
    DiagnosticError,
    Source,
    Span,
    decoded,
    did_you_mean,
    fault,
)

WRITTEN = ("index", "sample", "new_tokens", "text", "logprobs", "prompt_logprobs", "error")
"""The keys that generation writes beside those of a line, which a line may not have."""

_MOST_FAULTS = 10

_UNPLACED = Source("<prompt>", "")

Encode = Callable[[str], Sequence[int]]
"""From a text to token ids."""


@dataclass(frozen=True)
class Prompt:
    """A prompt as token ids: the `index`-th, with the keys of its line of input, which are carried to the output.

    `source` and `span` are where it was read, for what is to be said of it.
    """

    index: int
    tokens: tuple[int, ...]
    keys: Mapping[str, Any] = field(default_factory=dict[str, Any])
    source: Source = _UNPLACED
    span: Span = NOWHERE

    def fault(self, code: str, message: str, *notes: str) -> DiagnosticError:
        """A diagnostic at the place of the prompt."""
        error = fault(code, message, self.span, *notes)
        error.source = self.source
        return error


def read_prompts(source: Source, vocab: int, encode: Encode | None) -> list[Prompt]:
    """The prompts of JSON lines: each an object with `prompt`, a text, or `tokens`, a list of ids below `vocab`.

    Further keys are kept; empty lines are skipped. Without `encode`, the checkpoint has no tokenizer and takes ids
    alone. Raises a `DiagnosticError` with the first faults, each with its line.
    """
    prompts: list[Prompt] = []
    found: list[Diagnostic] = []
    for number, line in enumerate(source.lines, 1):
        if not line.strip():
            continue
        span = Span(number, 1, number, len(line.rstrip("\r")) + 1)
        try:
            keys = _object(line, span)
            prompts.append(Prompt(len(prompts), _tokens(keys, span, vocab, encode), keys, source, span))
        except DiagnosticError as error:
            found.extend(error.diagnostics)
            if len(found) >= _MOST_FAULTS:
                break
    if found:
        raise DiagnosticError(found, source)
    if not prompts:
        error = fault("no-prompts", "there is no prompt here", NOWHERE, 'write one on a line: {"prompt": "Once upon"}')
        error.source = source
        raise error
    return prompts


def make_prompts(given: Sequence[str | Sequence[int]], vocab: int, encode: Encode | None) -> list[Prompt]:
    """Prompts of texts or lists of ids, which are named by their numbers, from 1 on, where one is at fault."""
    if isinstance(given, str):
        raise fault("bad-prompt", "prompts is a text, not a list of prompts", NOWHERE, "write it in brackets: [text]")
    if not len(given):
        raise fault("no-prompts", "there is no prompt", NOWHERE, "give at least one text or list of token ids")
    prompts: list[Prompt] = []
    for index, prompt in enumerate(given):
        source = Source(f"prompt {index + 1}", "")
        try:
            keys = {"prompt": prompt} if isinstance(prompt, str) else {"tokens": _listed(prompt)}
            prompts.append(Prompt(index, _tokens(keys, NOWHERE, vocab, encode), keys, source))
        except DiagnosticError as error:
            error.source = source
            raise
    return prompts


def _listed(prompt: object) -> list[int]:
    """The ids of a list, a tuple or an array as numbers of Python."""
    try:
        return [operator.index(token) for token in cast("Sequence[Any]", prompt)]
    except TypeError:
        what = "the prompt is neither a text nor a list of token ids"
        raise fault("bad-prompt", what, NOWHERE, 'prompts are like ["Once upon", [1, 2, 3]]') from None


def read_text(path: str) -> Source:
    """The text of a file of prompts. Raises where it is not UTF-8, OSError where it cannot be read."""
    return decoded(path, Path(path).read_bytes(), "save the file as UTF-8")


def _object(line: str, span: Span) -> dict[str, Any]:
    try:
        value: object = json.loads(line, parse_constant=_not_json, parse_int=_whole, parse_float=_number)
    except json.JSONDecodeError as error:
        here = Span(span.line, error.colno, span.line, error.colno + 1)
        raise fault("bad-line", f"this line is not JSON: {error.msg.lower()}", here, _EXAMPLE) from None
    except (ValueError, RecursionError) as error:
        what = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise fault("bad-line", f"this line is not JSON that can be read: {what}", span) from None
    if not isinstance(value, dict):
        raise fault("bad-line", "this line is not a JSON object", span, _EXAMPLE)
    keys = cast("dict[str, Any]", value)
    for key in WRITTEN:
        if key in keys:
            wanted = key == "text" and not {"prompt", "tokens"} & keys.keys()
            note = "write prompt for it" if wanted else "rename it"
            raise fault("bad-line", f"the key {key} is one that is written for each prompt", span, note)
    return keys


_EXAMPLE = 'a line is like {"prompt": "Once upon"} or {"tokens": [1, 2, 3]}'


def _not_json(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number of JSON")


def _whole(word: str) -> int:
    """A number that can be written again: Python reads and writes so many digits and no more."""
    try:
        return int(word)
    except ValueError:
        raise _beyond(word) from None


def _number(word: str) -> float:
    """A number that can be written again: not one that only infinity is near to."""
    number = float(word)
    if math.isinf(number):
        raise _beyond(word)
    return number


def _beyond(word: str) -> ValueError:
    return ValueError(f"{word if len(word) < 30 else f'{word[:30]}...'} is beyond the numbers that can be kept")


def _tokens(keys: Mapping[str, Any], span: Span, vocab: int, encode: Encode | None) -> tuple[int, ...]:
    if "prompt" in keys and "tokens" in keys:
        raise fault("bad-prompt", "there are both a prompt and tokens", span, "give one of them")
    if "prompt" in keys:
        return _encoded(keys["prompt"], span, vocab, encode)
    if "tokens" not in keys:
        wrong, right = _misnamed(keys)
        notes = [f"write {right} for {json.dumps(wrong)}"] if right else []
        raise fault("bad-prompt", "there is neither a prompt nor tokens", span, *notes, _EXAMPLE)
    listed: object = keys["tokens"]
    if not isinstance(listed, list):
        raise fault("bad-prompt", "tokens is not a list of token ids", span, _EXAMPLE)
    items = cast("list[object]", listed)
    for item in items:
        if isinstance(item, bool) or not isinstance(item, int):
            raise fault("bad-prompt", f"{json.dumps(item)} is not a token id", span)
        if not 0 <= item < vocab:
            raise fault("bad-prompt", f"token {item} is out of range", span, f"ids are 0 to {vocab - 1}")
    if not items:
        raise fault("empty-prompt", "the prompt has no tokens", span, "give at least one, such as the first token's id")
    return tuple(cast("list[int]", items))


def _misnamed(keys: Mapping[str, Any]) -> tuple[str, str]:
    """The key that seems to be a prompt or tokens, by its spelling or else its value, and the right one; "" twice where
    none does."""
    lists = {key: "tokens" for key, value in keys.items() if _is_list_of_ids(value)}
    texts = {key: "prompt" for key, value in keys.items() if isinstance(value, str)}
    spelt = {key: right for key in keys if (right := did_you_mean(key.lower(), ("prompt", "tokens"))) is not None}
    for found in (spelt, lists, texts if len(texts) == 1 else {}):
        for wrong, right in found.items():
            return wrong, right
    return "", ""


def _is_list_of_ids(value: object) -> bool:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return bool(items) and all(isinstance(item, int) and not isinstance(item, bool) for item in items)


def _encoded(text: object, span: Span, vocab: int, encode: Encode | None) -> tuple[int, ...]:
    if not isinstance(text, str):
        raise fault("bad-prompt", f"the prompt is {json.dumps(text)[:60]}, not a text", span, _EXAMPLE)
    if encode is None:
        raise fault(
            "no-tokenizer",
            "the checkpoint has no tokenizer, which a prompt in words needs",
            span,
            "give token ids, or put tokenizer.json into the folder",
        )
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise fault("bad-prompt", "the prompt has half of a surrogate pair, which is no character", span)
    tokens = tuple(encode(text))
    if not tokens:
        raise fault("empty-prompt", "the prompt has no tokens", span, "give at least one character")
    beyond = [token for token in tokens if not 0 <= token < vocab]
    if beyond:
        raise fault(
            "bad-tokenizer",
            f"the tokenizer gives token {beyond[0]}, and the model has {vocab} tokens",
            span,
            "the tokenizer in the folder is another model's",
        )
    return tokens
