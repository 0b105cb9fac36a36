"""The lines that a run of `offload` shows on a terminal: prompts, tokens per second, time left, and bytes of each
memory."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardwright.offloading.report import Report

_INTERVAL = 0.5
"""Seconds between two lines: a block may take hours before its first text is there."""


class OffloadProgress:
    """A line on standard error, where that is a terminal."""

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
        from shardwright.backends.torch.memory import sized

        assert self._report is not None
        report, elapsed = self._report, time.perf_counter() - self._began
        # Texts that have not ended are taken to become as long as those that have, or, where none has, as they may.
        mean = report.ended_tokens / report.prompts if report.prompts else self._new_tokens
        expected = max(self._prompts * mean, report.new_tokens)
        said = f"{report.prompts} of {self._prompts} prompts"
        if report.new_tokens:
            left = elapsed * (expected / report.new_tokens - 1)
            said += f", {report.new_tokens / elapsed:,.1f} tokens per second, {left:,.0f} s left"
        held = ", ".join(f"{tier} {sized(nbytes)}" for tier, nbytes in self._used().items())
        moved = ", ".join(f"{name} {sized(nbytes)}" for name, nbytes in sorted(dict(self._moved).items()))
        return said + (f"; on {held}" if held else "") + (f"; moved {moved}" if moved else "")

    def _line(self, text: str) -> None:
        if self._wanted:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
