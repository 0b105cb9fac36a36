"""The lines that `generate` shows of its progress on a terminal: bytes of weights, texts, tokens per second."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardwright.generation.prompts import Prompt

_PATIENCE = 1.0
"""Seconds of work before anything is shown."""

_SETTLED = 0.5
"""Seconds of tokens after which a rate says something."""


class GenerationProgress:
    """A bar on standard error, where that is a terminal and the work takes longer than a second."""

    def __init__(self, texts: int, wanted: bool = True) -> None:
        self._texts = texts
        self._began = time.perf_counter()
        self._wanted = wanted and sys.stderr.isatty()
        self._bar: Any = None
        self._task: Any = None
        self._new_tokens = 0
        self._done = 0
        self._first: float | None = None

    def __enter__(self) -> GenerationProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Takes the bar away, for good."""
        self._wanted = False
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def say(self, text: str) -> None:
        """A line on standard error, above the bar."""
        if self._bar is None:
            print(text, file=sys.stderr)
        else:
            self._bar.console.print(text, highlight=False, markup=False)

    def loaded(self, done: int, total: int) -> None:
        """So many bytes of the weights are on the devices."""
        self._show("loading weights", done, total, f"{done / 1e9:.1f} of {total / 1e9:.1f} GB")

    def token(self, _prompt: Prompt, _sample: int, _token: int) -> None:
        """There is one token more."""
        self._new_tokens += 1
        now = time.perf_counter()
        if self._first is None:
            self._first = now
            return
        elapsed = now - self._first
        rate = f", {(self._new_tokens - 1) / elapsed:,.1f} per second" if elapsed > _SETTLED else ""
        self._show("generating", self._done, self._texts, f"{self._new_tokens:,} tokens{rate}")

    def text(self) -> None:
        """There is one text more."""
        self._done += 1

    def _show(self, what: str, done: int, total: int, said: str) -> None:
        if not self._wanted or (self._bar is None and time.perf_counter() - self._began < _PATIENCE):
            return
        if self._bar is None:
            self._bar = _bar()
            self._bar.start()
        if self._task is None or self._bar.tasks[0].description != what:
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            self._task = self._bar.add_task(what, total=total, said=said)
        self._bar.update(self._task, said=said, completed=done)


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[said]}"), TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
