"""Elementwise operations as a program writes them, each from its entry in the table."""

from __future__ import annotations

from shardwright.ir.ops.elementwise_table import FORMS, Entry

OPERANDS = "abc"
SIGNS = {"+": "a + b", "-": "a - b", "*": "a * b", "/": "a / b", "neg": "-a"}


def call(entry: Entry) -> str:
    """The operation of a, b and c, as many as it takes."""
    form = "" if entry.form == FORMS[entry.keyword][0] else f"[form={entry.form}]"
    return SIGNS.get(entry.keyword) or f"{entry.keyword}{form}({', '.join(OPERANDS[: len(entry.takes)])})"
