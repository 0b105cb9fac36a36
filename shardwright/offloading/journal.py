"""The output file as the journal of a run: which prompts are answered, and lines that are written whole."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from shardwright.generation.outputs import json_line
from shardwright.generation.prompts import WRITTEN, Prompt
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, Span, fault


class Journal:
    """Appends lines to a file, after those of prompts that an earlier run has answered: `answered` are their indices.

    A last line without its end, which a run that was killed may leave, is cut off. The file is locked while it is open:
    two runs into one would answer prompts twice. What is no regular file, such as a pipe, is written to and never read.
    Raises a `DiagnosticError` where another has it open, or it has lines that are no answers to these prompts, or
    answers of the other kind, OSError with the file's name where it cannot be written.
    """

    def __init__(self, path: str, prompts: Sequence[Prompt], *, logprobs: bool = False) -> None:
        """Answers have log-probabilities, or have none."""
        self._path = path
        self._logprobs = logprobs
        self._new = not Path(path).exists()
        self.answered: dict[int, int] = {}
        self._lines = 0
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self._kept = stat.S_ISREG(os.fstat(self._file).st_mode)
        self._end = 0
        try:
            if self._kept:
                self._go_on(prompts)
        except BaseException:
            os.close(self._file)
            raise

    def _go_on(self, prompts: Sequence[Prompt]) -> None:
        """From what the file has."""
        self._lock()
        existing = Path(self._path).read_bytes()
        whole = existing[: existing.rfind(b"\n") + 1]
        self._read(whole, prompts)
        if len(whole) < len(existing):
            os.ftruncate(self._file, len(whole))
        self._end = len(whole)

    def _lock(self) -> None:
        """The lock goes with the process, however that ends."""
        import fcntl

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            failed = fault(
                "in-use",
                "another run is writing to this file",
                NOWHERE,
                "wait until it has ended, or give another file with -o",
            )
            failed.source = Source(self._path, "")
            raise failed from None
        except OSError:
            pass  # a file system without locks

    def _read(self, whole: bytes, prompts: Sequence[Prompt]) -> None:
        by_index = {prompt.index: prompt for prompt in prompts}

        def refused(number: int, message: str, *notes: str) -> DiagnosticError:
            failed = fault("not-resumable", message, Span(number, 1, number, 2), *notes)
            failed.source = Source(self._path, whole.decode("utf-8", "replace"))
            return failed

        for number, line in enumerate(whole.split(b"\n")[:-1], 1):
            found = _answer(line)
            index = None if found is None else found.get("index")
            prompt = by_index.get(index) if isinstance(index, int) else None
            if found is None or prompt is None or {k: v for k, v in found.items() if k not in WRITTEN} != prompt.keys:
                message = "this line is not the answer to one of these prompts"
                way_out = "give the prompts it began with, or another file with -o"
                raise refused(number, message, f"a run goes on where the output ends; {way_out}")
            if ("logprobs" in found) != self._logprobs:
                with_them = "without" if self._logprobs else "with"
                message = f"this answer was written {with_them} log-probabilities"
                raise refused(number, message, f"go on {with_them} --logprobs, or give another file with -o")
            if prompt.index in self.answered:
                raise refused(number, f"prompt {prompt.index} is answered twice")
            self.answered[prompt.index] = len(cast("list[object]", found["new_tokens"]))

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        os.close(self._file)
        if self._new and not self._lines:
            Path(self._path).unlink(missing_ok=True)

    def write(self, keys: dict[str, Any]) -> None:
        """One line more; where that fails, what was written of it is taken away."""
        data = json_line(keys).encode()
        at = self._end
        try:
            while data:
                n = os.pwrite(self._file, data, at) if self._kept else os.write(self._file, data)
                data, at = data[n:], at + n
        except OSError as error:
            if self._kept:
                os.ftruncate(self._file, self._end)
            error.filename = self._path
            raise
        self._end = at
        self._lines += 1


def _answer(line: bytes) -> dict[str, Any] | None:
    try:
        value: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    found = cast("dict[str, Any]", value) if isinstance(value, dict) else None
    return found if found is not None and isinstance(found.get("new_tokens"), list) else None
