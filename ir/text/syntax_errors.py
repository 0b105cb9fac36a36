"""The message of the parser where the text breaks off from the grammar: what stands there, what should, and a way
out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from shardwright.ir.diagnostics import DiagnosticError, Note, Source, Span, fault, meant
from shardwright.ir.names import DTYPES, KEYWORDS, PARTIALS, clip, nearest_dtype, reserved
from shardwright.ir.text.brackets import OPERATORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lark import Token

    Accepts = frozenset[str]

OPTIONS = "options stand in square brackets before the operands: `gelu[form=tanh](x)`"

_SYMBOLS = {
    "EQUAL": "`=`",
    "COLON": "`:`",
    "FOUND": "`:~`",
    "COMMA": "`,`",
    "ARROW": "`->`",
    "LPAR": "`(`",
    "RPAR": "`)`",
    "LSQB": "`[`",
    "RSQB": "`]`",
    "LBRACE": "`{`",
    "RBRACE": "`}`",
    "PLUS": "`+`",
    "MINUS": "`-`",
    "STAR": "`*`",
    "SLASH": "`/`",
    "AT": "`@`",
    "HOLE": "`?`",
    "AXES": "axes (`_{...}`)",
    "PERCENT": "a percentage",
    "DIMS": "a dimension",
    "NAME": "a name",
    "INT": "an integer",
    "NUMBER": "a number",
    "TEXT": "a text between quotes",
    "PARTIAL": "partial sums (`(partialsum-x)`)",
    "DTYPE": "a number format",
    "_NL": "the end of the line",
}
_EXPRESSION = frozenset({"NAME", "NUMBER", "INT", "INF", "MINUS", "LPAR"})
_TYPE = frozenset({"DTYPE", "DIMS", "LSQB"})
_ITEMS = frozenset({"MESH", "DIM", "WEIGHTS", "STATE", "FUNC"})
_STATEMENTS = frozenset({"NAME", "LOOP", "SET", "FREE", "NEXT", "RETURN"})
_KEYWORD_KINDS = frozenset(word.upper() for word in KEYWORDS)
_ORDER = ("EQUAL", "ARROW", "COLON", "FOUND", "NAME", "DIMS", "INT", "COMMA", "LPAR", "RPAR", "LSQB", "RSQB")


def _span(token: Token) -> Span:
    return Span(token.line or 0, token.column or 0, token.end_line or 0, max(token.end_column or 0, token.column or 0))


def _shown(token: Token) -> str:
    if token.type == "_NL":
        return "the end of the line"
    return "the end of the text" if token.type == "$END" else f"`{token}`"


def _expected(accepts: Accepts) -> str:
    """The terminals that could stand here, grouped into things that a reader of the language knows."""
    left = set(accepts) - {"$END", "FLIGHT", "CHIP"}
    if left >= _EXPRESSION:
        left.discard("LOOP")
    phrases: list[str] = []
    for group, phrase in (
        (_ITEMS, "`mesh`, `dim`, `weights`, `state` or `func`"),
        (_STATEMENTS, "a statement"),
        (_EXPRESSION, "an expression"),
        (_TYPE, "a type"),
        (OPERATORS, "an operator"),
    ):
        if group <= left:
            left -= group
            phrases.append(phrase)
    if "DIMS" in left and "NAME" in left:
        left -= {"DIMS", "NAME"}
        phrases.append("a dimension")
    ordered = sorted(left, key=lambda kind: (_ORDER.index(kind) if kind in _ORDER else len(_ORDER), kind))
    phrases.extend(_SYMBOLS.get(kind, f"`{kind.lower()}`") for kind in ordered)
    if not phrases:
        return "nothing more"
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} or {phrases[-1]}"


def unexpected_token(source: Source, tokens: Sequence[Token], accepts: Accepts) -> DiagnosticError:
    """The fault at the last of `tokens`, in a state where only `accepts` could have come."""
    token, before = _clipped(tokens[-1]), _clipped(tokens[-2]) if len(tokens) > 1 else None
    rest = source.line(token.line or 0)[(token.end_column or 1) - 1 :]
    found = (
        _wrong_name(token, before, rest, accepts)
        or _wrong_type(token, before, rest, accepts)
        or _wrong_place(token, before, accepts)
        or _missing(token, before, accepts)
    )
    if found is not None:
        return found
    return fault("syntax", f"found {_shown(token)}, expected {_expected(accepts)}", _place(token, before))


def _clipped(token: Token) -> Token:
    return token.update(value=clip(str(token)))


def _place(token: Token, before: Token | None) -> Span:
    """The token, or the place just after the one before it where the line or the text ends."""
    if token.type in ("_NL", "$END") and before is not None:
        at = _span(before)
        return Span(at.end_line, at.end_column, at.end_line, at.end_column + 1)
    return _span(token)


def _wrong_name(token: Token, before: Token | None, rest: str, accepts: Accepts) -> DiagnosticError | None:
    """A word that cannot be a name, where a name should stand."""
    if "NAME" not in accepts:
        return None
    defines = rest.lstrip().startswith(("=", ":"))
    if (token.type in _KEYWORD_KINDS or token.type == "DTYPE") and token.type != "LOOP":
        if "MINUS" in accepts and not defines:
            return fault("bad-name", f"`{token}` is a word of the language, not a value", _span(token))
        if token.type == "FUNC":
            note = "is the `}` of the func before it missing?"
            return fault("syntax", "a func cannot stand inside another", _span(token), note)
        return reserved(str(token), "the layout language", _span(token))
    if token.type == "LOOP" and "MINUS" in accepts:
        note = "give its results names first: `y = loop[N](...) { ... }`"
        return fault("syntax", "a loop cannot stand inside an expression", _span(token), note)
    if token.type == "DIMS" and "DIMS" not in accepts:
        if "MINUS" in accepts and not defines:
            notes = ["its size is `size[" + str(token) + "]`"] if re.fullmatch("[A-Z][0-9]*", token) else []
            if before is not None and before.type == "EQUAL" and "LOOP" not in accepts:
                notes = [OPTIONS]
            return fault("bad-name", f"`{token}` is a dimension, not a value", _span(token), *notes)
        note = f"names are lower case: `{token.lower().strip('?')}`"
        message = f"`{token}` cannot be a name: capital letters are dimensions"
        return fault("bad-name", message, _span(token), note)
    return None


def _wrong_type(token: Token, before: Token | None, rest: str, accepts: Accepts) -> DiagnosticError | None:
    """Something that is almost a type."""
    if token.type == "NAME" and "DTYPE" in accepts:
        near = nearest_dtype(str(token))
        layout_follows = re.match(r"\s*[A-Z\[]", rest) is not None
        if near or layout_follows:
            notes = [meant(str(token), near)] if near else []
            formats = f"number formats are {', '.join(DTYPES)}"
            return fault("bad-type", f"`{token}` is not a number format", _span(token), *notes, formats)
        note = f"a layout is written in capital letters, `BLE_xyz`, or in square brackets, `[{token}]`"
        return fault("bad-type", f"`{token}` is not a type", _span(token), note)
    if token.type == "DTYPE" and before is not None and before.type == "DIMS":
        message = f"the number format comes before the layout: `{token} {before}`"
        return fault("bad-type", message, _span(token))
    if str(token) in PARTIALS and "PARTIAL" in accepts:
        note = f"write `({token}-x)`"
        return fault("bad-type", f"`{token}` stands in round brackets", _span(token), note)
    if token.type == "LPAR" and "PARTIAL" in accepts and re.match(r"\s*partial", rest):
        note = "write `(partialsum-x)`, `(partialmax-x)` or `(partialsoftmax-x)`: a hyphen, then mesh axes"
        return fault("bad-type", "this is not the form of a partial sum", _span(token), note)
    if token.type == "DIMS" and before is not None and before.type in ("DIMS", "DTYPE") and "ON" in accepts:
        note = f"write `{before}{token}`, or `[{before} {token}]` in the long form"
        return fault("bad-type", "the dimensions of a layout are written without spaces", _span(token), note)
    if token.type == "NAME" and "ON" in accepts and str(token) in ("device", "host", "disk"):
        return fault("bad-type", f"`on` is missing before `{token}`", _span(token), f"write `on {token}`")
    return None


def _wrong_place(token: Token, before: Token | None, accepts: Accepts) -> DiagnosticError | None:
    """The right words in the wrong place."""
    if token.type == "AT" and "STAR" in accepts:
        note = "write `(a @ b) @ c` or `a @ (b @ c)`"
        return fault("syntax", "a contraction of a contraction needs brackets", _span(token), note)
    if "MESH" in accepts and (token.type in ("NAME", "RETURN", "SET", "FREE", "NEXT", "LOOP")):
        if token.type == "NAME" and str(token) in ("def", "fn", "function", "fun"):
            return fault("syntax", f"found `{token}`, expected `func`", _span(token))
        note = "write it between the braces of `func name(...) -> TYPE { ... }`"
        return fault("syntax", "a statement stands outside any func", _span(token), note)
    if token.type in ("EQUAL", "COLON") and before is not None and before.type in _KEYWORD_KINDS:
        return reserved(str(before), "the layout language", _span(before))
    if token.type == "EQUAL" and {"RPAR", "AT"} <= accepts:
        return fault("syntax", "found `=` among operands", _span(token), OPTIONS)
    if before is not None and token.type == "NAME" and "EQUAL" in accepts and str(before) in _ELSEWHERE:
        return fault("syntax", f"there is no `{before}`", _span(before), _ELSEWHERE[str(before)])
    if token.type == "RSQB" and before is not None and before.type == "LSQB" and "DTYPE" in accepts:
        note = "leave them out where there is nothing to say"
        return fault("syntax", "these square brackets are empty", _span(before).to(_span(token)), note)
    if token.type == "EQUAL" and before is not None and before.type == "EQUAL":
        return fault("syntax", "found `==`, expected `=`", _span(before).to(_span(token)))
    if token.type == "COMMA" and "_NL" in accepts:
        if "DIMS" in accepts or accepts & {"NAME"}:
            return fault("syntax", "found `,`, expected a space", _span(token), "sizes are separated by spaces")
        note = "each stands on a line of its own, without a comma"
        return fault("syntax", "found `,`, expected the end of the line", _span(token), note)
    if token.type == "COMMA" and "INT" not in accepts and "EQUAL" not in accepts and "ORDER" in accepts:
        return fault("syntax", "found `,`, expected a space", _span(token), "sizes are separated by spaces")
    if before is not None and before.type == "RBRACE" and accepts == frozenset({"_NL"}):
        return fault("syntax", f"found {_shown(token)} after `}}`", _span(token), "begin a new line")
    if token.type == "LSQB" and "_NL" in accepts and "AT" in accepts:
        note = "parts of a value are taken with `take[E 0:32](x)`"
        return fault("syntax", "values are not indexed", _span(token), note)
    begins = token.type in _STATEMENTS | {"NUMBER", "INT"}
    if begins and "_NL" in accepts and "AT" in accepts:
        note = "a statement ends with the line; between two values there is an operator"
        return fault(
            "syntax", f"found {_shown(token)}, expected an operator or the end of the line", _span(token), note
        )
    return None


def _missing(token: Token, before: Token | None, accepts: Accepts) -> DiagnosticError | None:
    """One piece left out."""
    at = _place(token, before)
    found = _shown(token)
    if before is None:
        return None
    if accepts == frozenset({"ARROW"}) and before.type == "RPAR" and token.type != "RSQB":
        note = "write `-> TYPE {` after the parameters, or `-> () {` where nothing is returned"
        return fault("syntax", f"found {found}, expected `->` and the type of the result", at, note)
    if accepts == frozenset({"COLON"}) and token.type in ("COMMA", "RPAR", "_NL", "RBRACE", "EQUAL"):
        return fault(
            "syntax",
            f"`{before}` has no type",
            _span(before),
            f"write `{before}: TYPE`, for example `{before}: bf16 BLE_x`",
        )
    if "LBRACE" in accepts and "NAME" not in accepts and token.type != "COMMA":
        note = "what a func, a loop, `weights` or `state` holds stands in braces, opened on the same line"
        return fault("syntax", f"found {found}, expected `{{`", at, note)
    if "EQUAL" in accepts and token.type not in ("COMMA", "RPAR") and accepts & {"COLON", "ON"}:
        note = "a statement is `name = expression` or `name: TYPE = expression`"
        return fault("syntax", f"found {found}, expected `=`", at, note)
    if accepts - {"_NL"} == _STATEMENTS | {"RBRACE"}:
        return fault("syntax", f"found {found}, expected a statement or `}}`", at)
    if "MINUS" in accepts and "NAME" in accepts and token.type in ("_NL", "RBRACE", "$END", "COMMA", "RPAR"):
        return fault("syntax", f"found {found}, expected an expression after `{before}`", at)
    if "DTYPE" in accepts and "DIMS" in accepts and token.type in ("EQUAL", "_NL", "COMMA", "RPAR", "LBRACE"):
        note = "for example `bf16 BLE_xyz`; leave out the `:` to have the type chosen"
        notes = [note] if token.type == "EQUAL" else ["for example `bf16 BLE_xyz`"]
        return fault("syntax", f"found {found}, expected a type after `{before}`", at, *notes)
    return None


_ELSEWHERE = {
    **dict.fromkeys(("let", "var", "val", "const"), "a statement begins with the name that it defines"),
    **dict.fromkeys(("for", "while"), "a loop over a dimension is `loop[N](h = x) { ... }`"),
    **dict.fromkeys(("if", "elif", "else"), "a choice between values is `where(condition, a, b)`"),
}
"""Words of other languages that a statement may be begun with."""

_CHARACTERS = {
    ";": "a statement ends with the line",
    '"': "there are no strings in the language",
    "'": "there are no strings in the language",
    "\\": "inside brackets a line goes on by itself",
    "\N{RIGHTWARDS ARROW}": "write `->`",
    "\N{MULTIPLICATION SIGN}": "write `*`",
    "\N{MIDDLE DOT}": "write `*`",
    "\N{MINUS SIGN}": "write `-`",
    "\N{EN DASH}": "write `-`",
    "\N{NO-BREAK SPACE}": "write an ordinary space",
    "\r": "end lines with a line feed, or a carriage return and a line feed",
    "$": "the layout stands without dollar signs: `BLE_xyz`",
    ".": "there is nothing to the right of a dot: operations are written `name(x)`",
    "<": "comparisons are operations, written `name(a, b)`",
    ">": "a result type follows `->`; comparisons are operations, written `name(a, b)`",
    "%": "a percentage follows a memory: `on device 20% host 80%`",
    "^": "there is no power operator",
    "!": "there is no such operator",
    "/": "comments begin with `#`",
    "_": "axes follow a dimension directly: `E_xyz`, `[embed_{data,model}]`",
}


def unexpected_character(source: Source, line: int, column: int, tokens: Sequence[Token]) -> DiagnosticError:
    """The fault at a place where no token begins."""
    rest = source.line(line)[column - 1 :] or source.text.split("\n")[line - 1][column - 1 :]
    word = re.match(r"[A-Za-z0-9_]+(?:\.[0-9A-Za-z_]+)*", rest)
    if word is None:
        character = rest[:1] or "\r"
        shown = f"`{character}`" if character.isprintable() and not character.isspace() else f"U+{ord(character):04X}"
        span = Span(line, column, line, column + 1)
        notes = [_CHARACTERS[character]] if character in _CHARACTERS else []
        return fault("bad-character", f"{shown} means nothing here", span, *notes)
    text = clip(word[0])
    span = Span(line, column, line, column + len(word[0]))
    before = tokens[-1] if tokens else None
    if text[0].isdigit():
        return _bad_number(text, span)
    if re.match(r"_", text):
        note: str | Note = (
            _CHARACTERS["_"]
            if before is not None and before.type in ("DIMS", "NAME")
            else ("names begin with a lower-case letter")
        )
        return fault("bad-name", f"`{text}` is not a name", span, note)
    if re.fullmatch(r"(?:[A-Z][0-9]*_?[a-z0-9]*)+_?", text) and "_" in text and not re.search(r"[A-Z][a-z]", text):
        note = "a layout is capital letters, each with `_` and its mesh axes: `BLE_xyz`"
        return fault("bad-layout", f"`{text}` is not a layout", span, note)
    lower = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).lower()
    return fault(
        "bad-name",
        f"`{text}` is neither a name nor a layout",
        span,
        f"names are lower case: `{lower}`",
        "a layout is capital letters, each with `_` and its mesh axes: `BLE_xyz`",
    )


def _bad_number(text: str, span: Span) -> DiagnosticError:
    unit = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]+)", text)
    if re.fullmatch(r"0[xXbBoO][0-9A-Fa-f]+", text):
        return fault("bad-number", f"`{text}` is not a number", span, "write numbers in decimal")
    if re.fullmatch(r"[0-9_]+", text):
        plain = text.replace("_", "")
        return fault("bad-number", f"`{text}` is not a number", span, f"write it without `_`: `{plain}`")
    if unit and unit[2] not in ("e", "E"):
        note = f"numbers have no unit: write `{unit[1]}`, or multiply it out"
        return fault("bad-number", f"`{text}` is not a number", span, note)
    return fault("bad-number", f"`{text}` is not a number", span, "numbers look like `16`, `0.25` and `1e-5`")
