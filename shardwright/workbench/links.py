"""A link that holds a program and how it is looked at."""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from typing import Any, cast

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault

MOST_CHARACTERS = 100_000
"""Of a program that the explorer takes."""


def to_link(text: str, controls: dict[str, str]) -> str:
    """The part of an address that holds a text and what the controls say."""
    data = json.dumps([text, controls], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(zlib.compress(data, 9)).decode().rstrip("=")


def from_link(link: str) -> tuple[str, dict[str, str]]:
    """The text and the controls of a link. Raises a `DiagnosticError` where it is damaged or far too long."""
    try:
        unpacked = zlib.decompressobj()
        data = unpacked.decompress(base64.urlsafe_b64decode(link + "=" * (-len(link) % 4)), 4 * MOST_CHARACTERS)
        if not unpacked.eof:
            raise _damaged("its end is missing, or it is too long")
        made: Any = json.loads(data)
    except (ValueError, binascii.Error, zlib.error, RecursionError):
        raise _damaged("it cannot be read") from None
    if not (isinstance(made, list) and len(cast("list[Any]", made)) == 2):
        raise _damaged("it holds something else")
    text, controls = cast("list[Any]", made)
    if not (isinstance(text, str) and isinstance(controls, dict) and len(text) <= MOST_CHARACTERS):
        raise _damaged("it holds something else")
    pairs = cast("dict[Any, Any]", controls).items()
    return text, {str(key): value for key, value in pairs if isinstance(value, str) and len(value) < 1000}


def _damaged(why: str) -> DiagnosticError:
    return fault("bad-link", f"the link does not hold a program: {why}", NOWHERE, "copy it anew, as a whole")
