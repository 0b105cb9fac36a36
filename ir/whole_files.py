"""Files that appear whole or not at all, and what is kept between runs: its folder, and the code that it holds for."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO


def cache_folder(*names: str) -> Path:
    """A folder under XDG_CACHE_HOME, or the user's own cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "shardwright", *names)


@cache
def code_digest(*folders: str) -> str:
    """A digest of all code in these folders of the package, as in `models` or `backends/torch`."""
    package = Path(__file__).parents[1]
    made = hashlib.sha256()
    for folder in folders:
        for file in sorted((package / folder).rglob("*.py")):
            made.update(file.read_bytes())
    return made.hexdigest()


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Generator[BinaryIO]:
    """A file that takes the place of `path` when the block is left, complete or not at all.

    It is written beside its place and moved there. It keeps the permissions of the file it replaces, and a link is
    followed. Raises OSError with the name of `path`.
    """
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        mode = target.stat().st_mode & 0o7777 if target.exists() else None
        with beside.open("wb") as file:
            yield file
        if mode is not None:
            beside.chmod(mode)
        beside.replace(target)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = os.fspath(path)  # the user knows this name, not that of the file beside it
        raise
