"""Layers that a framework unrolled, found again: what is applied over and over, each time to the result before and to
weights of its own, becomes one loop over the weights stacked."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from shardwright.tracing.graph import (
    Application,
    Graph,
    GraphEdge,
    Operand,
    TracedFunction,
    Variable,
    reads,
    variables,
)

LEAST_PRODUCTS = 2
"""Products in one trip: of a loop of one product, chips could not split one layer's columns and the next one's rows."""

_STARTS = 16
"""Beginnings of a period that are tried: those where the fewest values cross from one period to the next."""

Place = tuple[int, int]
"""An operand of one of a period's applications, or a result of one: the application's number and its own."""


def rolled(traced: TracedFunction) -> TracedFunction:
    """The function with its layers in loops, where they differ in their weights alone and are at least two.

    The weights of a module are stacked where their paths differ in one number that counts up evenly. Weights that are
    parameters of the function stay apart, since stacking them would copy them at every call.
    """
    graph, edges = traced.graph, dict(zip(traced.graph.constants, traced.weights, strict=True))
    while (layers := _Finder(graph, edges).best()) is not None:
        graph, edges = _with_loop(graph, edges, layers)
    return replace(traced, graph=graph, weights=tuple(edges[variable] for variable in graph.constants))


@dataclass(frozen=True)
class _Layers:
    """`count` periods of `period` applications from `start` on. Of each operand of the first period that comes from
    outside: the result of the period before that later periods have there, or the weights of all periods; others are
    the same in all."""

    start: int
    period: int
    count: int
    carried: Mapping[Place, Place]
    stacked: Mapping[Place, tuple[Variable, ...]]
    changed: Mapping[tuple[Variable, ...], Place]
    """The result that becomes a weight's new value, of weights that a call changes."""


class _Finder:
    """Looks for the layers that a loop would shorten a graph by most."""

    def __init__(self, graph: Graph, edges: Mapping[Variable, GraphEdge]) -> None:
        self.applications, self.edges, self.changed = graph.applications, edges, graph.changed
        self.origin = {
            result.number: (i, k) for i, each in enumerate(graph.applications) for k, result in enumerate(each.results)
        }
        self.uses = Counter(reads(graph))
        known: dict[Hashable, int] = {}
        self.signs = np.array([known.setdefault(_signature(each), len(known)) for each in graph.applications])
        self.equal: dict[Hashable, Hashable] = {}
        """The first variable of those that have one value, as copies of a position for each layer, by their numbers."""
        firsts: dict[Hashable, tuple[Variable, ...]] = {}
        for sign, each in zip(self.signs.tolist(), graph.applications, strict=True):
            key = sign, tuple(self.equal.get(operand.number, operand.number) for operand in variables(each.operands))
            for first, result in zip(firsts.setdefault(key, each.results), each.results, strict=True):
                self.equal[result.number] = first.number
        self.alive = self._alive()

    def best(self) -> _Layers | None:
        if len({(edge.shape, edge.dtype) for edge in self.edges.values()}) == len(self.edges):
            return None  # no two weights could be stacked
        found: _Layers | None = None
        for saved, start, period, end in sorted(self._periodic(), reverse=True):
            if found is not None and saved <= (found.count - 1) * found.period:
                break
            starts = sorted(range(start, end - 2 * period + 1), key=lambda i: (self.alive[i], i))[:_STARTS]
            tried = filter(None, (self._layers(i, period, (end - i) // period) for i in starts))
            longest = max(tried, key=lambda each: each.count, default=None)
            if longest is not None and (found is None or longest.count * period > found.count * found.period):
                found = longest
        return found

    def _periodic(self) -> Iterator[tuple[int, int, int, int]]:
        """Ranges in which each application looks like the one a period later: what a loop saves there at most, where
        the range begins, the period, and where it ends."""
        signs = self.signs
        for period in range(2, len(signs) // 2 + 1):
            alike = np.concatenate(([False], signs[:-period] == signs[period:], [False]))
            bounds = np.flatnonzero(alike[1:] != alike[:-1])
            for start, stop in zip(bounds[::2].tolist(), bounds[1::2].tolist(), strict=True):
                if stop - start >= period:
                    yield (stop - start) // period * period, start, period, stop + period

    def _alive(self) -> list[int]:
        """How many values that applications have made before each one are read from there on."""
        last: dict[Hashable, int] = {}
        for i, application in enumerate(self.applications):
            last.update((operand.number, i) for operand in variables(application.operands))
        change = [0] * (len(self.applications) + 2)
        for number, i in last.items():
            if number in self.origin:
                change[self.origin[number][0] + 1] += 1
                change[i + 1] -= 1
        return np.cumsum(change).tolist()

    def _layers(self, start: int, period: int, most: int) -> _Layers | None:
        """The layers from here on, as many as fit; None for fewer than two, or too little in each."""
        first = self.applications[start : start + period]
        if sum(each.primitive == "dot_general" for each in first) < LEAST_PRODUCTS:
            return None
        carried: dict[Place, Place] = {}
        stacked: dict[Place, list[Variable]] = defaultdict(list)
        count = 1
        while count < most and self._continues(start, period, count, carried, stacked):
            count += 1
        weights = {place: tuple(variables[:count]) for place, variables in stacked.items()}
        if count < 2 or not carried or not weights:
            return None
        beginnings = {(before, first[j].operands[m]) for (j, m), before in carried.items()}
        if len(beginnings) > len(set(carried.values())):
            return None  # one result goes on in the place of two
        times = Counter(weights.values())
        for group, read in times.items():
            if len({*group}) < count or any(self.uses[each.number] != read for each in group):
                return None
            if _common([self.edges[each] for each in group]) is None:
                return None
        changed = {group: self._changed_at(group, start, period) for group in times if self.changed.keys() & {*group}}
        if None in changed.values():
            return None
        places = {group: place for group, place in changed.items() if place is not None}
        return _Layers(start, period, count, carried, weights, places)

    def _changed_at(self, group: Sequence[Variable], start: int, period: int) -> Place | None:
        """The result of each period that becomes its own of the weights; None where these come from elsewhere."""
        places: set[Place] = set()
        for n, variable in enumerate(group):
            new = self.changed.get(variable)
            at, k = self.origin.get(new.number, (-1, 0)) if isinstance(new, Variable) else (-1, 0)
            places.add((at - start - n * period, k))
        (place, *others) = places
        return place if not others and 0 <= place[0] < period else None

    def _continues(
        self,
        start: int,
        period: int,
        count: int,
        carried: dict[Place, Place],
        stacked: dict[Place, list[Variable]],
    ) -> bool:
        """Tells whether period number `count` does with its operands what those before it do."""
        for j in range(period):
            now = self.applications[start + count * period + j]
            for m, (a, b) in enumerate(zip(self.applications[start + j].operands, now.operands, strict=True)):
                if not isinstance(a, Variable) or not isinstance(b, Variable):
                    continue  # numbers are part of how they look
                made, (at, k) = self.origin.get(a.number, (-1, 0)), self.origin.get(b.number, (-1, 0))
                place = (j, m)
                if made[0] >= start:
                    if (at, k) != (made[0] + count * period, made[1]):
                        return False
                elif self.equal.get(a.number, a.number) == self.equal.get(b.number, b.number):
                    if place in carried or place in stacked:
                        return False
                elif at >= start:
                    before = (at - start - (count - 1) * period, k)
                    if not 0 <= before[0] < period or (carried.setdefault(place, before) if count == 1 else
                                                       carried.get(place)) != before:  # fmt: skip
                        return False
                elif a in self.edges and b in self.edges and (count == 1 or place in stacked):
                    stacked[place] = [*(stacked[place] or [a])[:count], b]
                else:
                    return False
        return True


def _with_loop(
    graph: Graph, edges: Mapping[Variable, GraphEdge], layers: _Layers
) -> tuple[Graph, dict[Variable, GraphEdge]]:
    """The graph with a `scan` in the place of the layers, its weights stacked, and the edges of its weights."""
    start, period, count = layers.start, layers.period, layers.count
    end = start + count * period
    first, last = graph.applications[start : start + period], graph.applications[end - period : end]
    stacks = {
        group: Variable(("stack", group[0].number), (count, *group[0].shape), group[0].dtype)
        for group in layers.stacked.values()
    }
    taken = _Taken()
    body = taken.body(first, layers, stacks)
    pairs = [*taken.constants.values(), *taken.carries.values(), *taken.slices.values()]
    outputs = [last[j].results[k] for j, k in taken.carries]
    collected: list[Variable] = []
    after: list[Application] = []
    members = {variable: group for group in stacks for variable in group}
    changed = {variable: new for variable, new in graph.changed.items() if variable not in members}
    read = set(reads(Graph(applications=graph.applications[end:], results=graph.results, changed=changed)))
    for j, application in enumerate(first):
        for k, of_first in enumerate(application.results):
            made = [graph.applications[start + n * period + j].results[k] for n in range(count)]
            apart = [n for n in range(count - ((j, k) in taken.carries)) if made[n].number in read]
            if apart:
                stack = Variable(("collected", of_first.number), (count, *of_first.shape), of_first.dtype)
                outputs.append(stack)
                collected.append(of_first)
                after.extend(each for n in apart for each in _one_of(stack, n, made[n]))
    results: list[Operand] = [*(first[j].results[k] for j, k in taken.carries), *collected]
    params = {
        "length": count,
        "num_consts": len(taken.constants),
        "num_carry": len(taken.carries),
        "reverse": False,
        "body": Graph([inner for _, inner in pairs], body, results),
        "changed": {
            taken.slices[group[0].number][1]: (stacks[group], first[j].results[k])
            for group, (j, k) in layers.changed.items()
        },
    }
    scan = Application(
        "scan", tuple(outer for outer, _ in pairs), params, tuple(outputs), last[-1].place, last[-1].frames
    )
    constants: dict[Variable, Any] = {}
    known: dict[Variable, GraphEdge] = {}
    for variable, array in graph.constants.items():
        group = members.get(variable)
        if group is None:
            constants[variable], known[variable] = array, edges[variable]
        elif variable == group[0] and (common := _common([edges[each] for each in group])) is not None:
            constants[stacks[group]] = np.stack([graph.constants[each] for each in group])
            known[stacks[group]] = common
    applications = [*graph.applications[:start], scan, *after, *graph.applications[end:]]
    changed |= {stacks[group]: None for group in layers.changed}
    return Graph(graph.parameters, applications, graph.results, constants, changed), known


@dataclass
class _Taken:
    """The values that a loop takes, each a variable outside and the one inside: the same in all trips, made by the trip
    before, by where, and slices of stacks."""

    constants: dict[Hashable, tuple[Variable, Variable]] = field(
        default_factory=dict[Hashable, tuple[Variable, Variable]]
    )
    carries: dict[Place, tuple[Variable, Variable]] = field(default_factory=dict[Place, tuple[Variable, Variable]])
    slices: dict[Hashable, tuple[Variable, Variable]] = field(default_factory=dict[Hashable, tuple[Variable, Variable]])

    def body(
        self, first: Sequence[Application], layers: _Layers, stacks: Mapping[tuple[Variable, ...], Variable]
    ) -> list[Application]:
        """The applications of the body, which read the variables inside."""
        made = {result.number for application in first for result in application.results}
        body: list[Application] = []
        for j, application in enumerate(first):
            operands = list(application.operands)
            for m, operand in enumerate(application.operands):
                if not isinstance(operand, Variable) or operand.number in made:
                    continue
                group, source = layers.stacked.get((j, m)), layers.carried.get((j, m))
                inner = Variable(("inside", source, operand.number), operand.shape, operand.dtype)
                if group:
                    pair = self.slices.setdefault(operand.number, (stacks[group], inner))
                elif source:
                    pair = self.carries.setdefault(source, (operand, inner))
                else:
                    pair = self.constants.setdefault(operand.number, (operand, inner))
                operands[m] = pair[1]
            body.append(replace(application, operands=tuple(operands)))
        return body


def _one_of(stack: Variable, number: int, made: Variable) -> Iterator[Application]:
    """The applications that take one of what a loop has stacked."""
    row = Variable(("row", made.number), (1, *made.shape), made.dtype)
    zeros = (0,) * len(made.shape)
    bounds = {"start_indices": (number, *zeros), "limit_indices": (number + 1, *made.shape), "strides": None}
    yield Application("slice", (stack,), bounds, (row,))
    yield Application("squeeze", (row,), {"dimensions": (0,)}, (made,))


def _common(edges: Sequence[GraphEdge]) -> GraphEdge | None:
    """The edge of weights that are stacked: their path with `{layer}`, or `{2*layer+1}`, for the one number in which
    they differ; None where they differ otherwise."""
    paths = [edge.name for edge in edges]
    shape = (len(edges), *edges[0].shape)
    if len({*paths}) == 1:  # what a function of JAX closes over has no path
        return replace(edges[0], shape=shape)
    apart = [re.split(r"(?<![^._])(\d+)(?![^.])", path) for path in paths]
    if len({len(parts) for parts in apart}) > 1:
        return None
    differing = [i for i in range(len(apart[0])) if len({parts[i] for parts in apart}) > 1]
    if len(differing) != 1 or differing[0] % 2 == 0:
        return None
    numbers = [int(parts[differing[0]]) for parts in apart]
    step = numbers[1] - numbers[0]
    if step < 1 or numbers != list(range(numbers[0], numbers[-1] + 1, step)):
        return None
    times, plus = f"{step}*" if step > 1 else "", f"+{numbers[0]}" if numbers[0] else ""
    parts = list(apart[0])
    parts[differing[0]] = f"{{{times}layer{plus}}}"
    path = (edges[0].path[0], *"".join(parts).split("."))
    return replace(edges[0], path=path, shape=shape, members=tuple(paths))


def _signature(application: Application) -> Hashable:
    """How an application looks, but for which variables its operands are."""
    numbers = (None if isinstance(each, Variable) else repr(each.value) for each in application.operands)
    shapes = ((each.shape, each.dtype) for each in (*application.operands, *application.results))
    return application.primitive, _plain(application.params), (*numbers,), (*shapes,)


def _plain(value: Any) -> Hashable:
    """A parameter as something that equals another that means the same; what cannot tell is equal to itself alone."""
    if isinstance(value, Graph):
        return _plain_graph(value)
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, Any]", value).items()
        return tuple((key, _plain(entry)) for key, entry in entries)
    if isinstance(value, list | tuple):
        return tuple(map(_plain, cast("Sequence[Any]", value)))
    if type(value).__name__ in ("Jaxpr", "ClosedJaxpr") and not getattr(value, "consts", ()):
        return str(value)
    try:
        hash(value)
    except TypeError:
        return "identity", id(value)
    return cast("Hashable", (type(cast("object", value)), value))


def _plain_graph(graph: Graph) -> Hashable:
    numbers: dict[Hashable, int] = {}

    def plain(operand: Operand) -> Hashable:
        if isinstance(operand, Variable):
            return numbers.get(operand.number, ("outside", operand.number)), operand.shape, operand.dtype
        return repr(operand.value), operand.shape, operand.dtype

    for variable in graph.parameters:
        numbers[variable.number] = len(numbers)
    lines: list[Hashable] = []
    for each in graph.applications:
        lines.append((_signature(each), tuple(map(plain, each.operands))))
        for variable in each.results:
            numbers[variable.number] = len(numbers)
    return tuple(map(plain, graph.parameters)), tuple(lines), tuple(map(plain, graph.results))
