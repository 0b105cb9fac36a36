"""Checks of what a user sets in Python: words of several, whole numbers from 1 up, limits."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, cast

from shardwright.ir.diagnostics import NOWHERE, fault


def require_whole(name: str, value: object) -> None:
    """Raises a `DiagnosticError` where a setting that takes whole numbers, or None, has something else."""
    try:
        if value is not None:
            operator.index(cast("Any", value))
    except TypeError:
        raise fault("bad-setting", f"{name} is {value!r}, not a whole number", NOWHERE) from None


def require_count(name: str, value: int | None, least: int = 1) -> None:
    """Raises a `DiagnosticError` where a setting that takes whole numbers from `least` up, or None, has another."""
    require_whole(name, value)
    if value is not None and value < least:
        raise fault("bad-setting", f"{name} is {value}, not {least} or more", NOWHERE)


def require_word(name: str, value: str | None, words: Iterable[str]) -> None:
    """Raises a `DiagnosticError` where a setting that takes one of these words, or None, has another."""
    if value is not None and value not in (known := tuple(words)):
        raise fault("bad-setting", f"{name} is {value!r}, not one of {', '.join(known)}", NOWHERE)


def require_some(name: str, values: Sequence[str], words: Iterable[str]) -> None:
    """Raises a `DiagnosticError` where a setting that takes some of these words has another, or none."""
    known = tuple(words)
    if not values:
        raise fault("bad-setting", f"{name} is empty, not some of {', '.join(known)}", NOWHERE)
    for value in values:
        require_word(name, value, known)


def require_limit(name: str, value: float | None) -> None:
    """Raises a `DiagnosticError` where a setting that takes a number from 0 up, or None, has another."""
    if value is not None and not value >= 0:
        raise fault("bad-setting", f"{name} is {value}, not 0 or more", NOWHERE)
