"""Chip files as text: those that come with the package under other constants, and new ones from measurements."""

from __future__ import annotations

import re
from dataclasses import asdict

from shardwright.cost.hardware.constants import Constants

_OLD = ("calibrated = ", "inherits = ", "expected_error = ", "family = ")
_CALIBRATED = re.compile(r"^\[(?:calibrated|family)\]\n(?:[^\[\n].*\n|\n)*", re.MULTILINE)


def with_constants(text: str, constants: Constants, source: str) -> str:
    """The text of a chip file with these constants, and where they are from, in place of any that it has."""
    rows = "".join(f"{name} = {value:.4g}\n" for name, value in asdict(constants).items())
    bare = _CALIBRATED.sub("", text)
    bare = "".join(line for line in bare.splitlines(keepends=True) if not line.startswith(_OLD))
    head, mark, sources = bare.partition("[sources]\n")
    table = f"[calibrated]\n{rows}\n"
    note = f'calibrated = "{source}"\n'
    return (
        f"{head.rstrip()}\n\n{table}{mark or '[sources]' + chr(10)}{sources.rstrip()}{chr(10) if sources else ''}{note}"
    )
