"""The lines that commands show of their progress on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardwright.serving.generation.prompts import Prompt
    from shardwright.serving.offloading.report import Report

_PATIENCE = 1.0
"""Seconds of work before anything is shown of a generation."""

_SETTLED = 0.5
"""Seconds of tokens after which a rate says something."""

_INTERVAL = 0.5
"""Seconds between two lines of an offloaded run: a block may take hours before its first text is there."""


class Bar:
    """A bar on standard error, taken away at the end: what is being done, how much of it, and the columns after it."""

    def __init__(self, *columns: str) -> None:
        """Columns are those of rich, by name, or a format of what tasks say. Raises ModuleNotFoundError without it."""
        from rich import progress
        from rich.console import Console

        made = [getattr(progress, name)() if name.isidentifier() else progress.TextColumn(name) for name in columns]
        first = (progress.TextColumn("{task.description}"), progress.BarColumn())
        self._bar = progress.Progress(*first, *made, console=Console(stderr=True), transient=True)
        self._bar.start()
        self._what = ""
        self.print, self.stop = self._bar.console.print, self._bar.stop

    def show(self, what: str, done: int, total: int | None, said: str = "") -> None:
        """Shows what is done now, and how far, in place of what was done before."""
        if what != self._what:
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            self._bar.add_task(what, total=total, said=said)
            self._what = what
        self._bar.update(self._bar.task_ids[0], said=said, completed=done, total=total)


class CountProgress:
    """How many of a kind are done, configurations that `pareto` prices say, where standard error is a terminal and rich
    is installed."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._bar: Bar | None = None

    def __enter__(self) -> CountProgress:
        if sys.stderr.isatty():
            try:
                self._bar = Bar("MofNCompleteColumn", "TimeRemainingColumn")
                self._bar.show(self._what, 0, None)
            except ModuleNotFoundError:
                return self
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int | None = None) -> None:
        """So many are done, of so many."""
        if self._bar is not None:
            self._bar.show(self._what, done, total)


class GenerationProgress:
    """The progress of `generate`, where standard error is a terminal and the work takes longer than a second: bytes of
    weights, texts, tokens per second."""

    def __init__(self, texts: int, wanted: bool = True) -> None:
        self._texts = texts
        self._began = time.perf_counter()
        self._wanted = wanted and sys.stderr.isatty()
        self._bar: Bar | None = None
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
            self._bar.print(text, highlight=False, markup=False)

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
            self._bar = Bar("{task.fields[said]}", "TimeElapsedColumn")
        self._bar.show(what, done, total, said)


class OffloadProgress:
    """A line of what a run of `offload` has done, where standard error is a terminal: prompts, tokens per second, time
    left, and bytes of each memory."""

    def __init__(self, prompts: int, new_tokens: int, wanted: bool = True) -> None:
        """`new_tokens` is the most that a text may get."""
        self._prompts = prompts
        self._new_tokens = new_tokens
        self._wanted = wanted and sys.stderr.isatty()
        self._began = time.perf_counter()
        self._report: Report | None = None
        self._moved: Mapping[str, int] = {}
        self._used: Callable[[], Mapping[str, float]] = dict
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> OffloadProgress:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._wanted:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def loaded(self, done: int, total: int) -> None:
        """So many bytes of the weights are where they belong."""
        self._line(f"loading weights: {done / 1e9:.1f} of {total / 1e9:.1f} GB")

    def watch(self, report: Report, moved: Mapping[str, int], used: Callable[[], Mapping[str, float]]) -> None:
        """From now on says what `report` counts, the bytes that were moved, and those that each memory holds."""
        self._report, self._moved, self._used = report, moved, used
        self._began = time.perf_counter()
        if self._wanted:
            self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)
            self._thread.start()

    def _tick(self) -> None:
        while not self._ended.wait(_INTERVAL):
            self._line(self.text())

    def text(self) -> str:
        """The line as it is now."""
        from shardwright.ir.text.table import bytes_text

        assert self._report is not None
        report, elapsed = self._report, time.perf_counter() - self._began
        # Texts that have not ended are taken to become as long as those that have, or, where none has, as they may.
        mean = report.ended_tokens / report.prompts if report.prompts else self._new_tokens
        expected = max(self._prompts * mean, report.new_tokens)
        said = f"{report.prompts} of {self._prompts} prompts"
        if report.new_tokens:
            left = elapsed * (expected / report.new_tokens - 1)
            said += f", {report.new_tokens / elapsed:,.1f} tokens per second, {left:,.0f} s left"
        held = ", ".join(f"{tier} {bytes_text(nbytes)}" for tier, nbytes in self._used().items())
        moved = ", ".join(f"{name} {bytes_text(nbytes)}" for name, nbytes in sorted(dict(self._moved).items()))
        return said + (f"; on {held}" if held else "") + (f"; moved {moved}" if moved else "")

    def _line(self, text: str) -> None:
        if self._wanted:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
