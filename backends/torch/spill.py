"""The file of a temporary folder for what of caches, hidden states and quantized weights lies on disk."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from shardwright.backends.torch.disk import CHUNK, PAGE, InputFile, Readers
from shardwright.backends.torch.memory import MemoryAccount
from shardwright.backends.torch.tensors import bytes_of
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault

if TYPE_CHECKING:
    from torch import Tensor


class SpillFile:
    """A file that has no name, so that nothing is left of it however the process ends.

    Its regions begin at pages and are reserved when they are made, so that a full disk is found out then and not later.
    """

    def __init__(self, folder: str | None, memory: MemoryAccount, readers: Readers) -> None:
        self.folder = folder or tempfile.gettempdir()
        self.memory = memory
        self._readers = readers
        try:
            self._file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 - closed by close
            self._input: InputFile = readers.open(f"/dev/fd/{self._file.fileno()}", self.folder)
        except OSError as error:
            raise self._failed(error, "the spill file") from None
        self._end = 0
        self._free: list[tuple[int, int]] = []
        self._lock = threading.Lock()

    def region(self, what: str, nbytes: int) -> int:
        """Where `nbytes` for `what` begin, all of them 0."""
        self.memory.take(what, nbytes)
        with self._lock:
            found = next((place for place in self._free if place[1] == nbytes), None)
            if found is None:
                begin = -(-self._end // PAGE) * PAGE
                self._end = begin + nbytes
                try:
                    if nbytes:
                        os.posix_fallocate(self._file.fileno(), begin, nbytes)
                except OSError as error:
                    raise self._failed(error, what) from None
                return begin
            self._free.remove(found)
        begin, _ = found
        self._clear(what, begin, nbytes)
        return begin

    def _clear(self, what: str, begin: int, nbytes: int) -> None:
        import torch

        zeros = torch.zeros(min(nbytes, CHUNK), dtype=torch.uint8)
        for at in range(0, nbytes, CHUNK):
            self.write(what, zeros[: min(CHUNK, nbytes - at)], begin + at)

    def release(self, begin: int, nbytes: int) -> None:
        """The region may be given to something of the same size."""
        self.memory.give_back(nbytes)
        with self._lock:
            self._free.append((begin, nbytes))

    def jobs(self, what: str, tensor: Tensor, at: int) -> list[Callable[[], None]]:
        """Jobs that fill a contiguous tensor on the host, for `Readers.run`."""
        return self._readers.jobs(self._input, what, tensor, at)

    def write(self, what: str, tensor: Tensor, at: int) -> None:
        """Writes a tensor on the host."""
        data: Any = bytes_of(tensor).numpy()
        view = memoryview(data)
        try:
            while view:
                n = os.pwrite(self._file.fileno(), view, at)
                view, at = view[n:], at + n
        except OSError as error:
            raise self._failed(error, what) from None

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
        self._file.close()
