"""Lock files: the collectives that tests expect of functions, in a file beside them that pytest writes on request.

    # a comment

    test_layers.py::test_step[4] on tpu-v4:2x2x1
      all_gather[yz] 4423680
      reduce_scatter[x] 3538944

An entry is named by its test and by what the function is compiled for. Entries stand in the order of their names, with
an empty line between them, so that changes of different tests merge.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwright.ir.diagnostics import NOWHERE, Source, Span, fault, located
from shardwright.ir.whole_files import whole_file

FILE = "collectives.lock"
UPDATE = "--update-collectives"

_HEAD = f"# What tests in this folder expect of compiled functions. `pytest {UPDATE}` writes it."
_NAME = re.compile(r"\S.*::.* on \S+")
_WAY_OUT = f"delete the entry, and run pytest {UPDATE}"


@dataclass(frozen=True)
class Lock:
    """A lock file's text, and where in it the lines of each entry stand, counted from 1."""

    source: Source
    entries: Mapping[str, range]

    def text_of(self, entry: str) -> tuple[str, ...]:
        """The lines of an entry, without their indentation."""
        return tuple(self.source.line(number).strip() for number in self.entries[entry])


def read_lock(path: Path) -> Lock:
    """A lock file; without entries where there is none. Raises `bad-lock` where it cannot be read or is not of the form
    above."""
    source = Source(str(path), _text(path))
    entries: dict[str, range] = {}
    entry = ""
    with located(source):
        for number, line in enumerate(source.lines, 1):
            place = Span(number, 1, number, len(line) + 1)
            if not line.strip() or line.startswith("#"):
                continue
            if line[0] == " " and entry:
                entries[entry] = range(entries[entry].start, number + 1)
            elif not _NAME.fullmatch(line):
                raise fault("bad-lock", "this is neither an entry's name nor its collectives", place, _WAY_OUT)
            elif line in entries:
                raise fault("bad-lock", "this entry is there twice", place, _WAY_OUT)
            else:
                entry = line
                entries[entry] = range(number + 1, number + 1)
    return Lock(source, entries)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else "this is no UTF-8 text"
        with located(Source(str(path), "")):
            said = f"the file cannot be read: {reason}"
            raise fault("bad-lock", said, NOWHERE, f"move it away, and run pytest {UPDATE}") from None


def write_lock(path: Path, entries: Mapping[str, Sequence[str]]) -> None:
    """Writes a lock file at once, or removes it where there are no entries."""
    if not entries:
        path.unlink(missing_ok=True)
        return
    parts = [_HEAD, *("\n".join([name, *(f"  {line}" for line in entries[name])]) for name in sorted(entries))]
    with whole_file(path) as file:
        file.write(("\n\n".join(parts) + "\n").encode())
