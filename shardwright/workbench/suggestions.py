"""The words that could be written at a place of a text that is not complete yet."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from inspect import getdoc
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.names import DTYPES, KEYWORDS, PARTIALS, TIERS

if TYPE_CHECKING:
    from lark import Token


class SuggestionKind(StrEnum):
    """The kind of a suggestion, for its sign in a list."""

    OPERATION = "operation"
    VALUE = "value"
    DIMENSION = "dimension"
    AXIS = "axis"
    FORMAT = "number format"
    WORD = "word of the language"
    CHIP = "chip"


@dataclass(frozen=True)
class Suggestion:
    """A word that could stand there, a line about it, and more."""

    text: str
    kind: SuggestionKind
    detail: str = ""
    documentation: str = ""


_CHIP = re.compile(r"^chip +(\S*)$")
_AXES = re.compile(r"[A-Z][0-9]*_([a-z0-9]*)$")
_WORD = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)$")

_OPERANDS = {1: "x", 2: "a, b", 3: "m, a, b"}


@cache
def operation_help() -> dict[str, tuple[str, str]]:
    """By keyword, how each operation is written, and what is said of it."""
    from shardwright.ir import ops
    from shardwright.ir.elaboration.builders import BUILDERS
    from shardwright.ir.operation import Operation
    from shardwright.ir.ops.elementwise_table import ENTRIES

    made: dict[str, tuple[str, str]] = {}
    for name in ops.__all__:
        operation = getattr(ops, name)
        keyword = getattr(operation, "keyword", "")
        if isinstance(operation, type) and issubclass(operation, Operation) and keyword:
            text = " ".join((getdoc(operation) or "").split("\n\n", maxsplit=1)[0].split())
            call = re.match(r"`([^`]*)`", text)
            made[keyword] = (call[1] if call else keyword, text)
    for entry in ENTRIES:
        call = f"{entry.keyword}({_OPERANDS[len(entry.takes)]})"
        made.setdefault(entry.keyword, (call, f"`{call}`: {entry.meaning}."))
    made["prefetch"] = ("prefetch(w)", "`prefetch(w)`: as `start(fetch(w))`.")
    return {keyword: made[keyword] for keyword in sorted({*BUILDERS, "start"} & set(made))}


def suggestions(source: Source, line: int, column: int) -> list[Suggestion]:
    """The words that could be written before this place; the text may be at fault behind it, and unfinished there."""
    before = source.line(line)[: column - 1]
    if "#" in before:
        return []
    earlier = source.lines[: line - 1]
    tokens, accepts = _read("\n".join([*earlier, before]))
    if _CHIP.search(before):
        return _chips()
    # In a layout, `BLE_x` or `[embed_{data,`, or in `(partialsum-x`, axes follow.
    if _AXES.search(before) or re.search(r"_\{[a-z0-9_, ]*$|\( *partial\w+ *- *(?:[a-z0-9]*|\{[a-z0-9_, ]*)$", before):
        return _axes(tokens)
    opened = re.search(r"\( *[a-z]*$", before)
    if opened and "PARTIAL" in _read("\n".join([*earlier, before[: opened.start()] + " "]))[1]:
        return _partials("")
    if before.rstrip().endswith(" on"):
        return [Suggestion(tier, SuggestionKind.WORD, "a memory") for tier in TIERS]
    if _between_statics(tokens):
        formats = [Suggestion(name, SuggestionKind.FORMAT) for name in DTYPES]
        return [*_dimensions(tokens), *_axes(tokens), *formats]
    made: list[Suggestion] = []
    if {"NAME", "MINUS"} <= accepts:  # an expression begins
        made += _values(tokens)
        made += [Suggestion(k, SuggestionKind.OPERATION, *said) for k, said in operation_help().items()]
    if "DTYPE" in accepts:
        made += [Suggestion(name, SuggestionKind.FORMAT, "a number format") for name in DTYPES]
        made += _dimensions(tokens)
    if "DIMS" in accepts and not made:
        made += _dimensions(tokens)
    if "PARTIAL" in accepts:
        made += _partials("(")
    words = {terminal.lower() for terminal in accepts} & KEYWORDS
    return [*made, *(Suggestion(word, SuggestionKind.WORD) for word in sorted(words))]


def begun(before: str) -> str:
    """The word being written at the end of a line that has come so far, which a suggestion replaces: `tpu-` in
    `chip tpu-`, `x` in `BF_x`, `all_` in `h = all_`."""
    found = _CHIP.search(before) or _AXES.search(before) or _WORD.search(before)
    return found[1] if found else ""


def _read(text: str) -> tuple[list[Token], frozenset[str]]:
    """The tokens of a text up to the word being written, and what could come next."""
    from lark.exceptions import UnexpectedInput

    from shardwright.ir.text.parser import grammar

    text = _WORD.sub("", text)
    parser = grammar().parse_interactive(text, start="module")
    tokens: list[Token] = []
    try:
        for token in parser.lexer_thread.lex(parser.parser_state):
            tokens.append(token)
            parser.feed_token(token)
        return tokens, frozenset(parser.accepts())
    except (UnexpectedInput, DiagnosticError):
        return tokens, frozenset()


def _between_statics(tokens: list[Token]) -> bool:
    """Tells whether the last bracket that is open is the square one of an operation or of a contraction."""
    open_ones: list[int] = []
    for at, token in enumerate(tokens):
        if token.type in ("LSQB", "LPAR"):
            open_ones.append(at)
        elif token.type in ("RSQB", "RPAR") and open_ones:
            open_ones.pop()
    if not open_ones or tokens[open_ones[-1]].type != "LSQB":
        return False
    return open_ones[-1] > 0 and tokens[open_ones[-1] - 1].type in ("NAME", "AT", "LOOP")


def _values(tokens: list[Token]) -> list[Suggestion]:
    """Names that have been given so far: weights and state, and those of the function that is being written."""
    begun = max((at for at, token in enumerate(tokens) if token.type == "FUNC"), default=0)
    top, here = tokens[:begun], tokens[begun:]
    names: dict[str, str] = {}
    inside = ""
    for at, token in enumerate(top):
        if token.type in ("WEIGHTS", "STATE", "FUNC"):
            inside = token.type
        elif (
            token.type == "NAME"
            and inside in ("WEIGHTS", "STATE")
            and top[at + 1 : at + 2]
            and top[at + 1].type == "COLON"
        ):
            names[str(token)] = "a weight" if inside == "WEIGHTS" else "a state value"
    last = max((at for at, token in enumerate(here) if token.type == "_NL"), default=len(here))
    for token, following in pairwise(here[: last + 1]):  # what is being written does not see itself
        if token.type == "NAME" and following.type in ("COLON", "FOUND", "EQUAL"):
            names[str(token)] = "a value"
    return [Suggestion(name, SuggestionKind.VALUE, what) for name, what in reversed(names.items())]


def _axes(tokens: list[Token]) -> list[Suggestion]:
    return [Suggestion(n, SuggestionKind.AXIS, f"{size} chips along it") for n, size in _declared(tokens, "MESH")]


def _dimensions(tokens: list[Token]) -> list[Suggestion]:
    return [Suggestion(n, SuggestionKind.DIMENSION, f"of size {size}") for n, size in _declared(tokens, "DIM")]


def _declared(tokens: list[Token], item: str) -> list[tuple[str, str]]:
    """The names that the lines that begin with a word give sizes to, and the sizes as written."""
    found: list[tuple[str, str]] = []
    inside = False
    for at, token in enumerate(tokens):
        inside = token.type == item or (inside and token.type != "_NL")
        if inside and token.type == "EQUAL":
            size = [str(t) for t in takewhile(lambda t: t.type in ("INT", "STAR", "PLUS", "DIMS"), tokens[at + 1 :])]
            ends = at + 1 + len(size) < len(tokens) and tokens[at + 1 + len(size)].type == "EQUAL"
            found.append((str(tokens[at - 1]), "".join(size[:-1] if ends else size)))
    return found


def _chips() -> list[Suggestion]:
    from shardwright.cost.hardware.chips import chip_names

    return [Suggestion(name, SuggestionKind.CHIP) for name in chip_names()]


def _partials(opening: str) -> list[Suggestion]:
    what = "addends, or parts of a maximum"
    return [Suggestion(f"{opening}{name}-", SuggestionKind.WORD, what) for name in sorted(PARTIALS)]
