"""Programs from their text, for tests."""

from __future__ import annotations

from shardwright.ir.diagnostics import Source
from shardwright.ir.elaborate import elaborate
from shardwright.ir.parser import parse
from shardwright.ir.program import Program


def program(text: str) -> Program:
    """The program that a text means."""
    return elaborate(parse(Source("test.shard", text)))
