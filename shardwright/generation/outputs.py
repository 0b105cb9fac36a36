"""What is written of completions: a JSON object for each, on lines that are written whole and in order."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

    from shardwright.generation.engine import Completion
    from shardwright.generation.tokenizer import Tokenizer


def completion_keys(completion: Completion, tokenizer: Tokenizer | None, samples: int = 1) -> dict[str, Any]:
    """The keys of the prompt's line, then `index`; `sample` where there are several; `new_tokens`; `text` with a
    tokenizer; `logprobs` and `prompt_logprobs` where they were asked for."""
    keys: dict[str, Any] = {**completion.prompt.keys, "index": completion.prompt.index}
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


def in_order(completions: Iterable[Completion], samples: int) -> Iterator[Completion]:
    """The completions in the order of prompts and samples, each as soon as those before it are there."""
    early: dict[tuple[int, int], Completion] = {}
    following = (0, 0)
    for completion in completions:
        early[completion.prompt.index, completion.sample] = completion
        while following in early:
            yield early.pop(following)
            index, sample = following
            following = (index, sample + 1) if sample + 1 < samples else (index + 1, 0)


_ENDS_OF_LINES = str.maketrans({character: f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"})
"""Characters that JSON has as they are, and that end a line for some who read, as Python's `splitlines` does."""


def json_line(keys: Mapping[str, Any]) -> str:
    """The object on a line, which is one whoever reads it; in ASCII only where it has halves of surrogate pairs, which
    UTF-8 cannot hold."""
    line = json.dumps(keys, ensure_ascii=False, allow_nan=False).translate(_ENDS_OF_LINES)
    return (line if line.isascii() or line.encode("utf-8", "replace").decode() == line else json.dumps(keys)) + "\n"


class LineWriter:
    """Lines of JSON in a file, or on standard output for None and `-`; each is written whole, or not at all.

    The file is opened at once, so that one that cannot be written is found out before anything is computed. What it
    held is replaced when the first line is written; one that was not there, and gets none, is taken away again.
    Raises OSError with the file's name.
    """

    def __init__(self, path: str | None) -> None:
        self._path = None if path in {None, "-"} else path
        self._lines = 0
        if self._path is not None:
            self._new = not Path(self._path).exists()
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)

    def __enter__(self) -> LineWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._path is None:
            return
        os.close(self._file)
        if self._new and not self._lines:
            Path(self._path).unlink(missing_ok=True)

    def write(self, keys: dict[str, Any]) -> None:
        """One line more."""
        line = json_line(keys)
        if self._path is None:
            sys.stdout.write(line)
            sys.stdout.flush()
            return
        if not self._lines and Path(self._path).is_file():
            os.ftruncate(self._file, 0)
        self._lines += 1
        self._whole(line.encode())

    def _whole(self, data: bytes) -> None:
        """Writes all of it; where that fails, what was written of it is taken away."""
        begin = os.lseek(self._file, 0, os.SEEK_CUR) if Path(self._path or "").is_file() else None
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            if begin is not None:
                os.ftruncate(self._file, begin)
            error.filename = self._path
            raise
