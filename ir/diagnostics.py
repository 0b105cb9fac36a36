"""Diagnostics: where an input is at fault, why, and what would mend it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of source text; lines and columns count from 1, `end_column` is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int

    def to(self, other: Span) -> Span:
        """The span from the start of this one to the end of `other`."""
        return Span(self.line, self.column, other.end_line, other.end_column)


NOWHERE = Span(0, 0, 0, 0)
"""The place of what a pass made and nobody wrote."""


@dataclass(frozen=True, slots=True)
class Source:
    """A named text that spans point into. `name` is what diagnostics print, usually a path."""

    name: str
    text: str
    lines: tuple[str, ...] = field(default=(), repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lines", tuple(self.text.split("\n")))

    def line(self, number: int) -> str:
        return self.lines[number - 1].rstrip("\r") if 1 <= number <= len(self.lines) else ""

    def has(self, span: Span) -> bool:
        """Tells whether the place can be shown: an empty text has only its beginning."""
        return bool(span.line) and (bool(self.text) or (span.line, span.column) == (1, 1))


@dataclass(frozen=True, slots=True)
class Fix:
    """A change of the text: where the fault is, the word `old` becomes `new`, or all of the place where `old` is "".

    `...` in `new` stands for what was there.
    """

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Note:
    """A remark beneath a diagnostic: a second place, or the way out, with the changes that it proposes."""

    message: str
    span: Span | None = None
    fixes: tuple[Fix, ...] = ()

    @staticmethod
    def of(remark: str | Note) -> Note:
        return Note(remark) if isinstance(remark, str) else remark


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One fault: a stable `code`, a message in the field's words, a place, and notes."""

    code: str
    message: str
    span: Span
    notes: tuple[Note, ...] = ()
    severity: Severity = Severity.ERROR

    def says(self) -> str:
        """`message [code]`."""
        return f"{self.message} [{self.code}]"

    def render(self, source: Source) -> str:
        """`file:line:column: error: message [code]`, the source line, carets, then the notes.

        Without the place where the source has no text, as a checkpoint has none: the program made of it is not at hand.
        """
        head = f"{source.name}:{self.span.line}:{self.span.column}: " if source.has(self.span) else f"{source.name}: "
        parts = [f"{head}{self.severity}: {self.says()}", *_excerpt(source, self.span)]
        for note in self.notes:
            placed = note.span if note.span and source.has(note.span) else None
            where = f"{source.name}:{placed.line}:{placed.column}: " if placed else ""
            parts.append(f"{where}note: {note.message}")
            if note.span is not None:
                parts.extend(_excerpt(source, note.span))
        return "\n".join(parts)

    def as_json(self) -> dict[str, object]:
        """The keys that `--json` promises."""
        return {
            "severity": str(self.severity),
            "code": self.code,
            "message": self.message,
            "line": self.span.line,
            "column": self.span.column,
            "notes": [note.message for note in self.notes],
        }


_WIDEST_EXCERPT = 160


def _excerpt(source: Source, span: Span) -> list[str]:
    if not source.has(span):
        return []
    text = source.line(span.line)
    end = span.end_column if span.end_line == span.line else len(text) + 1
    start = span.column - 1
    width = max(1, min(end - span.column, len(text) - start))
    if len(text) > _WIDEST_EXCERPT:  # a window around the place, so that a line of megabytes stays readable
        left = max(0, start - 60)
        text, start = text[left : left + _WIDEST_EXCERPT], start - left
        width = max(1, min(width, len(text) - start))
    printable = "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    indent = "".join("\t" if c == "\t" else " " for c in printable[:start])
    return [f"  {printable}", f"  {indent}{'^' * width}"]


class DiagnosticError(Exception):
    """Raised where an input is at fault; carries every diagnostic found so far, never empty.

    Its text is that of the diagnostics: each with its place and its line where the text is known, and its way out.
    """

    def __init__(self, diagnostics: Sequence[Diagnostic], source: Source | None = None) -> None:
        self.diagnostics = tuple(dict.fromkeys(diagnostics))  # found twice, said once
        self.source = source
        super().__init__(self.diagnostics)

    def remark(self, *notes: str) -> None:
        """Puts notes beneath every diagnostic."""
        made = tuple(map(Note, notes))
        self.diagnostics = tuple(replace(each, notes=(*each.notes, *made)) for each in self.diagnostics)

    def render(self) -> str:
        source = self.source or Source("<program>", "")
        return "\n".join(d.render(source) for d in self.diagnostics)

    def __str__(self) -> str:
        if self.source:
            return self.render()
        return "\n".join(
            line for d in self.diagnostics for line in (d.says(), *(f"note: {note.message}" for note in d.notes))
        )


class CompilerFault(Exception):  # noqa: N818 - the word of this project for what is wrong and whose it is
    """Raised where the compiler is at fault, not its input: a check of its own work failed."""


def fault(code: str, message: str, span: Span = NOWHERE, *notes: str | Note | None) -> DiagnosticError:
    """A `DiagnosticError` of one diagnostic, to be raised by the caller. None, as `nearest` may give it, is no note."""
    return DiagnosticError(
        [Diagnostic(code, message, span, tuple(Note.of(note) for note in notes if note is not None))]
    )


@contextmanager
def located(source: Source) -> Generator[None]:
    """Gives diagnostics raised inside the text that their spans point into."""
    try:
        yield
    except DiagnosticError as error:
        if error.source is None:
            error.source = source
        raise


def decoded(name: str, data: bytes, note: str) -> Source:
    """The text that bytes are. Raises a `DiagnosticError` at the first byte that is no UTF-8."""
    try:
        return Source(name, data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        message = f"the byte 0x{data[error.start]:02x} is not UTF-8 text"
        with located(Source(name, data.decode("utf-8", errors="replace"))):
            raise fault("not-utf8", message, Span(line, column, line, column + 1), note) from None


@contextmanager
def placed(span: Span) -> Generator[None]:
    """Gives a place to the diagnostics raised inside that have none."""
    try:
        yield
    except DiagnosticError as error:
        error.diagnostics = tuple(d if d.span.line else replace(d, span=span) for d in error.diagnostics)
        raise


def did_you_mean(word: str, candidates: Sequence[str]) -> str | None:
    """The candidate nearest to `word`, if one is near: one that begins with it, or is spelt nearly like it."""
    from difflib import get_close_matches

    begun = [name for name in candidates if len(word) > 2 and name.startswith(word)]
    near = begun or get_close_matches(word, candidates, n=1, cutoff=0.6)
    return near[0] if near else None


def nearest(word: str, candidates: Sequence[str]) -> Note | None:
    """The note that asks whether the candidate nearest to `word` was meant, where one is near."""
    near = did_you_mean(word, candidates)
    return meant(word, near) if near else None


def meant(word: str, other: str) -> Note:
    """The note that asks whether another word was meant."""
    return Note(f"did you mean {other}?", fixes=(Fix(word, other),))
