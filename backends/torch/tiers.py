"""The three memories of the runtime: device, host and disk, with caps that are kept to and peaks that are measured."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault
from shardwright.ir.types import Tier

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_CHUNK = 4 << 20
"""Bytes that one reader thread reads at a time."""

_OPTIONS = {Tier.DEVICE: "--device-memory", Tier.HOST: "--host-memory", Tier.DISK: "--disk-memory"}


def sized(nbytes: float) -> str:
    """Bytes as people write them: 1.5 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:g} B"


@dataclass
class Memory:
    """What of one memory is taken. `policy` stands in what is said where it does not suffice."""

    tier: Tier
    cap: int | None
    policy: str
    used: int = 0
    peak: int = 0
    working: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, what: str, nbytes: int) -> None:
        """Takes bytes for `what`. Raises a `DiagnosticError` that names it and the policy where they are not there."""
        with self._lock:
            if self.cap is not None and self.used + nbytes > self.cap:
                raise self._full(what, nbytes)
            self.used += nbytes
            self.peak = max(self.peak, self.used + self.working)

    def give_back(self, nbytes: int) -> None:
        with self._lock:
            self.used -= nbytes

    def working_on(self, what: str, nbytes: int) -> None:
        """The values of a computation take so much, beside what is taken for longer."""
        with self._lock:
            if self.cap is not None and self.used + nbytes > self.cap:
                raise self._full(what, nbytes)
            self.working = nbytes
            self.peak = max(self.peak, self.used + nbytes)

    def _full(self, what: str, nbytes: int) -> DiagnosticError:
        place = "on disk" if self.tier is Tier.DISK else f"on the {self.tier}"
        return fault(
            "out-of-memory",
            f"{what}: {sized(nbytes)} {place}, where {sized(self.used)} of {sized(self.cap or 0)} are taken",
            NOWHERE,
            f"the policy is {self.policy}",
            f"place less there, take smaller batches, or give a larger {_OPTIONS[self.tier]}",
        )


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, pinned: bool = False) -> Tensor:
    """A tensor whose memory is allocated now; on the host pinned, where there is a CUDA device."""
    import torch

    return torch.empty(shape, dtype=dtype, device=device, pin_memory=pinned and device.type == "cpu")


class SpillFile:
    """A file of a temporary folder that has no name, so that nothing is left of it however the process ends.

    Regions are reserved when they are made, so that a full disk is found out then and not later.
    """

    def __init__(self, folder: str | None, memory: Memory, readers: int = 4) -> None:
        self.folder = folder or tempfile.gettempdir()
        self.memory = memory
        try:
            self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 - closed by close
        except OSError as error:
            raise self._failed(error, "the spill file") from None
        self._end = 0
        self._free: list[tuple[int, int]] = []
        self._pool = ThreadPoolExecutor(readers, thread_name_prefix="disk")

    def region(self, what: str, nbytes: int) -> int:
        """Where `nbytes` for `what` begin, all of them 0; aligned to pages where it is new."""
        self.memory.take(what, nbytes)
        for i, (begin, size) in enumerate(self._free):
            if size == nbytes:
                del self._free[i]
                self._clear(begin, nbytes)
                return begin
        begin = -(-self._end // 4096) * 4096
        try:
            if nbytes:
                os.posix_fallocate(self._file.fileno(), begin, nbytes)
        except OSError as error:
            raise self._failed(error, what) from None
        self._end = begin + nbytes
        return begin

    def _clear(self, begin: int, nbytes: int) -> None:
        import torch

        zeros = torch.zeros(min(nbytes, _CHUNK), dtype=torch.uint8)
        for at in range(0, nbytes, _CHUNK):
            self.write(zeros[: min(_CHUNK, nbytes - at)], begin + at)

    def release(self, begin: int, nbytes: int) -> None:
        """The region may be given to something of the same size."""
        self.memory.give_back(nbytes)
        self._free.append((begin, nbytes))

    def read(self, tensor: Tensor, at: int) -> None:
        """Fills a contiguous tensor on the host."""
        view = _bytes(tensor)
        pieces = [(i, min(i + _CHUNK, len(view))) for i in range(0, len(view), _CHUNK)]
        if len(pieces) == 1:
            self._read(view, at)
        else:

            def read(piece: tuple[int, int]) -> None:
                self._read(view[piece[0] : piece[1]], at + piece[0])

            list(self._pool.map(read, pieces))

    def _read(self, view: memoryview, at: int) -> None:
        while view:
            n = os.preadv(self._file.fileno(), [view], at)
            if not n:
                raise OSError(errno.EIO, "the spill file ends early")
            view, at = view[n:], at + n

    def write(self, tensor: Tensor, at: int) -> None:
        """Writes a tensor on the host."""
        view = _bytes(tensor.contiguous())
        try:
            while view:
                n = os.pwrite(self._file.fileno(), view, at)
                view, at = view[n:], at + n
        except OSError as error:
            raise self._failed(error, "what was computed") from None

    def _failed(self, error: OSError, what: str) -> DiagnosticError:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        reason = "the disk is full" if full else (error.strerror or str(error)).lower()
        failed = fault(
            "disk-full" if full else "spill-file",
            f"{what} cannot be spilled here: {reason}",
            NOWHERE,
            f"the policy is {self.memory.policy}",
            "place less on disk, or give another folder with --spill-dir",
        )
        failed.source = Source(self.folder, "")
        return failed

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._file.close()


def _bytes(tensor: Tensor) -> memoryview:
    import torch

    array: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)


@dataclass
class Tiers:
    """The memories, the device, and the file for what lies on disk."""

    device: torch.device
    memories: dict[Tier, Memory]
    spill: SpillFile

    @property
    def pinned(self) -> bool:
        return self.device.type == "cuda"

    def on_device(self, what: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self._made(Tier.DEVICE, what, shape, dtype)

    def on_host(self, what: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return self._made(Tier.HOST, what, shape, dtype)

    def _made(self, tier: Tier, what: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        import torch

        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self.memories[tier].take(what, nbytes)
        place = self.device if tier is Tier.DEVICE else torch.device("cpu")
        return empty(shape, dtype, place, pinned=self.pinned and tier is Tier.HOST)

    def close(self) -> None:
        self.spill.close()


@contextlib.contextmanager
def open_tiers(
    device: str | torch.device, caps: dict[Tier, int | None], policy: str, folder: str | None = None
) -> Generator[Tiers]:
    """The memories with these caps in bytes; the spill file lies in `folder`, by default that of temporary files."""
    import torch

    memories = {tier: Memory(tier, caps.get(tier), policy) for tier in Tier}
    tiers = Tiers(torch.device(device), memories, SpillFile(folder, memories[Tier.DISK]))
    try:
        yield tiers
    finally:
        tiers.close()
