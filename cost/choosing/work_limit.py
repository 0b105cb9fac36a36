"""Limits on the work of choosing layouts: numbers looked at, not seconds, so that the choice is the same everywhere."""

from __future__ import annotations

import math
from dataclasses import dataclass


class OutOfWorkError(Exception):
    """The limit does not allow what would find a choice."""


@dataclass
class WorkLimit:
    """How many entries of tables may be looked at, and how many have been. About 3e8 take a second."""

    most: float = math.inf
    spent: float = 0.0

    def charge(self, entries: float) -> None:
        """Counts entries that are looked at."""
        self.spent += entries

    def allows(self, entries: float) -> bool:
        """Tells whether so many more may be looked at."""
        return self.spent + entries <= self.most

    @property
    def exhausted(self) -> bool:
        return self.spent >= self.most
