"""Checks of what a user sets in Python: a word of several, a whole number from 1 up."""

from __future__ import annotations

from collections.abc import Iterable

from shardwright.ir.diagnostics import NOWHERE, fault


def require_count(name: str, value: int | None) -> None:
    """Raises a `DiagnosticError` where a setting that takes a whole number from 1 up, or None, has another."""
    if value is not None and value < 1:
        raise fault("bad-setting", f"{name} is {value}, not 1 or more", NOWHERE)


def require_word(name: str, value: str | None, words: Iterable[str]) -> None:
    """Raises a `DiagnosticError` where a setting that takes one of these words, or None, has another."""
    if value is not None and value not in (known := tuple(words)):
        raise fault("bad-setting", f"{name} is {value!r}, not one of {', '.join(known)}", NOWHERE)
