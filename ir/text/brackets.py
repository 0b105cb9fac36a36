"""Brackets, tabs and nesting depth, checked before and while parsing so that no text can overwhelm what follows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardwright.ir.diagnostics import DiagnosticError, Note, Source, Span, fault

if TYPE_CHECKING:
    from lark import Token

DEEPEST = 100
"""Brackets within brackets, and operators within operators, beyond which a program is refused: later stages
walk expressions by recursion, and no program that a person or a compiler writes comes near."""

_PIECES = re.compile(r"[()\[\]{}]|#[^\n]*|'[^'#\n]*'|\n(?=(?:func|mesh|dim|weights|state)\b)")
_CLOSES = {")": "(", "]": "[", "}": "{"}
_CLOSED_BY = {"(": ")", "[": "]", "{": "}"}
OPERATORS = frozenset({"PLUS", "MINUS", "STAR", "SLASH", "AT"})
"""The tokens of operators between two expressions, by their names in the grammar."""


def check_brackets(source: Source) -> None:
    """Raises `tab`, `too-deep`, `unclosed` or `stray-bracket`; linear in the text, stopping at the first fault."""
    text = source.text
    tab = text.find("\t")
    if tab >= 0:
        raise fault("tab", "a tab character", _place(text, tab), "indent with spaces; `fmt` uses two per level")
    stack: list[int] = []
    for match in _PIECES.finditer(text):
        at, piece = match.start(), match[0]
        if piece[0] in "#'":
            continue
        if piece in _CLOSED_BY:
            if len(stack) == DEEPEST:
                message = f"brackets are nested more than {DEEPEST} deep"
                raise fault("too-deep", message, _place(text, at), "give the inner expressions names of their own")
            stack.append(at)
        elif piece == "\n":
            if stack:
                keyword = re.compile(r"\w+").search(text, at)
                assert keyword is not None, "the pattern looks ahead for it"
                where = Note(f"`{keyword[0]}` begins a new part of the program here", _place(text, at + 1))
                raise _unclosed(text, stack[-1], where)
        elif not stack or (piece != "}" and all(text[at] == "{" for at in stack)):
            raise fault(
                "stray-bracket", f"`{piece}` closes a bracket that was never opened", _place(text, at), "remove it"
            )
        elif text[stack[-1]] != _CLOSES[piece]:
            raise _unclosed(text, stack[-1], Note(f"`{piece}` stands here instead", _place(text, at)))
        else:
            stack.pop()
    if stack:
        raise _unclosed(text, stack[-1], Note("the text ends here", _place(text, len(text.rstrip()))))


def _unclosed(text: str, at: int, where: Note) -> DiagnosticError:
    opened = text[at]
    message = f"`{opened}` is never closed"
    return fault("unclosed", message, _place(text, at), where, f"add the missing `{_CLOSED_BY[opened]}`")


def _place(text: str, at: int) -> Span:
    line = text.count("\n", 0, at) + 1
    column = at - text.rfind("\n", 0, at)
    return Span(line, column, line, column + 1)


class Nesting:
    """Bounds the depth of the syntax tree while tokens go by; an over-estimate, since it ignores precedence."""

    _OPEN = frozenset({"LPAR", "LSQB", "LBRACE"})
    _CLOSE = frozenset({"RPAR", "RSQB", "RBRACE"})

    def __init__(self) -> None:
        self._around: list[tuple[int, int, int]] = []  # for each open bracket: `_now`, `_most` and `_signs` before it
        self._now = 0  # the depth of the expression so far
        self._most = 0  # that of the deepest earlier element of the list it stands in
        self._signs = 0  # the minus signs directly before
        self._above = 0  # the minus signs directly before all open brackets

    def see(self, token: Token) -> None:
        """Raises `too-deep` where the expression that this token goes on is too deep a tree."""
        kind = token.type
        if kind in OPERATORS:
            self._now += 1
            if self._now + self._above + len(self._around) > DEEPEST:
                raise fault(
                    "too-deep",
                    f"more than {DEEPEST} operators in one expression",
                    Span(token.line or 0, token.column or 0, token.end_line or 0, token.end_column or 0),
                    "give parts of it names of their own",
                )
            self._signs = self._signs + 1 if kind == "MINUS" else 0
            return
        if kind in self._OPEN:
            self._around.append((self._now, self._most, self._signs))
            self._above += self._signs
            self._now = self._most = 0
        elif kind in self._CLOSE:
            inner = max(self._now, self._most) + 1
            before, self._most, signs = self._around.pop()
            self._above -= signs
            self._now = 0 if kind == "RBRACE" else max(before, inner + signs)
        elif kind == "COMMA":
            self._most = max(self._most, self._now)
            self._now = 0
        elif kind == "_NL":
            self._most = self._now = 0
        self._signs = 0
