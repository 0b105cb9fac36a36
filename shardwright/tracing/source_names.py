"""Names of values from the user's file: what `hidden = silu(x @ up)` computes is called `hidden` in the program."""

from __future__ import annotations

import ast
import linecache
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, cast

from shardwright.tracing.graph import Application, Frames, Graph, Variable

Statement = tuple[str, int]
"""A simple statement by its file and first line."""


def source_names(graph: Graph) -> dict[Hashable, tuple[str, str]]:
    """For variables, by number, the name to which the outermost statement assigns them that lets them out, and the
    statement's `FILE:LINE`.

    A statement lets a value out if something reads it that the statement does not compute. Values within an expression
    have no name, nor have those that one statement assigns to several.
    """
    return dict(_named(graph, _Files()))


def _named(graph: Graph, files: _Files) -> Iterator[tuple[Hashable, tuple[str, str]]]:
    readers: defaultdict[Hashable, list[Application | None]] = defaultdict(list)
    for application in graph.applications:
        for operand in application.operands if application.frames else ():  # a gradient reads values within expressions
            if isinstance(operand, Variable):
                readers[operand.number].append(application)
        for body in bodies(application):
            yield from _named(body, files)
    for operand in graph.results:
        if isinstance(operand, Variable):
            readers[operand.number].append(None)
    for application in graph.applications:
        for depth, (file, line) in enumerate(application.frames):
            _, name = files.statement(file, line)
            here = files.way(application.frames, depth)
            leaving = [
                result.number
                for result in application.results
                if any(each is None or files.way(each.frames, depth) != here for each in readers[result.number])
            ]
            if name and len(leaving) == 1:
                yield leaving[0], (name, f"{file}:{line}")
                break


def bodies(application: Application) -> Iterator[Graph]:
    """The graphs within an application: the body of a loop, branches."""
    for value in application.params.values():
        yield from (each for each in _listed(value) if isinstance(each, Graph))


def _listed(value: Any) -> Sequence[object]:
    return cast("Sequence[object]", value) if isinstance(value, list) else (value,)


class _Files:
    """The simple statements of files, read once; notebooks have cells for files."""

    def __init__(self) -> None:
        self.known: dict[str, dict[int, tuple[Statement, str]]] = {}

    def statement(self, file: str, line: int) -> tuple[Statement, str]:
        """The statement at a line, and the one name that it assigns to, or ""."""
        if file not in self.known:
            self.known[file] = _statements(file)
        return self.known[file].get(line, ((file, line), ""))

    def way(self, frames: Frames, depth: int) -> tuple[object, ...]:
        """The calls down to the statement at a depth."""
        if len(frames) <= depth:
            return ()
        return (*frames[:depth], self.statement(*frames[depth])[0])


def _statements(file: str) -> dict[int, tuple[Statement, str]]:
    linecache.checkcache(file)
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}
    made: dict[int, tuple[Statement, str]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or hasattr(node, "body"):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        parts = targets[0].elts if len(targets) == 1 and isinstance(targets[0], ast.Tuple) else targets
        read = [part for part in parts if not (isinstance(part, ast.Name) and part.id == "_")]
        name = read[0].id if len(read) == 1 and isinstance(read[0], ast.Name) else ""
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        made.update(dict.fromkeys(lines, ((file, node.lineno), name)))
    return made
