"""The language server: diagnostics, hover, hints, completion, definitions, formatting and quick fixes over LSP.

What needs no choice of layouts is answered at once; layouts are chosen in another process (`worker`), from the last
version of the text that has no fault, a moment after the last change.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, lsp_method

from shardwright.ir.diagnostics import Diagnostic, DiagnosticError, Fix, Source, Span
from shardwright.ir.diagnostics import Severity as Grade
from shardwright.ir.text import syntax
from shardwright.workbench.examine import (
    Examination,
    ExamineSettings,
    Glance,
    Hint,
    LineCost,
    ValueFacts,
    examine,
    glance,
)
from shardwright.workbench.suggestions import SuggestionKind, begun, operation_help, suggestions
from shardwright.workbench.symbols import SymbolKind, Symbols, contains
from shardwright.workbench.worker import SupersededError, Worker, start_preloading

PAUSE = 0.2
"""Seconds without a change before layouts are chosen."""

_SIGNS = {
    SuggestionKind.OPERATION: lsp.CompletionItemKind.Function,
    SuggestionKind.VALUE: lsp.CompletionItemKind.Variable,
    SuggestionKind.DIMENSION: lsp.CompletionItemKind.TypeParameter,
    SuggestionKind.AXIS: lsp.CompletionItemKind.Unit,
    SuggestionKind.FORMAT: lsp.CompletionItemKind.Class,
    SuggestionKind.WORD: lsp.CompletionItemKind.Keyword,
    SuggestionKind.CHIP: lsp.CompletionItemKind.Constant,
}


@dataclass
class OpenText:
    """A text that is open in the editor: what is known of this version, and the last layouts found."""

    seen: Glance
    worker: Worker = field(default_factory=Worker)
    examined: Examination | None = None
    """Of this version; None until it is there."""
    task: asyncio.Task[None] | None = None

    @property
    def symbols(self) -> Symbols | None:
        return Symbols(self.seen.module) if self.seen.module is not None else None


class Protocol(LanguageServerProtocol):
    """The protocol, where a client errs: its request is answered, and nothing is shown to the user."""

    def structure_message(self, data: dict[str, Any]) -> Any:
        """A message with its types; a request without its own is answered with the error."""
        try:
            return super().structure_message(data)
        except JsonRpcException as error:
            if {"id", "method"} <= data.keys():
                self._send_response(data["id"], error=error.to_response_error())
            raise

    @lsp_method(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: lsp.DidChangeTextDocumentParams) -> Generator[Any, Any, None]:
        """Changes a text that is open, and no other."""
        with suppress(KeyError):
            yield from super().lsp_text_document__did_change(params)


class Server(LanguageServer):
    """The server with the texts that are open and how they are looked at."""

    def __init__(self) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType]
            "shardwright", version("shardwright"), protocol_cls=Protocol
        )
        self.settings = ExamineSettings()
        self.texts: dict[str, OpenText] = {}
        self.shut_down = False
        self.status = 0

    @property
    def refreshes(self) -> bool:
        """Tells whether the client asks for hints anew where it is told to."""
        workspace = self.client_capabilities.workspace
        hints = workspace.inlay_hint if workspace is not None else None
        return bool(hints is not None and hints.refresh_support)

    def opened(self, uri: str) -> OpenText | None:
        """The facts known of a text, None where it is not open."""
        return self.texts.get(uri)

    def look(self, uri: str) -> None:
        """Say what is wrong with a text as it is now, and look at its layouts in a moment."""
        document = self.workspace.get_text_document(uri)
        seen = glance(Source(document.filename or uri, document.source.replace("\r\n", "\n")), self.settings)
        known = self.texts.setdefault(uri, OpenText(seen))
        known.seen, known.examined = seen, None
        if known.task is not None:
            known.task.cancel()
            known.task = None
        self.report(uri, seen.diagnostics)
        if seen.program is not None:
            known.task = asyncio.get_running_loop().create_task(self.examine_later(uri, known))

    async def examine_later(self, uri: str, known: OpenText) -> None:
        """Choose the layouts of a text unless it changes first, and say what came of it."""
        await asyncio.sleep(PAUSE)
        seen = known.seen
        try:
            found = await known.worker.ask(examine, seen.source, self.settings)
        except SupersededError:
            return
        except DiagnosticError as error:
            found = Examination(error.diagnostics)
        if known.seen is seen:
            known.examined = found
            self.report(uri, (*found.diagnostics, *found.warnings))
            if self.refreshes:
                self.workspace_inlay_hint_refresh(None)

    def report(self, uri: str, diagnostics: Sequence[Diagnostic]) -> None:
        made = [self.diagnostic(uri, diagnostic) for diagnostic in diagnostics]
        version = self.workspace.get_text_document(uri).version
        self.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(uri, made, version))

    def range(self, uri: str, span: Span) -> lsp.Range:
        """A place as the client counts."""
        document = self.workspace.get_text_document(uri)
        start = lsp.Position(max(span.line - 1, 0), max(span.column - 1, 0))
        end = lsp.Position(max(span.end_line - 1, 0), max(span.end_column - 1, 0))
        return document.position_codec.range_to_client_units(document.lines, lsp.Range(start, end))

    def place(self, uri: str, position: lsp.Position) -> tuple[int, int]:
        """The line and column, from 1, of a position of the client's."""
        document = self.workspace.get_text_document(uri)
        here = document.position_codec.position_from_client_units(document.lines, position)
        return here.line + 1, here.character + 1

    def diagnostic(self, uri: str, made: Diagnostic) -> lsp.Diagnostic:
        """A fault with its notes, and the changes that would mend it as data for the quick fixes."""
        plain = "".join(f"\n{note.message}" for note in made.notes if note.span is None)
        related = [
            lsp.DiagnosticRelatedInformation(lsp.Location(uri, self.range(uri, note.span)), note.message)
            for note in made.notes
            if note.span is not None and note.span.line
        ]
        source = self.texts[uri].seen.source
        fixes = [edit for note in made.notes for fix in note.fixes if (edit := _edit(source, made.span, fix))]
        grade = lsp.DiagnosticSeverity.Error if made.severity is Grade.ERROR else lsp.DiagnosticSeverity.Warning
        return lsp.Diagnostic(
            range=self.range(uri, made.span),
            message=f"{made.message}{plain}",
            severity=grade,
            code=made.code,
            source="shardwright",
            related_information=related or None,
            data=[{"place": _numbers(place), "text": text} for place, text in fixes],
        )


def _numbers(span: Span) -> list[int]:
    return [span.line, span.column, span.end_line, span.end_column]


def _edit(source: Source, span: Span, fix: Fix) -> tuple[Span, str] | None:
    """Where a fix changes the text, and to what; None where its word is not there once."""
    if not span.line or span.line != span.end_line:
        return None
    line = source.line(span.line)
    there = line[span.column - 1 : span.end_column - 1]
    if not fix.old:
        return span, fix.new.replace("...", there)
    found = list(re.finditer(rf"(?<![A-Za-z0-9_]){re.escape(fix.old)}(?![A-Za-z0-9])", there))
    if len(found) != 1:
        inside = list(re.finditer(re.escape(fix.old), there))  # an axis in `E_xyz`
        if found or len(inside) != 1:
            return None
        found = inside
    start = span.column + found[0].start()
    return Span(span.line, start, span.line, start + len(fix.old)), fix.new


def start() -> int:
    """Serve on standard input and output until the client ends it; 1 where it does not shut down before it exits."""
    server = make_server()
    asked, answered = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what anything else prints is not part of the protocol
    start_preloading()
    try:
        server.start_io(asked, answered)
    finally:
        for known in server.texts.values():
            known.worker.close()
    return server.status


def make_server() -> Server:
    """The server with everything it can do."""
    server = Server()
    feature: Any = server.feature

    @feature(lsp.INITIALIZE)
    def begin(params: lsp.InitializeParams) -> None:
        options: Any = params.initialization_options
        if isinstance(options, dict):
            server.settings = _settings(options)  # pyright: ignore[reportUnknownArgumentType]

    @feature(lsp.SHUTDOWN)
    def shut_down(_: None) -> None:
        server.shut_down = True

    @feature(lsp.EXIT)
    def exited(_: None) -> None:
        server.status = 0 if server.shut_down else 1

    @feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: lsp.DidOpenTextDocumentParams) -> None:
        server.look(params.text_document.uri)

    @feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: lsp.DidChangeTextDocumentParams) -> None:
        server.look(params.text_document.uri)

    @feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        known = server.texts.pop(params.text_document.uri, None)
        if known is not None:
            if known.task is not None:
                known.task.cancel()
            known.worker.close()
        server.text_document_publish_diagnostics(lsp.PublishDiagnosticsParams(params.text_document.uri, []))

    @feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        return _hover(server, params.text_document.uri, params.position)

    @feature(lsp.TEXT_DOCUMENT_DEFINITION)
    def definition(params: lsp.DefinitionParams) -> lsp.Location | None:
        uri = params.text_document.uri
        found = _symbol_at(server, uri, params.position)
        place = found[0].place if found else None
        return lsp.Location(uri, server.range(uri, place)) if place else None

    @feature(lsp.TEXT_DOCUMENT_INLAY_HINT)
    def hints(params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
        return list(_hints(server, params.text_document.uri, params.range))

    @feature(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=["_", "[", " ", "-", "("]))
    def completion(params: lsp.CompletionParams) -> lsp.CompletionList:
        return lsp.CompletionList(False, list(_completions(server, params.text_document.uri, params.position)))

    @feature(lsp.TEXT_DOCUMENT_FORMATTING)
    def formatting(params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit] | None:
        return _formatted(server, params.text_document.uri)

    @feature(lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions([lsp.CodeActionKind.QuickFix]))
    def actions(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        return list(_actions(server, params))

    @feature(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    def outline(params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
        return list(_outline(server, params.text_document.uri))

    return server


def _settings(options: dict[str, Any]) -> ExamineSettings:
    """The settings that the client was told: `chip`, `objective` and `level`; what is of another kind is left out."""
    chip, objective, level = (options.get(key) for key in ("chip", "objective", "level"))
    return ExamineSettings(
        chip=chip if isinstance(chip, str) else "",
        objective="bytes" if objective == "bytes" else "time",
        level="explicit" if level == "explicit" else "surface",
    )


def _symbol_at(server: Server, uri: str, position: lsp.Position) -> tuple[Any, Span] | None:
    known = server.opened(uri)
    symbols = known.symbols if known is not None else None
    if known is None or symbols is None:
        return None
    line, column = server.place(uri, position)
    return symbols.at(known.seen.source.line(line), line, column)


# ---------------------------------------------------------------- hover


def _hover(server: Server, uri: str, position: lsp.Position) -> lsp.Hover | None:
    known, found = server.opened(uri), _symbol_at(server, uri, position)
    if known is None or found is None:
        return None
    symbol, here = found
    program = known.seen.program
    match symbol.kind:
        case SymbolKind.OPERATION:
            _, text = operation_help().get(symbol.name, (symbol.name, ""))
            text = "\n\n".join(filter(None, [text, *_cost_lines(known.examined, here.line)]))
        case SymbolKind.AXIS:
            size = program.mesh.get(symbol.name) if program else None
            text = f"mesh axis `{symbol.name}`" + (f": {size} chips along it" if size else "")
        case SymbolKind.DIMENSION:
            text = _dimension_text(known, symbol.name, here)
        case SymbolKind.CHIP:
            from shardwright.workbench.texts import chip_text

            text = chip_text(symbol.name)
        case SymbolKind.FUNCTION:
            text = "\n\n".join([f"function `{symbol.name}`", *_function_lines(known.examined, symbol.name)])
        case _:
            text = "\n\n".join([*_value_lines(known.examined, symbol), *_cost_lines(known.examined, here.line)])
            text = text or f"{symbol.kind} `{symbol.name}`: its layout is being chosen"
    return lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, text), server.range(uri, here))


def _dimension_text(known: OpenText, name: str, here: Span) -> str:
    program = known.seen.program
    if program is None:
        return f"dimension `{name}`"
    inside = Symbols(known.seen.module).func_at(here.line, here.column) if known.seen.module else ""
    func = next((func for func in program.funcs if func.name == inside), None)
    info, size = program.dim(name), program.sizes(func)[name]
    order = f", its order of digits `{' '.join(map(str, info.order))}`" if info.order else ""
    return f"dimension `{name}` of size {size}{order}"


def _value_lines(examined: Examination | None, symbol: Any) -> Iterator[str]:
    from shardwright.workbench.texts import held_text

    for facts in examined.values if examined else ():
        if facts.place == symbol.place:
            yield f"```shard\n{facts.name}{' :~' if facts.found else ':'} {facts.type}\n```"
            yield f"{held_text(facts)}; {'found by the compiler' if facts.found else 'as demanded'}"
            return


def _cost_lines(examined: Examination | None, line: int) -> Iterator[str]:
    from shardwright.workbench.texts import cost_text

    for cost in examined.lines if examined else ():
        if cost.line == line:
            yield f"this line: {cost_text(cost)} on {examined.chip if examined else ''}"


def _function_lines(examined: Examination | None, name: str) -> Iterator[str]:
    from shardwright.workbench.texts import function_text

    for cost in examined.costs if examined else ():
        if cost.func == name:
            yield function_text(cost)


# ---------------------------------------------------------------- hints


def _hints(server: Server, uri: str, within: lsp.Range) -> Iterator[lsp.InlayHint]:
    known = server.opened(uri)
    first, last = within.start.line + 1, within.end.line + 1
    for hint in known.examined.hints if known and known.examined else ():
        if known and first <= hint.place.line <= last:
            yield lsp.InlayHint(
                server.range(uri, hint.place).end,
                hint.label,
                kind=lsp.InlayHintKind.Type,
                text_edits=_written(server, uri, hint),
                tooltip=_tooltip(known, hint.facts),
            )


def _tooltip(known: OpenText, facts: ValueFacts) -> str:
    from shardwright.workbench.texts import cost_text, held_text

    lines: Sequence[LineCost] = known.examined.lines if known.examined else ()
    costs = [f"; this line: {cost_text(cost)}" for cost in lines if cost.line == facts.place.line]
    return held_text(facts) + "".join(costs[:1])


def _written(server: Server, uri: str, hint: Hint) -> list[lsp.TextEdit]:
    """The type as the text has it where the author takes it over."""
    if hint.written is not None:
        return [lsp.TextEdit(server.range(uri, hint.written), hint.facts.type)]
    where = server.range(uri, hint.place).end
    return [lsp.TextEdit(lsp.Range(where, where), f": {hint.facts.type}")]


# ---------------------------------------------------------------- completion


def _completions(server: Server, uri: str, position: lsp.Position) -> Iterator[lsp.CompletionItem]:
    known = server.opened(uri)
    if known is None:
        return
    line, column = server.place(uri, position)
    word = begun(known.seen.source.line(line)[: column - 1])
    # What an editor takes for a word is another thing in `BF_x` and in `tpu-v4`.
    replaced = server.range(uri, Span(line, column - len(word), line, column))
    letters = re.compile(".*".join(map(re.escape, word)), re.IGNORECASE)
    fitting = [each for each in suggestions(known.seen.source, line, column) if letters.search(each.text)]
    for number, suggestion in enumerate(sorted(fitting, key=lambda each: not each.text.startswith(word))):
        said = suggestion.documentation
        yield lsp.CompletionItem(
            suggestion.text,
            kind=_SIGNS[suggestion.kind],
            detail=suggestion.detail or None,
            documentation=lsp.MarkupContent(lsp.MarkupKind.Markdown, said) if said else None,
            sort_text=f"{number:03}",
            text_edit=lsp.TextEdit(replaced, suggestion.text),
        )


# ---------------------------------------------------------------- changes


def _formatted(server: Server, uri: str) -> list[lsp.TextEdit] | None:
    from shardwright.ir.text.format import format_module
    from shardwright.ir.text.parser import parse

    known = server.opened(uri)
    if known is None:
        return None
    try:
        text = format_module(parse(known.seen.source))
    except DiagnosticError:
        return None
    lines = known.seen.source.lines
    whole = Span(1, 1, len(lines), len(lines[-1]) + 1)
    return [lsp.TextEdit(server.range(uri, whole), text)] if text != known.seen.source.text else []


def _actions(server: Server, params: lsp.CodeActionParams) -> Iterator[lsp.CodeAction]:
    uri = params.text_document.uri
    known = server.opened(uri)
    if known is None:
        return
    for diagnostic in params.context.diagnostics:
        fixes: Any = diagnostic.data  # what this server made, given back
        for fix in fixes or ():
            where = server.range(uri, Span(*fix["place"]))
            yield lsp.CodeAction(
                f"Write {fix['text']}",
                kind=lsp.CodeActionKind.QuickFix,
                diagnostics=[diagnostic],
                edit=lsp.WorkspaceEdit({uri: [lsp.TextEdit(where, fix["text"])]}),
            )
    line, column = server.place(uri, params.range.start)
    for hint in known.examined.hints if known.examined else ():
        begin, end = hint.facts.place, hint.place
        if contains(Span(begin.line, begin.column, end.end_line, end.end_column), line, column):
            what = "Fill this hole" if hint.written else "Write the type found"
            yield lsp.CodeAction(
                f"{what}: {hint.facts.type}",
                kind=lsp.CodeActionKind.QuickFix,
                edit=lsp.WorkspaceEdit({uri: _written(server, uri, hint)}),
            )


def _outline(server: Server, uri: str) -> Iterator[lsp.DocumentSymbol]:
    known = server.opened(uri)
    if known is None or known.seen.module is None:
        return

    def entry(node: syntax.Node, name: str, kind: lsp.SymbolKind, inside: Sequence[syntax.Decl]) -> lsp.DocumentSymbol:
        whole = server.range(uri, node.span)
        children = [entry(decl, decl.name, lsp.SymbolKind.Variable, ()) for decl in inside]
        return lsp.DocumentSymbol(name, kind, whole, whole, children=children)

    for item in known.seen.module.items:
        match item:
            case syntax.FuncItem():
                yield entry(item, item.name, lsp.SymbolKind.Function, item.params)
            case syntax.WeightsItem(decls) | syntax.StateItem(decls):
                name = "weights" if isinstance(item, syntax.WeightsItem) else "state"
                yield entry(item, name, lsp.SymbolKind.Namespace, decls)
            case _:
                pass
