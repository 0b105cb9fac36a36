"""Colours: the lexer of documentation and the grammar of VS Code know the language's words, and every example."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pygments.lexers import get_lexer_by_name
from pygments.token import Error, Keyword, Name

from shardwright.ir.elaboration.builders import BUILDERS
from shardwright.ir.names import DTYPES, KEYWORDS, TIERS
from shardwright.workbench.highlighting import ShardLexer

ROOT = Path(__file__).parents[2]
GRAMMAR = json.loads((ROOT / "editors/vscode/syntaxes/shard.tmLanguage.json").read_text())


def kinds(text: str) -> list[tuple[object, str]]:
    return [(kind, word) for kind, word in ShardLexer().get_tokens(text) if word.strip()]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.shard")), ids=lambda path: path.stem)
def test_every_example_is_coloured_throughout(path: Path) -> None:
    text = path.read_text()
    found = list(ShardLexer().get_tokens(text))
    assert [word for kind, word in found if kind is Error] == []
    assert "".join(word for _, word in found) == text


def test_pygments_finds_the_lexer() -> None:
    assert isinstance(get_lexer_by_name("shard"), ShardLexer)


def test_words_are_told_apart() -> None:
    found = kinds("h: bf16 BF_yz(partialsum-x) = all_gather[x](a @[E] w_in) on host")
    assert found[0] == (Name, "h")
    assert (Keyword.Type, "bf16") in found
    assert (Name.Class, "F") in found
    assert (Name.Attribute, "_yz") in found
    assert (Keyword.Type, "partialsum") in found
    assert (Name.Builtin, "all_gather") in found
    assert (Name, "w_in") in found
    assert (Name.Constant, "host") in found
    assert kinds("[embed_{data,model} len]")[1:3] == [(Name.Class, "embed"), (Name.Attribute, "_{data,model}")]


@pytest.mark.parametrize("operation", sorted(BUILDERS))
def test_operations_are_called(operation: str) -> None:
    assert kinds(f"y = {operation}(x)")[2] == (Name.Builtin, operation)
    assert kinds(f"y = {operation}[E](x)")[2] == (Name.Builtin, operation)


def test_the_grammar_of_vs_code_has_the_same_words() -> None:
    words = {
        rule["name"]: set(re.search(r"\(\?:(.*?)\)", rule["match"])[1].split("|"))
        for rule in GRAMMAR["patterns"]
        if "name" in rule and r"\b(?:" in rule["match"]
    }
    assert words["keyword.control.shard"] == {*KEYWORDS - {"chip"}, "in +flight"}
    assert words["storage.type.shard"] == set(DTYPES)
    assert words["constant.language.memory.shard"] == set(TIERS)
    for rule in GRAMMAR["patterns"]:
        re.compile(rule["match"])
