"""Reads a TOML file key by key and says, with line and column, which key is missing, unknown or malformed."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from shardwright.ir.diagnostics import DiagnosticError, Note, Source, Span, did_you_mean, fault, located, nearest

_UNITS = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "kiB": 2**10,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]+)\s*")
_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z][\w.\- ]*?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"\s*\"?([\w\-]+)\"?\s*=")
_LARGEST_FILE = 1 << 20
_LARGEST_COUNT = 10**9
_EXTREME = 1e30
"""No time, rate or share is larger, or smaller than one over it: sums and products of such numbers stay finite."""

TablePath = tuple[str | int, ...]
_T = TypeVar("_T")
_Default = TypeVar("_Default")


def parse_size(text: str) -> float | None:
    """The bytes that `32 GiB` or `80 GB` says; None where `text` is not a number and a unit of bytes."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2] not in _UNITS:
        return None
    size = float(match[1]) * _UNITS[match[2]]
    return size if math.isfinite(size) else None


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def _is_misspelt(key: str, other: str) -> bool:
    """True if each word is nearly the other's: `memory_bytes_per_s` is no misspelt `memory`, and `read_rate`
    no `write_rate`."""
    words, others = key.split("_"), other.split("_")
    return len(words) == len(others) and all(
        did_you_mean(word, [near]) for word, near in zip(words, others, strict=True)
    )


@dataclass
class TomlTable:
    """One table of a TOML file: each getter takes a key out of it, `built` refuses what nobody took.

    A getter raises a `DiagnosticError` that points at the key. Numbers are finite; `positive` and
    `rate` refuse 0 and less.
    """

    values: dict[str, object]
    source: Source
    folder: Path
    path: TablePath = ()
    _taken: list[str] = field(default_factory=list[str])

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def text(self, key: str) -> str:
        value = self._required(key)
        if not isinstance(value, str) or not value.strip():
            raise self.bad(key, "must be a text in quotes")
        return value

    def choice(self, key: str, choices: Sequence[str]) -> str:
        value = self.text(key)
        if value not in choices:
            raise self.bad(key, f"must be one of {', '.join(choices)}", nearest(value, choices))
        return value

    def flag(self, key: str) -> bool:
        value = self._required(key)
        if not isinstance(value, bool):
            raise self.bad(key, "must be true or false")
        return value

    def number(self, key: str) -> float:
        """A finite number, 0 or more."""
        number = _finite(self._required(key))
        if number is None or number < 0:
            raise self.bad(key, "must be a number, 0 or more")
        return self._moderate(key, number)

    def positive(self, key: str) -> float:
        number = _finite(self._required(key))
        if number is None or number <= 0:
            raise self.bad(key, "must be a number above 0")
        return self._moderate(key, number)

    def _moderate(self, key: str, number: float) -> float:
        if number and not 1 / _EXTREME <= number <= _EXTREME:
            raise self.bad(key, f"must be a number from {1 / _EXTREME:g} to {_EXTREME:g}")
        return number

    def count(self, key: str) -> int:
        value = self._required(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.bad(key, "must be a whole number, 1 or more")
        if value > _LARGEST_COUNT:
            raise self.bad(key, f"must be at most {_LARGEST_COUNT:,}")
        return value

    def size(self, key: str, *, above: bool = True) -> float:
        """Bytes, written as a text with its unit, so that GB (10^9) and GiB (2^30) are told apart; `above` 0."""
        value = self._required(key)
        size = parse_size(value) if isinstance(value, str) else None
        if size is None:
            raise self.bad(key, 'must be a size with its unit, such as "32 GiB" (2^30 bytes each) or "80 GB" (10^9)')
        if above and not size:
            raise self.bad(key, "must be a size above 0")
        return size

    def rate(self, key: str) -> float:
        """Bytes a second: a number, or a text such as `12.89 GiB/s`."""
        value = self.values.get(key)
        if isinstance(value, str):
            self._required(key)
            size = parse_size(value.removesuffix("/s")) if value.endswith("/s") else None
            if size is None or not size:
                raise self.bad(key, 'must be bytes a second: a number above 0, or a text such as "12.89 GiB/s"')
            return size
        return self.positive(key)

    def shape(self, key: str) -> tuple[int, ...]:
        return self._shape(key, self._required(key))

    def shapes(self, key: str) -> tuple[tuple[int, ...], ...]:
        value = self._required(key)
        if not isinstance(value, list):
            raise self.bad(key, "must be a list of shapes, such as [[2, 2], [2, 4]]")
        return tuple(self._shape(key, shape) for shape in cast("list[object]", value))

    def _shape(self, key: str, value: object) -> tuple[int, ...]:
        sizes = cast("list[object]", value) if isinstance(value, list) else []
        whole = [size for size in sizes if isinstance(size, int) and not isinstance(size, bool) and size >= 1]
        if not whole or len(whole) != len(sizes):
            raise self.bad(key, "must give a shape as whole numbers, 1 or more, such as [4, 4, 4]")
        if max(whole) > _LARGEST_COUNT:
            raise self.bad(key, f"must give sizes of at most {_LARGEST_COUNT:,}")
        return tuple(whole)

    def table(self, key: str) -> TomlTable:
        value = self._required(key)
        if not isinstance(value, dict):
            raise self.bad(key, f"must be a table, [{'.'.join(map(str, (*self.path, key)))}]")
        return TomlTable(cast("dict[str, object]", value), self.source, self.folder, (*self.path, key))

    def tables(self, key: str) -> list[TomlTable]:
        value = self._required(key)
        rows = cast("list[object]", value) if isinstance(value, list) else []
        if not rows or not all(isinstance(row, dict) for row in rows):
            raise self.bad(key, f"must be tables, each under [[{'.'.join(map(str, (*self.path, key)))}]]")
        return [
            TomlTable(cast("dict[str, object]", row), self.source, self.folder, (*self.path, key, number))
            for number, row in enumerate(rows)
        ]

    def optional(self, key: str, read: Callable[[str], _T], default: _Default) -> _T | _Default:
        """The value that a getter takes out of the table, or the default where the key is not there."""
        self._take(key)
        return read(key) if key in self.values else default

    def inside(self, key: str, build: Callable[[TomlTable], _T]) -> _T:
        """Builds something of the table under a key, all of which must have been asked for."""
        return self.table(key).built(build)

    def built(self, build: Callable[[TomlTable], _T]) -> _T:
        """Builds something of this table, all of which must have been asked for."""
        made = build(self)
        for key in self.values:
            if key not in self._taken:
                raise self.unknown(key, self._taken)
        return made

    def each(self, read: Callable[[str], _T], known: Sequence[str] | None = None) -> dict[str, _T]:
        """The values that a getter takes of all keys, which are among the known ones where these are given."""
        for key in self.values:
            if known is not None and key not in known:
                raise self.unknown(key, known)
        return {key: read(key) for key in self.values}

    def unknown(self, key: str, known: Sequence[str]) -> DiagnosticError:
        near = nearest(key, known)
        way_out = near or f"keys here: {', '.join(known)}"
        where = f" in [{'.'.join(str(p) for p in self.path if isinstance(p, str))}]" if self.path else ""
        return fault("unknown-key", f"unknown key `{key}`{where}", self.span(key), way_out)

    def bad(self, key: str, must: str, *notes: str | Note | None) -> DiagnosticError:
        return fault("bad-value", f"`{key}` {must}", self.span(key), *notes)

    def _take(self, key: str) -> None:
        if key not in self._taken:
            self._taken.append(key)

    def _required(self, key: str) -> object:
        self._take(key)
        if key not in self.values:
            others = [other for other in self.values if other not in self._taken]
            meant = did_you_mean(key, [other for other in others if _is_misspelt(key, other)])
            if meant is not None:
                raise self.unknown(meant, [key])
            where = f"[{'.'.join(str(p) for p in self.path if isinstance(p, str))}]" if self.path else "the file"
            raise fault("missing-key", f"{where} lacks the key `{key}`", self.span(None))
        return self.values[key]

    def span(self, key: str | None) -> Span:
        """Where `key` stands; the table's own header for None, or where the key is written inline."""
        here: TablePath = ()
        counts: dict[TablePath, int] = {}
        fallback = Span(1, 1, 1, 2)
        for number, line in enumerate(self.source.lines, 1):
            if header := _HEADER.match(line):
                here = tuple(part.strip() for part in header[2].split("."))
                if header[1] == "[[":
                    counts[here] = counts.get(here, -1) + 1
                    here = (*here, counts[here])
                if here in (self.path, (*self.path, key)):
                    fallback = Span(number, header.start(1) + 1, number, len(line.split("#")[0].rstrip()) + 1)
            elif written := _KEY.match(line):
                if here == self.path and written[1] == key:
                    return Span(number, written.start(1) + 1, number, written.end(1) + 1)
                if (*here, written[1]) == self.path:  # an inline table
                    fallback = Span(number, written.start(1) + 1, number, written.end(1) + 1)
        return fallback


def read_toml(file: Path, name: str, build: Callable[[TomlTable], _T]) -> _T:
    """Builds something of a TOML file, all of whose keys must have been asked for; `name` stands in diagnostics.
    Raises where it cannot be read or is not TOML."""
    try:
        data = file.read_bytes() if file.stat().st_size <= _LARGEST_FILE else None
    except OSError as error:
        raise fault("unreadable-file", f"cannot read {name}: {(error.strerror or str(error)).lower()}") from None
    if data is None:
        raise fault("unreadable-file", f"{name} is larger than 1 MiB, so it is not a chip or machine file")
    try:
        text = data.decode("utf-8-sig")  # some editors begin a text with a mark of its encoding
    except UnicodeDecodeError:
        raise fault("unreadable-file", f"{name} is not a text in UTF-8") from None
    source = Source(name, text)
    with located(source):
        try:
            values: Mapping[str, object] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise _syntax(str(error), source) from None
        except RecursionError:
            raise fault("toml-syntax", "brackets are nested too deeply", Span(1, 1, 1, 2)) from None
        except ValueError:  # tomllib lets Python's own through for numbers of thousands of digits
            raise fault("toml-syntax", "a number has too many digits", Span(1, 1, 1, 2)) from None
        return TomlTable(dict(values), source, file.parent).built(build)


def _syntax(message: str, source: Source) -> DiagnosticError:
    at = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)", message)
    reason = message[: at.start()] if at else message
    line, column = (int(at[1]), int(at[2])) if at and at[1] else (max(1, len(source.lines)), 1)
    return fault(
        "toml-syntax", f"this is not TOML: {reason[0].lower()}{reason[1:]}", Span(line, column, line, column + 1)
    )
