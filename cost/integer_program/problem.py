"""The problem: nodes that take one strategy each, edges that charge for pairs of them, and memory over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Choice = tuple[int, ...]
"""A strategy for each node."""

LARGEST = float(2**52)
"""Costs from here on are infinite: that strategy, or that pair, cannot be chosen. Sums of others are exact."""


@dataclass(frozen=True, eq=False)
class Edge:
    """Two different nodes, and what each pair of their strategies costs: [strategies of a, strategies of b]."""

    a: int
    b: int
    costs: Floats


@dataclass(frozen=True, eq=False)
class Problem:
    """Choose a strategy for each node so that the costs of nodes and edges add up to the least.

    Node i takes `usages[i][s]` of memory during `intervals[i]`, from its start to just before its end, where it has
    strategy s; at no time may the sum exceed `usage_limit`, if there is one. Infinite costs forbid.
    """

    name: str
    intervals: tuple[tuple[int, int], ...]
    costs: tuple[Floats, ...]
    usages: tuple[Floats, ...]
    edges: tuple[Edge, ...]
    usage_limit: float | None = None

    def __len__(self) -> int:
        return len(self.costs)

    @property
    def columns(self) -> int:
        """Strategies of the nodes and pairs of the edges: the variables of the integer program."""
        return sum(map(len, self.costs)) + sum(edge.costs.size for edge in self.edges)

    @cached_property
    def integral(self) -> bool:
        """Whether every finite cost is a whole number, so that any two objectives differ by 1 or not at all."""
        return all(
            bool(np.all(finite == np.floor(finite)))
            for costs in (*self.costs, *(edge.costs for edge in self.edges))
            for finite in (costs[np.isfinite(costs)],)
        )

    @cached_property
    def dearest(self) -> float:
        """What no choice that is allowed costs more than; infinite where some node or edge allows nothing."""
        return sum(
            float(np.max(costs, initial=-np.inf, where=np.isfinite(costs))) if np.isfinite(costs).any() else np.inf
            for costs in (*self.costs, *(edge.costs for edge in self.edges))
        )

    def cost(self, choice: Sequence[int]) -> float:
        """What a choice costs; infinite where it is forbidden, memory apart."""
        nodes = sum(float(costs[s]) for costs, s in zip(self.costs, choice, strict=True))
        return nodes + sum(float(edge.costs[choice[edge.a], choice[edge.b]]) for edge in self.edges)

    @cached_property
    def memory(self) -> Memory:
        return Memory.of(self)


@dataclass(frozen=True, eq=False)
class Memory:
    """The times at which memory may bind: one for each set of nodes that are alive together and in no larger such set.

    `times[t]` is the first moment of the set `alive[t]`; nodes whose strategies all use nothing are left out.
    """

    limit: float
    times: tuple[int, ...]
    alive: tuple[tuple[int, ...], ...]
    rows_of: tuple[NDArray[np.int64], ...]
    """For each node the numbers of the sets that it is in."""

    @staticmethod
    def of(problem: Problem) -> Memory:
        """Only sets whose largest usages together exceed the limit."""
        n = len(problem)
        if problem.usage_limit is None:
            return Memory(np.inf, (), (), tuple(np.zeros(0, np.int64) for _ in range(n)))
        limit = problem.usage_limit
        counted = [
            i for i, (start, end) in enumerate(problem.intervals) if start < end and float(problem.usages[i].max()) > 0
        ]
        starts = sorted({problem.intervals[i][0] for i in counted})
        events = sorted(
            [(problem.intervals[i][0], 1, i) for i in counted] + [(problem.intervals[i][1], 0, i) for i in counted]
        )
        times: list[int] = []
        alive: list[tuple[int, ...]] = []
        now: set[int] = set()
        largest, grown = 0.0, False
        previous = starts[0] if starts else 0

        def close() -> None:
            if grown and largest > limit:
                times.append(previous)
                alive.append(tuple(sorted(now)))

        for time, begins, node in events:
            most = float(problem.usages[node].max())
            if begins:
                now.add(node)
                largest, grown, previous = largest + most, True, time
            else:
                close()
                grown = False
                now.discard(node)
                largest -= most
        rows: list[list[int]] = [[] for _ in range(n)]
        for row, nodes in enumerate(alive):
            for node in nodes:
                rows[node].append(row)
        return Memory(limit, tuple(times), tuple(alive), tuple(np.array(r, np.int64) for r in rows))

    def usage(self, problem: Problem, choice: Sequence[int]) -> Floats:
        """The memory that a choice takes at each of the times."""
        taken = np.array([float(usages[s]) for usages, s in zip(problem.usages, choice, strict=True)])
        return np.array([taken[list(nodes)].sum() for nodes in self.alive], np.float64)

    def excess(self, problem: Problem, choice: Sequence[int]) -> float:
        """By how much a choice exceeds the limit at the worst time; 0 where it fits."""
        return float(np.maximum(self.usage(problem, choice) - self.limit, 0).max(initial=0.0))
