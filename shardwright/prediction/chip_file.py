"""Chip files as text: those that come with the package under other constants, and new ones from measurements."""

from __future__ import annotations

import json
import re
from dataclasses import asdict

from shardwright.cost.hardware.constants import Constants

_HEADER = re.compile(r"\s*\[+\s*\"?([A-Za-z][\w.-]*)")
_KEY = re.compile(r"\s*\"?([\w-]+)\"?\s*=")
_TABLES = ("calibrated", "family")
_OLD = (*_TABLES, "inherits", "expected_error")


def with_constants(text: str, constants: Constants, source: str) -> str:
    """The text of a chip file with these constants, and where they are from, in place of any that it has."""
    table = ""
    kept: list[str] = []
    sources = ["[sources]\n"]
    for line in text.splitlines(keepends=True):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header is not None:
            table = header[1]
        old = table in _TABLES or (table in ("", "sources") and key is not None and key[1] in _OLD)
        if not old and (header is None or table != "sources"):
            (sources if table == "sources" else kept).append(line)
    rows = "".join(f"{name} = {value:.4g}\n" for name, value in asdict(constants).items())
    note = f"calibrated = {json.dumps(source, ensure_ascii=False)}\n"
    return f"{''.join(kept).rstrip()}\n\n[calibrated]\n{rows}\n{''.join(sources).rstrip()}\n{note}"
