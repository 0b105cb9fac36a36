"""Tables in CSV files, read line by line: all columns are known, or a table is refused, as part of it would be
ignored."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Generic, TypeVar

from shardwright.ir.diagnostics import DiagnosticError, Span, fault, nearest

_T = TypeVar("_T")
_R = TypeVar("_R")
_MOST = 1 << 24

REMARKS = ("note", "source")
"""Columns for people: nothing is computed from them."""


def letters(text: str) -> str:
    """Its letters and digits, in lower case."""
    return "".join(letter for letter in text.lower() if letter.isalnum())


@dataclass(frozen=True)
class Line:
    """A line of a table: its values by column, and its place."""

    values: Mapping[str, str]
    table: str
    span: Span

    def text(self, column: str, default: str = "") -> str:
        return self.values.get(column, "").strip() or default

    def count(self, column: str, default: int | None = None, least: int = 1) -> int:
        text = self.text(column)
        if not text and default is not None:
            return default
        whole = text.removesuffix(".0")
        if not whole.isascii() or not whole.isdecimal() or not least <= int(whole[:18]) <= _MOST:
            raise fault("bad-row", f"{column} is {text!r}, and must be a whole number from {least} up", self.span)
        return int(whole)

    def positive(self, column: str, what: str = "a number above 0", absent: Sequence[str] = ()) -> float:
        """A number above 0; of the words for what was not measured, which may be a 0, it is 0."""
        text = self.text(column)
        try:
            value = 0.0 if text.lower() in absent else float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf or not (value or "0" in absent or text.lower() in absent):
            raise fault("bad-row", f"{column} is {text!r}, and must be {what}", self.span)
        return value

    def choice(self, column: str, known: Mapping[str, _T], default: str = "") -> _T:
        text = self.text(column, default)
        if letters(text) not in known:
            raise fault("bad-row", f"{column} is {text!r}, and must be one of {', '.join(known)}", self.span)
        return known[letters(text)]

    def spelled(self, column: str, default: str, known: Sequence[str]) -> str:
        """A name of a chip or a machine, or the path of its file; `RTX 3090` is `rtx-3090`, `A100-40GB` `a100-40g`."""
        text = self.text(column, default)
        names = {letters(name): name for name in known}
        return names.get(letters(text).removesuffix("b"), names.get(letters(text), text))


@dataclass(frozen=True)
class Columns(Generic[_R]):
    """The columns of a kind of table: those that it needs, those that may come with them, what else these are called;
    and what a line of it is read as, None where it was not measured."""

    needed: Sequence[str]
    more: Sequence[str]
    words: Mapping[str, str]
    read: Callable[[Line], _R | None]


def data_lines(text: str) -> list[tuple[int, str]]:
    """The lines of a table with their numbers, the header first; comments begin with #."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip(" ,\t")]
    return [(number, line) for number, line in lines if not line.lstrip().startswith("#")]


def column_names(header: str) -> list[str]:
    """The columns of a header as they are written, in lower case."""
    return [column.strip().lstrip("\ufeff").lower() for column in next(csv.reader(StringIO(header)))]


def read_table(text: str, table: str, kinds: Sequence[Columns[_R]]) -> list[_R] | None:
    """The rows of a table, read as the first of these kinds whose columns it has; None where it has those
    of none.

    Raises where a line is at fault, with its place.
    """
    lines = data_lines(text)
    written = column_names(lines[0][1]) if lines else []
    kind = next((k for k in kinds if set(k.needed) <= {k.words.get(column, column) for column in written}), None)
    if kind is None:
        return None
    columns = read_columns(lines[0][1], lines[0][0], kind.more, kind.words, kind.needed)
    made: list[_R] = []
    for number, line in lines[1:]:
        values = next(csv.reader(StringIO(line)))
        span = Span(number, 1, number, len(line) + 1)
        if len(values) != len(columns):
            raise fault("bad-row", f"{len(values)} values in {len(columns)} columns", span)
        try:
            row = kind.read(Line(dict(zip(columns, values, strict=True)), table, span))
        except DiagnosticError as error:
            first = error.diagnostics[0]
            raise fault(first.code, first.message, span, *(note.message for note in first.notes)) from None
        if row is not None:
            made.append(row)
    return made


def read_columns(
    header: str, line: int, known: Sequence[str], same: Mapping[str, str], needed: Sequence[str]
) -> list[str]:
    """The columns of a header under their own names: `same` says which other words there are for them.

    Raises where a column is none of the known ones or of `needed`, or is there twice, with its place.
    """
    written = column_names(header)
    own = [same.get(column, column) for column in written]
    times = Counter(own)
    everything = list(dict.fromkeys((*needed, *known)))
    seen: set[str] = set()
    end = 0
    for word, column in zip(written, own, strict=True):
        if not column:
            continue
        start = max(header.lower().find(word, end), 0) + 1
        end = start + len(word)
        span = Span(line, start, line, start + len(word))
        if column in seen:
            words = " and ".join(dict.fromkeys(w for w, o in zip(written, own, strict=True) if o == column))
            raise fault(
                "twice", f"column {column} is there {times[column]} times, as {words}", span, "leave one of them"
            )
        seen.add(column)
        if column not in everything and column not in REMARKS:
            raise fault(
                "unknown-column",
                f"there is no column {word}, and nothing would be made of it",
                span,
                nearest(word, everything),
                f"the columns are {', '.join(everything)}; for remarks {' and '.join(REMARKS)}",
            )
    return own
