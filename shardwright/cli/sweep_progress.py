"""The lines that `pareto` shows of its progress on a terminal: how many configurations are priced."""

from __future__ import annotations

import sys
from typing import Any


class SweepProgress:
    """A bar on standard error, where that is a terminal and rich is installed."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> SweepProgress:
        if sys.stderr.isatty():
            try:
                self._bar = _bar()
            except ModuleNotFoundError:
                return self
            self._task = self._bar.add_task("pricing", total=None)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        """So many configurations are priced, of so many."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
