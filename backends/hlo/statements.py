"""Which statements of an emitted module asked for which collectives of the compiled one.

The module as XLA is given it has a collective for each movement, with the line of the emitted source that it comes
from. Compilers merge collectives, write them otherwise, and may lose their places on the way. So a compiled collective
takes the statements of its own line first, and for its other arrays, those left that join the same devices as often and
are of the same size, one by one or together.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from shardwright.backends.hlo.collectives import CompiledCollective, collectives_of
from shardwright.backends.hlo.groups import connected
from shardwright.backends.hlo.module import HloModule, SourceFrame
from shardwright.backends.jax.source_text import RESERVED

_MOST_PADDING = 1.5
"""A compiled array is up to this many times as large as what was written."""

_MOST_MERGED = 3
"""Statements that one array is looked for: queries, keys and values."""


@dataclass(frozen=True)
class Statement:
    """A collective as an emitted module asks for it: the value that the statement names, and the collective."""

    name: str
    collective: CompiledCollective


def statement_names(source: str) -> dict[int, str]:
    """For each line of an emitted module's functions, the value that the statement on it names."""
    names: dict[int, tuple[int, str]] = {}  # with the statement's length in lines: loops' bodies have their own
    builders = [
        node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name.startswith("build_")
    ]
    for builder in builders:
        for node in ast.walk(builder):
            if not isinstance(node, ast.Assign):
                continue
            target = node.targets[0]
            if isinstance(target, ast.Tuple) and not _is_scan(node.value):  # of several results the first
                target = target.elts[0]
            if isinstance(target, ast.Name):
                end = node.end_lineno or node.lineno
                for line in range(node.lineno, end + 1):
                    if line not in names or end - node.lineno < names[line][0]:
                        names[line] = end - node.lineno, _own_name(target.id)
    return {line: name for line, (_, name) in names.items()}


def _is_scan(code: ast.expr) -> bool:
    return isinstance(code, ast.Call) and ast.unparse(code.func) == "lax.scan"


def _own_name(python: str) -> str:
    """A value's name in the program, which has no `_` behind it that keeps it apart from the module's own names."""
    bare = python.rstrip("_")
    return bare if bare != python and bare in RESERVED else python


def statement_of(stack: Sequence[SourceFrame], file: str, names: Mapping[int, str]) -> tuple[str, int] | None:
    """The statement of an emitted module that a stack of frames passes through, with its line."""
    for frame in stack:
        if frame.file == file and frame.line in names:
            return names[frame.line], frame.line
    return None


def written_statements(written: HloModule, file: str, names: Mapping[int, str]) -> list[Statement]:
    """The collectives that an emitted module asks for, in the order of its text. `written` is unoptimized HLO."""
    statements: list[Statement] = []
    for collective in collectives_of(written):
        place = statement_of(collective.stack, file, names)
        statements.append(Statement(place[0] if place else "", collective))
    return statements


def matched(
    compiled: Sequence[CompiledCollective],
    statements: Sequence[Statement],
    file: str,
    names: Mapping[int, str],
    devices: int,
) -> list[list[Statement]]:
    """For each compiled collective the statements that asked for it; a statement is one collective's alone.

    Those that a compiler makes of another's parts, as shifts of what a reduce-scatter of uneven blocks leaves, have the
    statement of their place, with no bytes left to give it.
    """
    left = list(statements)
    found: list[list[Statement]] = [[] for _ in compiled]
    placed = [statement_of(each.stack, file, names) for each in compiled]
    for at, (collective, place) in enumerate(zip(compiled, placed, strict=True)):
        if place is not None:
            _take(found[at], left, [s for s in left if s.name == place[0] and _joins_same(s, collective, devices)])
    for padding in (1.0, _MOST_PADDING):
        for at, collective in enumerate(compiled):
            for size in _open_sizes(collective, found[at]):
                alike = [s for s in left if _joins_same(s, collective, devices) and _fits(s, size, padding)]
                _take(found[at], left, alike)
    for at, collective in enumerate(compiled):
        room = sum(_sizes(collective)) - sum(sum(_sizes(statement.collective)) for statement in found[at])
        alike = [s for s in left if _joins_same(s, collective, devices)]
        for statement in _filling(room, alike) if collective.op != "all_to_all" else ():
            _take(found[at], left, [statement])
    by_name = {statement.name: statement for statement in statements}
    for at, place in enumerate(placed):
        if not found[at] and place is not None and place[0] in by_name:
            found[at].append(by_name[place[0]])
    return found


def _filling(room: int, candidates: Sequence[Statement]) -> Sequence[Statement]:
    """The fewest statements that are exactly of this size together: compilers make one product, and one array, of those
    with an operand in common."""
    for count in range(1, _MOST_MERGED + 1):
        for several in combinations(candidates, count):
            if sum(sum(_sizes(statement.collective)) for statement in several) == room:
                return several
    return ()


def _take(taken: list[Statement], left: list[Statement], candidates: list[Statement]) -> None:
    if candidates:
        taken.append(candidates[0])
        left.remove(candidates[0])


def _joins_same(statement: Statement, compiled: CompiledCollective, devices: int) -> bool:
    asked = statement.collective
    if asked.trips != compiled.trips:
        return False
    return _joined(asked, devices) == _joined(compiled, devices)


def _joined(collective: CompiledCollective, devices: int) -> frozenset[frozenset[int]]:
    groups = collective.groups or connected(collective.pairs, devices)
    return frozenset(map(frozenset, groups))


def _whole(collective: CompiledCollective, at: int) -> int:
    """Elements of the larger side of one of its arrays: what a gather makes, what a reduce-scatter starts from."""
    sides = [side[at].elements for side in (collective.operands, collective.results) if at < len(side)]
    return max(sides, default=0)


def _sizes(collective: CompiledCollective) -> list[int]:
    """Elements of each of its arrays. An all-to-all of several has one for each device, and is not merged."""
    if collective.op == "all_to_all":
        return [sum(array.elements for array in collective.results)]
    return [_whole(collective, at) for at in range(max(len(collective.operands), len(collective.results)))]


def _open_sizes(compiled: CompiledCollective, found: Sequence[Statement]) -> list[int]:
    """The sizes of its arrays that no statement accounts for."""
    sizes = _sizes(compiled)
    for statement in found:
        own = sum(_sizes(statement.collective))
        if sizes:
            sizes.remove(min(sizes, key=lambda size: abs(size - own)))
    return sizes


def _fits(statement: Statement, size: int, padding: float) -> bool:
    own = sum(_sizes(statement.collective))
    return own <= size <= padding * own
