"""Eliminating nodes one by one: exact minima and min-marginals where the graph is narrow, lower bounds where it is not.

Taking out a node joins its neighbours in a table of the least costs over its strategies (bucket elimination,
Dechter 1999): dynamic programming on a tree decomposition of the graph. A node whose table would exceed a limit
has its tables split over several copies of it, each minimised apart (mini-buckets, Dechter and Rish 2003); the
result is then a lower bound.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from shardwright.cost.integer_program.problem import Choice, Floats

MOST_ENTRIES = 1 << 22
"""Of one table, by default."""


class Joined(Protocol):
    """Different nodes, and what each combination of their strategies costs: an axis for each node."""

    @property
    def nodes(self) -> tuple[int, ...]: ...

    @property
    def costs(self) -> Floats: ...


@dataclass(frozen=True, eq=False)
class CostTable:
    """Nodes of any number, and what their combinations cost."""

    nodes: tuple[int, ...]
    costs: Floats


@dataclass(frozen=True)
class Clique:
    """A node with the later ones that its table joins; `over` are those, and the table is [node, *over]."""

    node: int
    over: tuple[int, ...]
    edges: tuple[int, ...]
    """Edges of the graph whose costs enter here."""
    parts: tuple[int, ...]
    """Cliques eliminated before whose result enters here."""
    first: bool
    """Whether the node's own costs enter here (they do in one of its copies)."""


@dataclass(frozen=True)
class Order:
    """How a graph is eliminated: cliques in their order. `exact` says that no node was copied."""

    sizes: tuple[int, ...]
    cliques: tuple[Clique, ...]
    exact: bool

    @cached_property
    def entries(self) -> int:
        """The number of entries of all tables together."""
        return sum(math.prod(self.sizes[n] for n in (clique.node, *clique.over)) for clique in self.cliques)

    @staticmethod
    def of(sizes: Sequence[int], edges: Sequence[Joined], most: int = MOST_ENTRIES, *, whole: bool = False) -> Order:
        """Nodes with the least table over their neighbours first; with `whole` the least table with the node itself."""
        return _Ordering(sizes, edges, most, whole).run()


Table = tuple[str, int, frozenset[int]]
"""An edge or the result of a clique, its number, and the nodes that it joins."""


class _Ordering:
    def __init__(self, sizes: Sequence[int], edges: Sequence[Joined], most: int, whole: bool) -> None:
        self.sizes, self.most = tuple(sizes), most
        self.widths = [float(size) for size in sizes]
        self.logs = [math.log(max(size, 1e-9)) for size in self.widths]
        self.around: list[dict[int, int]] = [{} for _ in sizes]
        """Of each node, its neighbours, and how many tables join them."""
        self.spread = list(self.logs) if whole else [0.0] * len(sizes)
        """The logarithm of the table that counts."""
        self.tables: list[dict[Table, None]] = [{} for _ in sizes]
        for number, edge in enumerate(edges):
            self.add(("edge", number, frozenset(edge.nodes)))

    def add(self, table: Table) -> None:
        for node in table[2]:
            self.tables[node][table] = None
            around = self.around[node]
            for other in table[2]:
                if other != node:
                    around[other] = around.get(other, 0) + 1
                    if around[other] == 1:
                        self.spread[node] += self.logs[other]

    def remove(self, table: Table) -> None:
        for node in table[2]:
            del self.tables[node][table]
            around = self.around[node]
            for other in table[2]:
                if other != node:
                    around[other] -= 1
                    if not around[other]:
                        del around[other]
                        self.spread[node] -= self.logs[other]

    def size(self, nodes: Iterable[int]) -> float:
        return math.prod([self.widths[n] for n in nodes])

    def run(self) -> Order:
        # Rounded, so that what came and went again leaves no trace in the order.
        least = [round(size, 9) for size in self.spread]
        queue = [(size, n) for n, size in enumerate(least)]
        heapq.heapify(queue)
        gone = [False] * len(self.sizes)
        cliques: list[Clique] = []
        exact = True
        while queue:
            size, node = heapq.heappop(queue)
            if gone[node] or size != least[node]:
                continue
            gone[node] = True
            groups = self.groups(node)
            exact &= len(groups) == 1
            touched = list(self.around[node])
            for number, group in enumerate(groups):
                over = tuple(sorted({n for table in group for n in table[2]} - {node}))
                edges = tuple(t[1] for t in group if t[0] == "edge")
                parts = tuple(t[1] for t in group if t[0] == "clique")
                for table in group:
                    self.remove(table)
                if over:
                    self.add(("clique", len(cliques), frozenset(over)))
                cliques.append(Clique(node, over, edges, parts, number == 0))
            for n in touched:
                now = round(self.spread[n], 9)
                if now != least[n]:
                    least[n] = now
                    heapq.heappush(queue, (now, n))
        return Order(self.sizes, tuple(cliques), exact)

    def groups(self, node: int) -> list[list[Table]]:
        """The tables around a node, together if their join is small enough, else in as few joins as first fit."""
        tables = self.tables[node]
        if self.size((*self.around[node], node)) <= self.most or not tables:
            return [list(tables)]
        groups: list[tuple[set[int], list[Table]]] = []
        for table in sorted(tables, key=lambda t: (-self.size(t[2]), t[0], t[1])):
            for scope, members in groups:
                if self.size(scope | table[2]) <= self.most:
                    scope.update(table[2])
                    members.append(table)
                    break
            else:
                groups.append((set(table[2]), [table]))
        return [members for _, members in groups]


def _aligned(array: Floats, axes: tuple[int, ...], scope: tuple[int, ...]) -> Floats:
    """An array over `axes` (nodes), transposed and widened so that it broadcasts over `scope`."""
    if axes == scope:
        return array
    at = [scope.index(axis) for axis in axes]
    if len(at) == 2:  # most are
        turned = array if at[0] < at[1] else array.T
    else:
        turned = array.transpose(sorted(range(len(at)), key=at.__getitem__))
    shape = [1] * len(scope)
    for k, position in enumerate(at):
        shape[position] = array.shape[k]
    return turned.reshape(shape)


@dataclass(frozen=True)
class Upward:
    """The result of eliminating everything: the least cost, and the message that each clique leaves over its `over`."""

    order: Order
    costs: Sequence[Floats]
    edges: Sequence[Joined]
    least: float
    messages: list[Floats]

    def joined(self, clique: Clique) -> Iterator[tuple[tuple[int, ...], Floats]]:
        """The nodes and the costs of all that enters a clique's table."""
        if clique.first:
            yield (clique.node,), self.costs[clique.node]
        for number in clique.edges:
            yield self.edges[number].nodes, self.edges[number].costs
        for part in clique.parts:
            yield self.order.cliques[part].over, self.messages[part]

    def table(self, clique: Clique) -> Floats:
        """The table of a clique, over [node, *over]."""
        scope = (clique.node, *clique.over)
        table = np.zeros([self.order.sizes[n] for n in scope])
        for nodes, costs in self.joined(clique):
            table += _aligned(costs, nodes, scope)
        return table

    def choice(self) -> Choice:
        """The cheapest choice, the earlier strategy of equal ones; from a lower bound, one that may cost more."""
        chosen = [-1] * len(self.order.sizes)
        for clique in reversed(self.order.cliques):
            if clique.first:
                row = np.zeros(self.order.sizes[clique.node])
                for nodes, costs in self.joined(clique):
                    row += costs[tuple([slice(None) if n == clique.node else chosen[n] for n in nodes])]
                chosen[clique.node] = int(np.argmin(row))
        return tuple(chosen)

    def beliefs(self) -> Iterator[tuple[int, Floats]]:
        """The beliefs of each clique, the last first: the least cost of a choice with each entry of its table.

        A lower bound of that where the order gives one.
        """
        cliques = self.order.cliques
        parent = {part: at for at, clique in enumerate(cliques) for part in clique.parts}
        down: dict[int, Floats] = {}
        for at in range(len(cliques) - 1, -1, -1):
            clique = cliques[at]
            scope = (clique.node, *clique.over)
            others = down.pop(at) if at in parent else np.float64(self.least - float(self.messages[at]))
            belief = self.table(clique) + others
            for part in clique.parts:
                over, message = cliques[part].over, self.messages[part]
                away = tuple(k for k, n in enumerate(scope) if n not in over)
                kept = [n for n in scope if n in over]
                rest = belief.min(axis=away) if away else belief
                message = message.transpose([over.index(n) for n in kept])
                with np.errstate(invalid="ignore"):
                    rest = np.where(np.isfinite(message), rest - message, np.inf)
                down[part] = rest.transpose([kept.index(n) for n in over])
            yield at, belief

    def min_marginals(self) -> tuple[list[Floats], list[Floats]]:
        """For each strategy of a node, and each combination of an edge, the least cost of a choice with it.

        A lower bound of that where the order gives one.
        """
        pairs = [edge.costs for edge in self.edges]
        found: list[Floats | None] = [None] * len(self.order.sizes)
        for at, belief in self.beliefs():
            clique = self.order.cliques[at]
            scope = (clique.node, *clique.over)
            own = belief.reshape(len(belief), -1).min(axis=1)
            before = found[clique.node]
            # Each copy of a node gives a bound of its own.
            found[clique.node] = own if before is None else np.maximum(before, own)
            for number in clique.edges:
                nodes = self.edges[number].nodes
                least = belief.min(axis=tuple(k for k, n in enumerate(scope) if n not in nodes))
                kept = [n for n in scope if n in nodes]
                pairs[number] = least.transpose([kept.index(n) for n in nodes])
        return [np.zeros(0) if own is None else own for own in found], pairs


def eliminate(order: Order, costs: Sequence[Floats], edges: Sequence[Joined]) -> Upward:
    """The least sum of the costs of nodes and edges, infinite where nothing is allowed."""
    made = Upward(order, costs, edges, 0.0, [])
    least = 0.0
    for clique in order.cliques:
        made.messages.append(made.table(clique).min(axis=0))
        if not clique.over:
            least += float(made.messages[-1])
    return replace(made, least=least)
