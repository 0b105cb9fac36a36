"""Digests of files by all of their bytes, by which a run knows them again when it goes on."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

_PIECE = 64 << 20
"""Bytes of which one thread makes one digest; that of a file is made of those of its pieces."""

_BUFFER = 1 << 20
_THREADS = 4


def digest_of(data: bytes) -> str:
    """16 bytes of SHA-256, as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()[:32]


def file_digests(paths: Iterable[Path], known: Mapping[str, Any]) -> dict[str, Any]:
    """For each file, by its whole name, what is to be kept of it: `{"digest", "size", "mtime_ns", "inode"}`.

    What was kept of a file before and is `known` stands for it as long as its size, its time of modification and its
    inode are the same; any other file is read whole, by several threads. Raises OSError where one cannot be read.
    """
    kept: dict[str, Any] = {}
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="digest") as pool:
        for path in paths:
            status = path.stat()
            facts = {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}
            name = str(path.resolve())
            before = known.get(name)
            if isinstance(before, dict) and {**cast("dict[str, object]", before), **facts} == before:
                kept[name] = before
                continue
            begins = range(0, max(1, status.st_size), _PIECE)
            pieces = pool.map(_piece, [path] * len(begins), begins)
            kept[name] = {"digest": digest_of(b"".join(pieces)), **facts}
    return kept


def _piece(path: Path, begin: int) -> bytes:
    """The digest of the bytes of a file from `begin` on."""
    made, buffer = hashlib.sha256(), bytearray(_BUFFER)
    with path.open("rb", buffering=0) as file:
        at, end = begin, begin + _PIECE
        while at < end:
            n = os.preadv(file.fileno(), [memoryview(buffer)[: min(_BUFFER, end - at)]], at)
            if not n:
                break
            made.update(memoryview(buffer)[:n])
            at += n
    return made.digest()
