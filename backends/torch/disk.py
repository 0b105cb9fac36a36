"""Reading ranges of files into memory with several threads, past the page cache where that is asked for.

A range goes straight to where it is wanted, or, past the page cache, where its place in memory and in the file are not
alike modulo a page, through a page-aligned buffer of the thread that reads it.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.backends.torch.tensors import bytes_of
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, fault

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    Bytes = npt.NDArray[np.uint8]

PAGE = 4096
CHUNK = 4 << 20
"""Bytes that one thread reads at a time."""

BUFFER = CHUNK + 2 * PAGE
"""Bytes of the buffer that a thread reads through past the page cache, where what it reads is not aligned."""

_MEMORY_FACTS = Path("/proc/meminfo")


class InputFile:
    """A file that is read, called `name` in what is said of it."""

    def __init__(self, path: str, name: str, *, direct: bool) -> None:
        """With `direct`, past the page cache, where the file system can. Raises where it cannot be opened."""
        self.name = name
        self.direct: int | None = None
        try:
            self.plain = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self.failed("the file", error) from None
        if direct and hasattr(os, "O_DIRECT"):
            try:
                self.direct = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
            except OSError:
                self.direct = None  # not every file system can: read through the page cache

    def failed(self, what: str, error: OSError) -> DiagnosticError:
        return self._fault("unreadable-file", f"{what} cannot be read: {(error.strerror or str(error)).lower()}")

    def ended(self, what: str, end: int, wanted: int) -> DiagnosticError:
        return self._fault(
            "corrupt-file",
            f"{what} cannot be read: it goes to byte {wanted}, and the file ends at byte {end}",
            "something changed it in the meantime; begin again when it is complete",
        )

    def _fault(self, code: str, message: str, *notes: str) -> DiagnosticError:
        made = fault(code, message, NOWHERE, *notes)
        made.source = Source(self.name, "")
        return made

    def close(self) -> None:
        for descriptor in (self.plain, self.direct):
            if descriptor is not None:
                os.close(descriptor)


class Readers:
    """Threads that read. With `direct` files are read past the page cache."""

    def __init__(self, threads: int = 4, *, direct: bool = False) -> None:
        self.direct = direct
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="disk reader")
        self._buffers = threading.local()
        self._files: dict[str, InputFile] = {}

    def open(self, path: str, name: str | None = None) -> InputFile:
        """The file at `path`, opened once and closed with the readers."""
        if path not in self._files:
            self._files[path] = InputFile(path, name or path, direct=self.direct)
        return self._files[path]

    def jobs(self, file: InputFile, what: str, target: Tensor, offset: int) -> list[Callable[[], None]]:
        """Jobs that fill a contiguous tensor on the host with the bytes of the file from `offset` on, in pieces."""
        view = bytes_of(target).numpy()
        cuts = [0, *range(CHUNK - offset % PAGE, len(view), CHUNK), len(view)]

        def job(start: int, stop: int) -> Callable[[], None]:
            return lambda: self._fill(file, what, view[start:stop], offset + start)

        return [job(start, stop) for start, stop in itertools.pairwise(cuts) if stop > start]

    def run(self, jobs: Sequence[Callable[[], None]]) -> None:
        """Does all jobs, several at a time. Raises what the first to fail has raised, when none is running any more."""
        if len(jobs) == 1:
            jobs[0]()
            return
        futures = [self._pool.submit(job) for job in jobs]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            future.cancel()
        wait(futures)
        for future in futures:
            if not future.cancelled():
                future.result()

    def _fill(self, file: InputFile, what: str, view: Bytes, offset: int) -> None:
        if file.direct is None:
            self._fill_plain(file, what, view, offset)
        elif (view.ctypes.data - offset) % PAGE:
            self._fill_through_buffer(file, what, view, offset)
        else:
            begin = min(len(view), -offset % PAGE)
            end = max(begin, len(view) - (offset + len(view)) % PAGE)
            self._fill_plain(file, what, view[:begin], offset)
            done = _read(file, what, file.direct, view[begin:end], offset + begin)
            self._fill_plain(file, what, view[begin + done :], offset + begin + done)

    def _fill_plain(self, file: InputFile, what: str, view: Bytes, offset: int) -> None:
        done = _read(file, what, file.plain, view, offset)
        if done < len(view):
            raise file.ended(what, offset + done, offset + len(view))

    def _fill_through_buffer(self, file: InputFile, what: str, view: Bytes, offset: int) -> None:
        import numpy as np

        assert file.direct is not None
        if not hasattr(self._buffers, "own"):
            self._buffers.own = np.frombuffer(mmap.mmap(-1, BUFFER), np.uint8)
        before = offset % PAGE
        whole = -(-(before + len(view)) // PAGE) * PAGE
        done = max(0, _read(file, what, file.direct, self._buffers.own[:whole], offset - before) - before)
        done = min(done, len(view))
        np.copyto(view[:done], self._buffers.own[before : before + done])
        self._fill_plain(file, what, view[done:], offset + done)

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
        for file in self._files.values():
            file.close()
        self._files.clear()


def _read(file: InputFile, what: str, descriptor: int, view: Bytes, offset: int) -> int:
    """Fills what of the view the file has; how much that is. Past the page cache what is not aligned is left over."""
    done = 0
    while done < len(view):
        try:
            rest: Any = view[done:]
            n = os.preadv(descriptor, [rest], offset + done)
        except InterruptedError:
            continue
        except OSError as error:
            if descriptor == file.direct and error.errno == errno.EINVAL:
                return done  # this file system wants another alignment, or after a short read the rest is not aligned
            raise file.failed(what, error) from None
        if not n:
            break
        done += n
        if descriptor == file.direct and done % PAGE:
            break
    return done


def page_aligned(nbytes: int) -> Tensor:
    """Memory on the host that begins at a page."""
    import torch

    whole = torch.empty(nbytes + PAGE, dtype=torch.uint8)
    begin = -whole.data_ptr() % PAGE
    return whole[begin : begin + nbytes]


def available_memory() -> int | None:
    """Bytes that the operating system could give to the page cache or to programs; None where it does not say."""
    try:
        with _MEMORY_FACTS.open(encoding="ascii") as file:
            return next((1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:")), None)
    except OSError:
        return None
