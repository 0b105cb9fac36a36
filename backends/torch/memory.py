"""The bytes that are taken of one memory: caps that are kept to, and peaks that are measured."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault
from shardwright.ir.text.table import bytes_text
from shardwright.ir.types import Tier

_OPTIONS = {Tier.DEVICE: "--device-memory", Tier.HOST: "--host-memory", Tier.DISK: "--disk-memory"}


class OutOfMemoryError(DiagnosticError):
    """A memory does not suffice; `tier` says which."""

    def __init__(self, made: DiagnosticError, tier: Tier) -> None:
        super().__init__(made.diagnostics, made.source)
        self.tier = tier


@dataclass
class MemoryAccount:
    """The bytes that are taken of one memory. `policy` stands in what is said where it does not suffice."""

    tier: Tier
    cap: int | None
    policy: str
    used: int = 0
    peak: int = 0
    working: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, what: str, nbytes: int, *notes: str) -> None:
        """Takes bytes for `what`, between computations. Raises a `DiagnosticError` that names it and the policy where
        they are not there, with further `notes`."""
        with self._lock:
            if self.cap is not None and self.used + nbytes > self.cap:
                raise self._above_cap(what, nbytes, self.cap, *notes)
            self.used += nbytes
            self.working = 0
            self.peak = max(self.peak, self.used)

    def give_back(self, nbytes: int) -> None:
        with self._lock:
            self.used -= nbytes

    def working_on(self, what: str, nbytes: int) -> None:
        """The values of a computation take so much, beside what is taken for longer."""
        with self._lock:
            if self.cap is not None and self.used + nbytes > self.cap:
                raise self._above_cap(what, nbytes, self.cap)
            self.working = nbytes
            self.peak = max(self.peak, self.used + nbytes)

    def refused(self, what: str, nbytes: int | None = None) -> DiagnosticError:
        """The operating system, or the device, has not so much left."""
        size = "" if nbytes is None else f": {bytes_text(nbytes)}"
        return self._fault(f"{what}{size} {self._place}, which has no more left; {bytes_text(self.used)} are taken")

    def _above_cap(self, what: str, nbytes: int, cap: int, *notes: str) -> DiagnosticError:
        there = f"{bytes_text(nbytes)} {self._place}, where {bytes_text(self.used)} of {bytes_text(cap)} are taken"
        return self._fault(f"{what}: {there}", *notes)

    @property
    def _place(self) -> str:
        return "on disk" if self.tier is Tier.DISK else f"on the {self.tier}"

    def _fault(self, message: str, *notes: str) -> DiagnosticError:
        made = fault(
            "out-of-memory",
            message,
            NOWHERE,
            f"the policy is {self.policy}",
            f"place less there, take smaller batches, or give a larger {_OPTIONS[self.tier]}",
            *notes,
        )
        return OutOfMemoryError(made, self.tier)
