"""Reading and writing problems as the JSON of the IOPDDL benchmark (ASPLOS 2025 contest, github.com/google/iopddl).

    {"problem": {"name": "two",
                 "nodes": {"intervals": [[0, 2], [1, 3]], "costs": [[15, 20], [0, 5]], "usages": [[10, 4], [8, 2]]},
                 "edges": {"nodes": [[0, 1]], "costs": [[0, 7, 7, 0]]},
                 "usage_limit": 15}}

A node is alive from the start of its interval to just before the end. An edge's costs are those of the pairs of
strategies, the second node's running fastest. Without `usage_limit` memory is not limited.

Costs from 10^18 on forbid. Other numbers are 64-bit integers; what floats do not hold exactly is brought into their
range: of a row of costs the least is set apart, memory is counted in a common unit of all usages.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import numpy as np

from shardwright.cost.integer_program.problem import LARGEST, Edge, Floats, Problem
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Source, did_you_mean, fault, located
from shardwright.ir.json_texts import json_of, shown

FORBIDDING: Final = 10**18
"""Costs from here on stand for infinite ones in the benchmark's files."""

_LARGE: Final = 2**32
"""Of rows of larger costs the least is set apart: millions of smaller ones add up exactly."""

_MOST: Final = 2**1000
"""Of what floats still have."""


def read_problem(path: str | Path) -> Problem:
    """The problem in a file. Raises a `DiagnosticError` that says what in it is wrong, OSError as `open` does."""
    source = Path(path)
    with located(Source(str(source), "")):
        return problem_of(json_of(source, source.read_bytes(), "bad-problem"))


def problem_of(value: object) -> Problem:
    """The problem that a JSON value says. Raises a `DiagnosticError` that names the key and the number of the node."""
    whole = _table(value, "the file", "problem")
    problem = _table(whole["problem"], '"problem"', "nodes", "edges")
    _check_limit(problem)
    nodes = _table(problem["nodes"], '"nodes"', "intervals", "costs", "usages")
    read = [_costs(row, f'"costs" of node {i}') for i, row in enumerate(_list(nodes["costs"], '"costs"'))]
    costs = tuple(row.costs for row in read)
    usages, limit = _memory(_list(nodes["usages"], '"usages"'), problem.get("usage_limit"))
    intervals = tuple(_interval(row, i) for i, row in enumerate(_list(nodes["intervals"], '"intervals"')))
    if not len(costs) == len(usages) == len(intervals):
        raise _wrong(
            f'"nodes" has {len(intervals)} intervals, {len(costs)} rows of costs and {len(usages)} of usages',
            "each node has one of each",
        )
    for i, (cost, usage) in enumerate(zip(costs, usages, strict=True)):
        if len(cost) == 0:
            raise _wrong(f"node {i} has no strategy", "each node has at least one")
        if len(cost) != len(usage):
            raise _wrong(f"node {i} has {len(cost)} costs and {len(usage)} usages", "each strategy has one of each")
        if (usage < 0).any():
            raise _wrong(f"node {i} has a usage below 0")
    edges, tables = _edges(_table(problem["edges"], '"edges"', "nodes", "costs"), costs)
    read += tables
    base, beyond = sum(row.base for row in read), any(row.beyond for row in read)
    return Problem(str(problem.get("name", "")), intervals, costs, usages, edges, limit, base=base, beyond=beyond)


def _check_limit(problem: dict[str, Any]) -> None:
    """Raises where the one key that may be left out is there under a name much like its own, and would be ignored."""
    for key in problem:
        if "usage_limit" not in problem and did_you_mean(key, ["usage_limit"]):
            raise _wrong(f'"problem" has "{key}", which is no key of it', 'did you mean "usage_limit"?')


def _edges(edges: dict[str, Any], costs: tuple[Floats, ...]) -> tuple[tuple[Edge, ...], list[_Costs]]:
    """The edges, and their costs as they were read; of edges from a node to itself they are added to the node's."""
    ends, tables = _list(edges["nodes"], '"nodes" of "edges"'), _list(edges["costs"], '"costs" of "edges"')
    if len(ends) != len(tables):
        raise _wrong(f'"edges" has {len(ends)} pairs of nodes and {len(tables)} rows of costs')
    made: list[Edge] = []
    read: list[_Costs] = []
    for number, (pair, row) in enumerate(zip(ends, tables, strict=True)):
        a, b = _two(pair, f"edge {number} joins", "two nodes")
        for node in (a, b):
            if not 0 <= node < len(costs):
                raise _wrong(f"edge {number} joins node {node}, and there are {len(costs)} nodes, from 0 on")
        read.append(_costs(row, f"the costs of edge {number}"))
        table = read[-1].costs
        if table.size != len(costs[a]) * len(costs[b]):
            raise _wrong(
                f"edge {number} has {table.size} costs for {len(costs[a])} x {len(costs[b])} pairs of strategies"
            )
        if a == b:  # both ends take one strategy: a cost of the node
            table = np.diag(table.reshape(len(costs[a]), len(costs[a])))
            costs[a][:] += table
            continue
        made.append(Edge(a, b, table.reshape(len(costs[a]), len(costs[b]))))
    return tuple(made), read


class _Costs(NamedTuple):
    """A row of costs without what all of them have, which is above 0 only where sums would not be exact otherwise.

    `beyond` says that some count as infinite which do not forbid.
    """

    costs: Floats
    base: int = 0
    beyond: bool = False


def _costs(value: object, what: str) -> _Costs:
    row, array = _numbers(value, what)
    forbids = array >= FORBIDDING
    base = 0
    if np.abs(array, where=~forbids, out=np.zeros_like(array)).max(initial=0.0) >= _LARGE:
        base = int(min(row))
        array = np.array([min(x - base, LARGEST) for x in row], np.float64)
    beyond = array >= LARGEST
    array[beyond | forbids] = np.inf
    return _Costs(array, base, bool((beyond & ~forbids).any()))


def _memory(rows: list[Any], limit: Any) -> tuple[tuple[Floats, ...], float | None]:
    """The usages of each node, and their limit; in a unit that divides all, where a limit is beyond exact sums."""
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit >= 0):
        raise _wrong(f'"usage_limit" is {shown(limit)}, not a number from 0 on')
    usages = [_numbers(row, f'"usages" of node {i}') for i, row in enumerate(rows)]
    unit = 1
    if limit is not None and limit >= LARGEST:
        numbers = [x for row, _ in usages for x in row]
        if limit >= sum(max(row, default=0) for row, _ in usages):
            limit = None
        elif all(isinstance(x, int) or x.is_integer() for x in numbers):
            unit = math.gcd(*map(int, numbers))
            limit = int(limit) // unit
        if limit is not None and limit >= LARGEST:
            found = f'"usage_limit" is {shown(limit)}, and memory is counted exactly up to 2^52'
            raise _wrong(found, "give usages and their limit in a larger unit")
    most = LARGEST if limit is None else limit + 1  # what is too much is as good as this
    large = [unit > 1 or (array >= LARGEST).any() for _, array in usages]
    made = tuple(
        np.array([min(x // unit, most) for x in row], np.float64) if rewrite else array
        for (row, array), rewrite in zip(usages, large, strict=True)
    )
    return made, None if limit is None else float(limit)


def _numbers(value: object, what: str) -> tuple[list[int | float], Floats]:
    """The numbers of a list, those beyond floats as 2^1000, and as floats."""
    row = _list(value, what)
    if not {int, float}.issuperset(map(type, row)):
        bad = next(x for x in row if type(x) not in (int, float))
        raise _wrong(f"{what} has {shown(bad)}, not a number")
    try:
        array = np.array(row, np.float64)
        bounded = bool((array <= _MOST).all())
    except OverflowError:  # of whole numbers of hundreds of digits
        array, bounded = np.zeros(0), False
    if not bounded and not any(math.isnan(x) for x in row if isinstance(x, float)):
        row = [min(x, _MOST) for x in row]
        array = np.array([max(x, -_MOST) for x in row], np.float64)
    if not (array > -_MOST).all():
        raise _wrong(f"{what} has a number that is not finite")
    return row, array


def _interval(value: object, node: int) -> tuple[int, int]:
    start, end = _two(value, f"the interval of node {node} is", "two whole numbers")
    if max(abs(start), abs(end)) >= 2**62:
        raise _wrong(f"the interval of node {node} is {shown(value)}, beyond 62 bits")
    return start, end


def _two(value: object, what: str, wanted: str) -> tuple[int, int]:
    row = cast("list[object]", value) if isinstance(value, list) else []
    whole = [x for x in row if isinstance(x, int) and not isinstance(x, bool)]
    if len(row) != 2 or len(whole) != 2:
        raise _wrong(f"{what} {shown(cast('object', value))}, not {wanted}")
    return whole[0], whole[1]


def _table(value: object, what: str, *keys: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(f"{what} is {shown(value)}, not an object")
    table = cast("dict[str, Any]", value)
    for key in keys:
        if key not in table:
            raise _wrong(f'{what} has no "{key}"')
    return table


def _list(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(f"{what} is {shown(value)}, not a list")
    return cast("list[Any]", value)


def _wrong(message: str, *notes: str) -> DiagnosticError:
    return fault("bad-problem", message, NOWHERE, *notes)
