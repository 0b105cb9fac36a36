"""The time that all measurements of a run may take, and the reason where nothing can be measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


class NotMeasuredError(Exception):
    """Nothing can be measured, or no more: the reason, in one line."""


@dataclass
class Limit:
    """So many seconds from now for all measurements; `told` is given the name of each before it is begun."""

    limit_s: float
    told: Callable[[str], object] = lambda _: None
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = time.monotonic() + self.limit_s

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    def begin(self, what: str) -> None:
        """Raises NotMeasuredError where the time is over."""
        if self.left_s <= 0:
            kept = "what was compiled is kept, so the same command goes on"
            raise NotMeasuredError(f"the {self.limit_s:g} s of the time limit are over; {kept}")
        self.told(what)
