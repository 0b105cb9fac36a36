"""Names of values from the user's file: what `hidden = silu(x @ up)` computes is called `hidden` in the program."""

from __future__ import annotations

import ast
import linecache
from collections import defaultdict
from collections.abc import Hashable, Iterator

from shardwright.tracing.graph import Application, Frames, Graph, Variable, bodies

Statement = tuple[str, int]
"""A simple statement by its file and first line."""


def source_names(graph: Graph) -> dict[Hashable, tuple[str, str]]:
    """For variables, by number, the name to which the outermost statement assigns them that lets them out, and the
    statement's `FILE:LINE`.

    A statement lets a value out if something reads it that the statement does not compute. Values within an expression
    have no name. Where a statement assigns to several names they are those of the parts of one array, in their order.
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
    parts: defaultdict[tuple[object, str, int, tuple[str, ...]], list[tuple[Hashable, str]]] = defaultdict(list)
    for application in graph.applications:
        for depth, (file, line) in enumerate(application.frames):
            _, names = files.statement(file, line)
            here = files.way(application.frames, depth)
            leaving = [
                result.number
                for result in application.results
                if any(each is None or files.way(each.frames, depth) != here for each in readers[result.number])
            ]
            if len(names) == 1 and len(leaving) == 1:
                yield leaving[0], (names[0], f"{file}:{line}")
                break
            if len(names) > 1 and depth == len(application.frames) - 1:
                parts[here, file, line, names] += [(number, application.primitive) for number in leaving]
    for (_, file, line, names), leaving in parts.items():
        if len(names) == len(leaving) and all(primitive in _PARTS for _, primitive in leaving):
            yield from ((number, (name, f"{file}:{line}")) for (number, _), name in zip(leaving, names, strict=True))


_PARTS = ("split", "squeeze", "top_k", "sort")
"""Primitives that give the parts of one array, one or all of them, in the order in which Python unpacks them."""


class _Files:
    """The simple statements of files, read once; notebooks have cells for files."""

    def __init__(self) -> None:
        self.known: dict[str, dict[int, tuple[Statement, tuple[str, ...]]]] = {}

    def statement(self, file: str, line: int) -> tuple[Statement, tuple[str, ...]]:
        """The statement at a line, and the names that it assigns to, none where it assigns to anything else."""
        if file not in self.known:
            self.known[file] = _statements(file)
        return self.known[file].get(line, ((file, line), ()))

    def way(self, frames: Frames, depth: int) -> tuple[object, ...]:
        """The calls down to the statement at a depth."""
        if len(frames) <= depth:
            return ()
        return (*frames[:depth], self.statement(*frames[depth])[0])


def _statements(file: str) -> dict[int, tuple[Statement, tuple[str, ...]]]:
    linecache.checkcache(file)
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return {}
    made: dict[int, tuple[Statement, tuple[str, ...]]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or hasattr(node, "body"):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        parts = targets[0].elts if len(targets) == 1 and isinstance(targets[0], ast.Tuple) else targets
        read = [part for part in parts if not (isinstance(part, ast.Name) and part.id == "_")]
        names = tuple(part.id for part in read if isinstance(part, ast.Name))
        names = names if len(names) == len(read) and (len(read) == len(parts) or len(read) == 1) else ()
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            made[line] = (file, node.lineno), () if line in made else names  # of two in a line nothing tells which
    return made
