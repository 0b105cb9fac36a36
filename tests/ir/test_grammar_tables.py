"""The tables that are kept are those of the grammar, and the parser that is made of them is the one that lark makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.ir.diagnostics import Source
from shardwright.ir.text import grammar_tables
from shardwright.ir.text.parser import grammar, parse

EXAMPLE = Path(__file__).parents[2] / "examples" / "12_explicit_attention.shard"


def test_kept_as_they_are_made() -> None:
    """Else: python -m shardwright.ir.text.grammar_tables"""
    from lark import __version__

    kept = json.loads((Path(grammar_tables.__file__).parent / "grammar.json").read_text(encoding="utf-8"))
    made = grammar_tables.tables()
    assert kept["key"][1] == made["key"][1]
    if kept["key"][0] == __version__:
        assert set(kept["data"]) == set(made["data"])


def test_the_same_tree_without_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = Source(str(EXAMPLE), EXAMPLE.read_text(encoding="utf-8"))
    kept = parse(source)
    monkeypatch.setattr(grammar_tables, "_TABLES", tmp_path / "none.json")
    grammar.cache_clear()
    made = parse(source)
    grammar.cache_clear()
    assert kept == made
