"""The collectives of a compiled function as one text, for tests to say what they expect and for people to read.

    all_gather[yz] 4423680; 2x reduce_scatter[data,model:(2)2] 3538944 * 118

An entry is how many alike there are, where several; the collective; the mesh axes that it goes along; the bytes that a
chip receives when it runs once; and how often it runs, in a loop, `?` where nobody knows. Semicolons or line ends are
between entries, whose order means nothing. `none` stands for no collective.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.backends.hlo.collectives import WORDS
from shardwright.backends.hlo.mesh_axes import IRREGULAR
from shardwright.ir.diagnostics import Source, Span, fault, nearest
from shardwright.ir.types import is_short_axis

NONE = "none"

_OPS = tuple(dict.fromkeys(WORDS.values()))
_PIECE = re.compile(r"\s*([^;\s](?:[^;]*[^;\s])?)")
_PARTS = (
    ("a collective", re.compile(r"(?:(?P<count>[1-9]\d*)x\s+)?(?P<op>[A-Za-z][\w\-]*)\s*")),
    ("the mesh axes in brackets", re.compile(r"\[(?P<axes>[^\[\]]*)\]\s*")),
    ("the bytes that a chip receives", re.compile(r"(?P<bytes>\d+)(?!\w)\s*")),
    ("how often it runs", re.compile(r"(?:\*\s*(?P<trips>[1-9]\d*|\?))?$")),
)
_EXAMPLE = "as in `all_gather[x] 1024`, or `2x all_gather[x] 1024 * 12`: two, each in a loop of 12 trips"
_SHORT_AXES = re.compile(r"(?:[a-z][0-9]*)+")
_SHORT_AXIS = re.compile(r"[a-z][0-9]*")
_WORDS = {2: "two", 3: "three", 4: "four"}
_PART = re.compile(r"(.+):\(([1-9]\d*)\)([1-9]\d*)")


@dataclass(frozen=True)
class CollectiveEntry:
    """A collective along axes of a mesh, in their order, with the bytes that a chip receives when it runs once. `trips`
    is None where it is not known how often it runs."""

    op: str
    axes: tuple[str, ...]
    bytes_once: int
    trips: int | None = 1

    def __str__(self) -> str:
        axes = ("" if all(map(is_short_axis, self.axes)) else ",").join(self.axes)
        times = "" if self.trips == 1 else f" * {self.trips or '?'}"
        return f"{self.op}[{axes}] {self.bytes_once}{times}"

    @property
    def bytes_received(self) -> int:
        """In all trips; a loop of unknown length counts once."""
        return self.bytes_once * (self.trips or 1)


def entries_text(entries: Counter[CollectiveEntry]) -> list[str]:
    """A line for each entry, in an order that depends on nothing else."""
    lines = sorted(entries, key=lambda entry: (entry.op, entry.axes, entry.bytes_once, entry.trips or 0))
    return [f"{entries[entry]}x {entry}" if entries[entry] > 1 else str(entry) for entry in lines] or [NONE]


def parse_entries(source: Source, mesh: Mapping[str, int], lines: range | None = None) -> Counter[CollectiveEntry]:
    """The entries of a text, or of some of its lines, counted from 1. Raises `bad-collectives`, `unknown-collective`,
    `unknown-axis` or `axis-twice` with the place."""
    entries: Counter[CollectiveEntry] = Counter()
    nothing: Span | None = None
    for number in range(1, len(source.lines) + 1) if lines is None else lines:
        for piece in _PIECE.finditer(source.line(number)):
            if piece[1] == NONE:
                nothing = Span(number, piece.start(1) + 1, number, piece.end(1) + 1)
                continue
            entry, count = _entry(piece[1], mesh, number, piece.start(1) + 1)
            entries[entry] += count
    if nothing is not None and entries:
        raise fault(
            "bad-collectives", f"`{NONE}` stands for no collective, and here are others", nothing, "leave it out"
        )
    return entries


def _entry(text: str, mesh: Mapping[str, int], line: int, column: int) -> tuple[CollectiveEntry, int]:
    """An entry, and how many there are; `text` begins in this column of the line."""
    at = 0
    fields: dict[str, str | None] = {}
    places: dict[str, Span] = {}
    for what, pattern in _PARTS:
        match = pattern.match(text, at)
        if match is None:
            found = f"`{text[at:]}`" if text[at:] else f"nothing behind `{text}`"
            place = Span(line, column + at, line, column + max(len(text), at + 1))
            hint = "between collectives there is `;`" if text[at:].startswith(",") else _EXAMPLE
            raise fault("bad-collectives", f"expected {what}, found {found}", place, hint)
        for name in pattern.groupindex:
            fields[name] = match[name]
            places[name] = Span(line, column + match.start(name), line, column + match.end(name))
        at = match.end()
    op, trips = fields["op"] or "", fields["trips"] or "1"
    if op not in _OPS:
        near = nearest(op.replace("-", "_"), _OPS)
        hints = (near,) if near else (f"there are {', '.join(_OPS)}",)
        raise fault("unknown-collective", f"there is no collective {op}", places["op"], *hints)
    axes = _axes(fields["axes"] or "", mesh, places["axes"])
    entry = CollectiveEntry(op, axes, int(fields["bytes"] or 0), None if trips == "?" else int(trips))
    return entry, int(fields["count"] or 1)


def _axes(text: str, mesh: Mapping[str, int], span: Span) -> tuple[str, ...]:
    """`yz`, `data,model` or `model:(2)2`, in the order of the mesh."""
    words = [word.strip() for word in text.split(",")]
    if tuple(words) == IRREGULAR:
        return IRREGULAR
    if len(words) == 1 and words[0] not in mesh and _SHORT_AXES.fullmatch(words[0]):
        letters = _SHORT_AXIS.findall(words[0])
        words = letters if any(letter in mesh for letter in letters) else words
    found: dict[tuple[int, int], str] = {}
    for word in words:
        part = _PART.fullmatch(word)
        axis, before, size = (part[1], int(part[2]), int(part[3])) if part else (word, 1, mesh.get(word, 1))
        if axis not in mesh:
            near = nearest(axis, tuple(mesh))
            there = " ".join(f"{name}={chips}" for name, chips in mesh.items())
            hint = near or f"the mesh is {there}"
            raise fault("unknown-axis", f"the mesh has no axis {axis}" if axis else "an axis is missing", span, hint)
        if part and (mesh[axis] % (before * size) or size in {1, mesh[axis]}):
            wrong = f"the {mesh[axis]} chips of {axis} have no part ({before}){size}"
            raise fault("bad-collectives", wrong, span, _parts_of(axis, mesh[axis]))
        place = tuple(mesh).index(axis), before
        if place in found:
            raise fault("axis-twice", f"{word} is named twice", span, "name it once")
        found[place] = word
    return tuple(word for _, word in sorted(found.items()))


def _parts_of(axis: str, chips: int) -> str:
    """How a part of an axis is written, by one that there is."""
    before = next((n for n in range(2, chips) if chips % n == 0), None)
    if before is None:
        return f"{axis} has no parts: name it whole"
    size, parts = (_WORDS.get(n, str(n)) for n in (chips // before, before))
    return f"`{axis}:({before}){chips // before}` is {size} chips in each of {parts} parts of {axis}"
