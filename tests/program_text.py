"""Programs from their text, for tests."""

from __future__ import annotations

from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse
from shardwright.passes.compiling.place import Place
from shardwright.passes.pipelines import explicit


def program(text: str) -> Program:
    """The program that a text means."""
    return elaborate(parse(Source("test.shard", text)))


def by_bytes(made: Program) -> Program:
    """The explicit program whose layouts receive the fewest bytes: for tests that count them."""
    return explicit(made, place=Place(objective="bytes"))
