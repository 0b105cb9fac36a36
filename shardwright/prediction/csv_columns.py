"""The columns of a user's table: all of them are known, or the table is refused, as part of it would be ignored."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from io import StringIO

from shardwright.ir.diagnostics import Span, fault, nearest

REMARKS = ("note", "source")
"""Columns for people: nothing is computed from them."""


def read_columns(
    header: str, line: int, known: Sequence[str], same: Mapping[str, str], needed: Sequence[str]
) -> list[str]:
    """The columns of a header under their own names: `same` says which other words there are for them.

    Raises where a column is none of the known ones or of `needed`, or is there twice, with its place.
    """
    written = [column.strip().lstrip("\ufeff").lower() for column in next(csv.reader(StringIO(header)))]
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
            near = nearest(word, everything)
            raise fault(
                "unknown-column",
                f"there is no column {word}, and nothing would be made of it",
                span,
                *([near] if near else []),
                f"the columns are {', '.join(everything)}; for remarks {' and '.join(REMARKS)}",
            )
    return own
