"""The word at a place of a text, and where it is defined."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from shardwright.ir.diagnostics import Span
from shardwright.ir.elaboration.names import head_span
from shardwright.ir.text import syntax


class SymbolKind(StrEnum):
    """The things that a word can stand for."""

    VALUE = "value"
    PARAMETER = "parameter"
    WEIGHT = "weight"
    STATE = "state"
    INDEX = "index of a loop"
    FUNCTION = "function"
    DIMENSION = "dimension"
    AXIS = "mesh axis"
    OPERATION = "operation"
    CHIP = "chip"


@dataclass(frozen=True)
class Symbol:
    """A definition: `place` is its name in the text, None of what no text defines, as an operation.

    `scope` is where it is seen, None for everywhere.
    """

    kind: SymbolKind
    name: str
    place: Span | None = None
    scope: Span | None = None


def contains(span: Span, line: int, column: int) -> bool:
    """Tells whether a place is inside, its end counted in: the cursor stands behind what was just typed."""
    return (span.line, span.column) <= (line, column) <= (span.end_line, span.end_column)


def head_of(node: syntax.Node, name: str) -> Span:
    """The name that a declaration begins with."""
    return Span(node.span.line, node.span.column, node.span.line, node.span.column + len(name))


_WORD = re.compile(r"[A-Z][0-9]*|[a-z][a-z0-9_]*(?<!_)")


class Symbols:
    """The definitions of a module, and what the words of its text refer to."""

    def __init__(self, module: syntax.Module) -> None:
        self.module = module
        self.definitions = list(_definitions(module))

    @cached_property
    def axes(self) -> frozenset[str]:
        return frozenset(symbol.name for symbol in self.definitions if symbol.kind is SymbolKind.AXIS)

    def func_at(self, line: int, column: int) -> str:
        """The function around a place, "" where there is none."""
        for item in self.module.items:
            if isinstance(item, syntax.FuncItem) and contains(item.span, line, column):
                return item.name
        return ""

    def values_at(self, line: int, column: int) -> list[Symbol]:
        """The values that are seen at a place, those defined last first."""
        kinds = (SymbolKind.VALUE, SymbolKind.PARAMETER, SymbolKind.WEIGHT, SymbolKind.STATE, SymbolKind.INDEX)
        seen: dict[str, Symbol] = {}
        for symbol in reversed(self.definitions):
            if symbol.kind in kinds and (symbol.scope is None or contains(symbol.scope, line, column)):
                place = symbol.place
                if symbol.scope is None or (place is not None and (place.line, place.column) <= (line, column)):
                    seen.setdefault(symbol.name, symbol)
        return list(seen.values())

    def at(self, text: str, line: int, column: int) -> tuple[Symbol, Span] | None:
        """The thing that the word at a place refers to, with the word's own place; `text` is the line. None between
        words."""
        around = [node for node in syntax.nodes(self.module) if node.span.line and contains(node.span, line, column)]
        node = min(reversed(around), key=_extent, default=None)
        word = next((m for m in _WORD.finditer(text) if m.start() + 1 <= column <= m.end() + 1), None)
        if node is None or word is None or text.find("#") in range(word.start() + 1):
            return None
        here = Span(line, word.start() + 1, line, word.end() + 1)
        match node:
            case syntax.MeshItem() | syntax.MeshAxis():
                return self._axis(word[0], here, column)
            case syntax.PartialExpr():
                return self._axis(word[0], here, column)
            case syntax.ChipItem(name):
                at = node.span.end_column - len(name)
                return Symbol(SymbolKind.CHIP, name), Span(line, at, line, node.span.end_column)
            case syntax.FuncItem(name) if word[0] == name and line == node.span.line:
                return Symbol(SymbolKind.FUNCTION, name, head_span(node)), here
            case syntax.Static() | syntax.RowDim() | syntax.LayoutRow() | syntax.DimDecl() | syntax.SizeExpr():
                found = self._named(SymbolKind.DIMENSION, word[0])
                return (found, here) if found else self._axis(word[0], here, column)
            case syntax.CallExpr(name) if word[0] == name and node.span.column == word.start() + 1:
                return Symbol(SymbolKind.OPERATION, name), here
            case syntax.ContractExpr() if word[0][0].isupper():
                found = self._named(SymbolKind.DIMENSION, word[0])
                return (found, here) if found else None
            case syntax.LoopStmt(dim=dim) if word[0] == dim:
                found = self._named(SymbolKind.DIMENSION, dim)
                return (found, here) if found else None
            case _:
                return self._value(word[0], here)

    def _value(self, name: str, here: Span) -> tuple[Symbol, Span] | None:
        for symbol in self.values_at(here.end_line, here.end_column):
            if symbol.name == name:
                return symbol, here
        for symbol in self.definitions:
            if symbol.place == here:
                return symbol, here
        return None

    def _named(self, kind: SymbolKind, name: str) -> Symbol | None:
        return next((s for s in self.definitions if s.kind is kind and s.name == name), None)

    def _axis(self, word: str, here: Span, column: int) -> tuple[Symbol, Span] | None:
        """The axis that a word names, or one of the letters that it is made of: the `y` of `xyz`."""
        found = self._named(SymbolKind.AXIS, word)
        if found is not None:
            return found, here
        for letter in re.finditer("[a-z][0-9]*", word):
            start = here.column + letter.start()
            if start <= column <= here.column + letter.end() and letter[0] in self.axes:
                at = Span(here.line, start, here.line, here.column + letter.end())
                if column < at.end_column or letter.end() == len(word):
                    axis = self._named(SymbolKind.AXIS, letter[0])
                    return (axis, at) if axis else None
        return None


def _extent(node: syntax.Node) -> tuple[int, int]:
    span = node.span
    return span.end_line - span.line, span.end_column - span.column if span.end_line == span.line else 0


def _definitions(module: syntax.Module) -> Iterator[Symbol]:
    for item in module.items:
        match item:
            case syntax.MeshItem(axes):
                yield from (Symbol(SymbolKind.AXIS, axis.name, head_of(axis, axis.name)) for axis in axes)
            case syntax.DimItem(dims):
                yield from (Symbol(SymbolKind.DIMENSION, dim.name, head_of(dim, dim.name)) for dim in dims)
            case syntax.WeightsItem(decls) | syntax.StateItem(decls):
                kind = SymbolKind.WEIGHT if isinstance(item, syntax.WeightsItem) else SymbolKind.STATE
                yield from (Symbol(kind, decl.name, head_of(decl, decl.name)) for decl in decls)
            case syntax.FuncItem():
                yield Symbol(SymbolKind.FUNCTION, item.name, head_span(item))
                for param in item.params:
                    yield Symbol(SymbolKind.PARAMETER, param.name, head_of(param, param.name), item.span)
                yield from _inside(item.body, item.span)
            case _:
                pass


def _inside(body: tuple[syntax.Stmt, ...], scope: Span) -> Iterator[Symbol]:
    for statement in body:
        if isinstance(statement, syntax.LoopStmt):
            if statement.index:
                yield Symbol(SymbolKind.INDEX, statement.index, head_span(statement), statement.span)
            for carry in statement.carries:
                name = carry.target.name
                yield Symbol(SymbolKind.VALUE, name, head_of(carry.target, name), statement.span)
            yield from _inside(statement.body, statement.span)
        if isinstance(statement, syntax.LetStmt | syntax.LoopStmt):
            for target in statement.targets:
                yield Symbol(SymbolKind.VALUE, target.name, head_of(target, target.name), scope)
