"""Colours for the language in documentation: a lexer that Pygments finds by itself (`shard`, `*.shard`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pygments.lexer import RegexLexer, bygroups, words  # pyright: ignore[reportUnknownVariableType]
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, Whitespace

from shardwright.ir.names import DTYPES, KEYWORDS, TIERS

_AXES = r"_(?:\{[a-z0-9_, ]*\}|\?|(?:[a-z][0-9]*)+)"


class ShardLexer(RegexLexer):
    """The layout language. Dimensions are types' names, axes that split them attributes of these."""

    name: ClassVar[str] = "Shardwright"
    aliases: ClassVar[Sequence[str]] = ["shard"]
    filenames: ClassVar[Sequence[str]] = ["*.shard"]
    url: ClassVar[str] = ""
    version_added: ClassVar[str] = ""
    tokens: ClassVar = {
        "root": [
            (r"\s+", Whitespace),
            (r"#.*", Comment.Single),
            (r"'[^'#\n]*'", String),
            (r"(chip)( +)([a-z0-9][\w./-]*)", bygroups(Keyword, Whitespace, Name.Constant)),
            (r"(func)( +)([a-z][a-z0-9_]*)", bygroups(Keyword, Whitespace, Name.Function)),
            (r"(\( *)(partial(?:sum|max|softmax))( *- *)(\?|\{[a-z0-9_, ]*\}|[a-z][a-z0-9_,]*)( *\))",
             bygroups(Punctuation, Keyword.Type, Punctuation, Name.Attribute, Punctuation)),
            (rf"([A-Z][0-9]*)({_AXES})?", bygroups(Name.Class, Name.Attribute)),
            (words(DTYPES, suffix=r"\b"), Keyword.Type),
            (words(tuple(sorted(KEYWORDS)), suffix=r"\b"), Keyword),
            (r"in +flight\b", Keyword),
            (words(TIERS, suffix=r"\b(?! *[=:(\[])"), Name.Constant),
            (r"([a-z][a-z0-9_]*?)(_\{[a-z0-9_, ]*\}|_\?)", bygroups(Name.Class, Name.Attribute)),
            (r"[a-z][a-z0-9_]*(?=\[[^\]]*\]\s*\(|\()", Name.Builtin),
            (r"[a-z][a-z0-9_]*", Name),
            (r"[0-9]+(?:\.[0-9]+)?%", Number),
            (r"[0-9]+\.[0-9]*(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+", Number.Float),
            (r"[0-9]+", Number.Integer),
            (r":~|->|[-+*/@=?]", Operator),
            (r"[()\[\]{},:]", Punctuation),
        ]
    }  # fmt: skip
