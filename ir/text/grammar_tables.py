"""The parser of the grammar, its tables kept as JSON beside it: making them takes longer than most small programs.

python -m shardwright.ir.text.grammar_tables     writes them anew, after a change of the grammar or another lark
"""

from __future__ import annotations

import json
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lark import Lark

_GRAMMAR = Path(__file__).with_name("grammar.lark")
_TABLES = Path(__file__).with_name("grammar.json")
_PLACED = ("transformer", "postlex")
"""Options that are objects, given to a parser that is read as to one that is made."""


def parser(**placed: Any) -> Lark:
    """The parser with these options, from its tables where they are this grammar's and this lark's."""
    from lark import Lark

    text = _GRAMMAR.read_text(encoding="utf-8")
    kept: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        kept = json.loads(_TABLES.read_bytes(), object_hook=_numbered)
    if kept.get("key") != _key(text):
        return _made(text, **placed)
    reader: Any = Lark
    return reader._load_from_dict(kept["data"], kept["memo"], **placed)


def tables() -> dict[str, Any]:
    """The tables as JSON has them, and which grammar and which lark they are of."""
    from lark.grammar import Rule
    from lark.lexer import TerminalDef

    text = _GRAMMAR.read_text(encoding="utf-8")
    maker: Any = _made(text)
    data, memo = maker.memo_serialize([TerminalDef, Rule])
    data["options"] = {name: value for name, value in data["options"].items() if name not in _PLACED}
    return {"key": _key(text), "data": data, "memo": memo}


def _made(text: str, **placed: Any) -> Lark:
    from lark import Lark

    return Lark(
        text,
        parser="lalr",
        lexer="basic",
        keep_all_tokens=True,
        maybe_placeholders=False,
        start=["module", "lone_type"],
        **placed,
    )


def _key(text: str) -> list[Any]:
    from lark import __version__

    return [__version__, zlib.crc32(text.encode())]


def _numbered(pairs: dict[str, Any]) -> dict[Any, Any]:
    """JSON has no numbers as keys; states and rules have."""
    return {int(key) if key.isdigit() else key: value for key, value in pairs.items()}


if __name__ == "__main__":
    _TABLES.write_text(json.dumps(tables(), separators=(",", ":"), sort_keys=True) + "\n", encoding="utf-8")
