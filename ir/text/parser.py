"""Text to syntax tree: reading a file, checking its brackets, and running the grammar over it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from shardwright.ir.diagnostics import DiagnosticError, Source, Span, decoded, fault, located
from shardwright.ir.text import syntax as ast
from shardwright.ir.text.brackets import Nesting, check_brackets

if TYPE_CHECKING:
    from lark import Token


def read_source(path: str | Path) -> Source:
    """The text of a file; raises `no-file`, `not-a-file`, `unreadable`, `binary` or `not-utf8`."""
    name = str(path)
    several_lines = len(name.splitlines()) > 1
    with located(Source("<text>" if several_lines else name, "")):
        try:
            data = Path(path).read_bytes()
        except (OSError, ValueError) as error:
            if several_lines:
                said = "the text of a program stands where the path of a file is wanted"
                note = 'name a file, or give the text as one: Source("program", text)'
                raise fault("no-file", said, *_nowhere(note)) from None
            raise _unread(error) from None
        if b"\0" in data:
            note = "a program is a text file; was a checkpoint or a compiled file meant for another command?"
            raise fault("binary", "this is a binary file, not a program", *_nowhere(note))
    return decoded(name, data, "save the file as UTF-8")


def _unread(error: OSError | ValueError) -> DiagnosticError:
    """The fault of a file that cannot be read."""
    match error:
        case FileNotFoundError():
            return fault("no-file", "there is no such file", *_nowhere("check the path"))
        case IsADirectoryError():
            note = "name one of the `.shard` files in it"
            return fault("not-a-file", "this is a folder, not a file", *_nowhere(note))
        case _:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            return fault("unreadable", f"the file cannot be read: {reason.lower()}")


def _nowhere(note: str) -> tuple[Span, str]:
    return Span(0, 0, 0, 0), note


def parse(source: Source) -> ast.Module:
    """The syntax tree of a program. Raises a `DiagnosticError` for the first fault in the text."""
    with located(source):
        check_brackets(source)
        module: ast.Module = _run(source, "module")
        if not module.items:
            raise fault(
                "empty",
                "there is no program in this text",
                Span(1, 1, 1, 1),
                "a program has a `mesh`, a `dim` line and at least one `func`",
            )
        return ast.Module(module.items, comments(source), span=module.span)


def parse_type(source: Source) -> ast.TypeExpr:
    """A type on its own, as the command line takes it: `bf16 BLE_xyz`."""
    with located(source):
        check_brackets(source)
        return _run(source, "lone_type")


def comments(source: Source) -> tuple[ast.Comment, ...]:
    """Every `# ...` of a text. No text between quotes has a `#`, so that it always starts one."""
    found: list[ast.Comment] = []
    for number, line in enumerate(source.lines, 1):
        at = line.find("#")
        if at >= 0:
            text = line[at:].rstrip()
            span = Span(number, at + 1, number, at + 1 + len(text))
            found.append(ast.Comment(text, not line[:at].strip(), span=span))
    return tuple(found)


class _Newlines:
    """Drops newlines inside round and square brackets, at the start, and after another newline."""

    always_accept: ClassVar[tuple[str, ...]] = ("_NL",)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        depth = 0
        after_newline = True
        for token in stream:
            if token.type == "_NL":
                if depth == 0 and not after_newline:
                    yield token
                    after_newline = True
                continue
            after_newline = False
            if token.type in ("LPAR", "LSQB"):
                depth += 1
            elif token.type in ("RPAR", "RSQB"):
                depth -= 1
            yield token


@cache
def grammar() -> Any:
    """The language's parser, a `Lark`, which reads token by token where it is asked to."""
    from shardwright.ir.text.grammar_tables import parser
    from shardwright.ir.text.tree_builder import TreeBuilder

    return parser(transformer=TreeBuilder(), postlex=_Newlines())


@lru_cache(maxsize=64)
def _run(source: Source, start: str) -> Any:
    """The tree of a text, whose nodes are never changed; a command reads some texts several times."""
    from lark import Token
    from lark.exceptions import UnexpectedCharacters, UnexpectedToken

    from shardwright.ir.text.syntax_errors import unexpected_character, unexpected_token

    parser: Any = grammar().parse_interactive(source.text, start=start)
    tokens: list[Token] = []
    nesting = Nesting()
    stream: Iterator[Token] = parser.lexer_thread.lex(parser.parser_state)
    try:
        for token in stream:
            tokens.append(token)
            nesting.see(token)
            parser.feed_token(token)
        if start == "module" and tokens and tokens[-1].type != "_NL":
            tokens.append(Token.new_borrow_pos("_NL", "", _after(source)))
            parser.feed_token(tokens[-1])
        tokens.append(Token.new_borrow_pos("$END", "", _after(source)))
        result: Any = parser.feed_token(tokens[-1])
    except UnexpectedToken:
        raise unexpected_token(source, tokens, frozenset(parser.accepts())) from None
    except UnexpectedCharacters as error:
        raise unexpected_character(source, error.line, error.column, tokens) from None
    _check_axis_words(tokens)
    return result


def _after(source: Source) -> Token:
    """A token at the end of the text, or rather of its last line that holds anything."""
    from lark import Token

    last, column = 1, 1
    for number in range(len(source.lines), 0, -1):
        line = source.lines[number - 1].partition("#")[0].rstrip()
        if line:
            last, column = number, len(line) + 1
            break
    return Token("$END", "", 0, last, column, last, column)


_AFTER_CAPITAL = re.compile(r"_\{?([a-z][a-z0-9_]+)\}?")


def _check_axis_words(tokens: list[Token]) -> None:
    """`E_{data}` reads as the axes d, a, t, a; where the file's mesh has an axis `data`, that was not meant."""
    axes = {str(a) for a, b in pairwise(tokens) if a.type == "NAME" and b.type == "EQUAL"}
    words = {axis for axis in _mesh_axes(tokens) if len(axis) > 1} & axes
    if not words:
        return
    single = {axis for axis in axes if re.fullmatch("[a-z][0-9]*", axis)}
    in_long_row = False
    for token in tokens:
        if token.type == "LSQB":
            in_long_row = True
        elif token.type not in ("DIMS", "NAME", "AXES"):
            in_long_row = False
        if token.type == "DIMS" and not in_long_row:
            clash = [m for m in _AFTER_CAPITAL.finditer(token) if m[1] in words]
        elif token.type == "PARTIAL" and "{" not in token:
            clash = [m for m in re.finditer(r"-\s*([a-z][a-z0-9_]*)", token) if m[1] in words]
        else:
            continue
        for match in clash:
            if set(re.findall("[a-z][0-9]*", match[1])) <= single:
                continue  # the letters are axes themselves
            shown = f"`(partialsum-{{{match[1]}}})`" if token.type == "PARTIAL" else f"`[E_{{{match[1]}}}]`"
            raise _axis_word(match[1], token, match.start(1), shown)


def _mesh_axes(tokens: list[Token]) -> Iterator[str]:
    in_mesh = False
    for token in tokens:
        if token.type in ("MESH", "_NL"):
            in_mesh = token.type == "MESH"
        elif in_mesh and token.type == "NAME":
            yield str(token)


def _axis_word(word: str, token: Any, offset: int, shown: str) -> DiagnosticError:
    column = token.column + offset
    return fault(
        "bad-axes",
        f"`{word}` reads as {len(re.findall('[a-z][0-9]*', word))} axes of one letter here",
        Span(token.line, column, token.line, column + len(word)),
        f"an axis with a name of several letters is written as in {shown}",
    )
