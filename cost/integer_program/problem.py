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

    `times[t]` is the first moment of set t. Node i is in the sets from `first[i]` to just before `last[i]`, in none
    where its strategies all use nothing.
    """

    limit: float
    times: tuple[int, ...]
    first: NDArray[np.int64]
    last: NDArray[np.int64]

    @staticmethod
    def of(problem: Problem) -> Memory:
        """Only sets whose largest usages together exceed the limit."""
        n = len(problem)
        none = np.zeros(n, np.int64)
        if problem.usage_limit is None or n == 0:
            return Memory(np.inf, (), none, none)
        limit = problem.usage_limit
        starts = np.array([start for start, _ in problem.intervals], np.int64)
        ends = np.array([end for _, end in problem.intervals], np.int64)
        most = np.array([float(usages.max(initial=0.0)) for usages in problem.usages])
        counted = np.flatnonzero((starts < ends) & (most > 0))
        if not len(counted):
            return Memory(limit, (), none, none)
        # A set is largest where something starts and the next thing to happen is an end.
        begun, over = np.unique(starts[counted]), np.unique(ends[counted])
        next_start = np.append(begun[1:], np.int64(2**63 - 1))
        next_end = over[np.searchsorted(over, begun, side="right")]
        times = begun[next_end <= next_start]
        first, last = none.copy(), none.copy()
        first[counted] = np.searchsorted(times, starts[counted])
        last[counted] = np.searchsorted(times, ends[counted])
        binding = _over_time(most, first, last, len(times)) > limit
        numbers = np.zeros(len(times) + 1, np.int64)
        numbers[1:] = np.cumsum(binding)
        return Memory(limit, tuple(int(t) for t in times[binding]), numbers[first], numbers[last])

    def rows(self, node: int) -> slice:
        """The sets that a node is in, to index an array over them with."""
        return slice(int(self.first[node]), int(self.last[node]))

    def limits(self, node: int) -> bool:
        """Whether a node is in any set."""
        return bool(self.first[node] < self.last[node])

    def alive(self, row: int) -> NDArray[np.int64]:
        """The nodes of a set."""
        return np.flatnonzero((self.first <= row) & (row < self.last))

    @cached_property
    def entries(self) -> int:
        """How many nodes all sets have together."""
        return int((self.last - self.first).sum())

    def per_node(self, prices: Floats) -> Floats:
        """For each node the sum of what its sets are priced at."""
        total = np.zeros(len(prices) + 1)
        total[1:] = np.cumsum(prices)
        return np.where(self.first < self.last, total[self.last] - total[self.first], 0.0)

    def usage(self, problem: Problem, choice: Sequence[int]) -> Floats:
        """The memory that a choice takes at each of the times."""
        taken = np.array([float(usages[s]) for usages, s in zip(problem.usages, choice, strict=True)])
        return _over_time(taken, self.first, self.last, len(self.times))

    def excess(self, problem: Problem, choice: Sequence[int]) -> float:
        """By how much a choice exceeds the limit at the worst time; 0 where it fits."""
        return float(np.maximum(self.usage(problem, choice) - self.limit, 0).max(initial=0.0))


def _over_time(taken: Floats, first: NDArray[np.int64], last: NDArray[np.int64], n: int) -> Floats:
    """What is taken in each of n sets, by what comes and what goes at each."""
    inside = first < last
    change = np.zeros(n + 1)
    np.add.at(change, first[inside], taken[inside])
    np.subtract.at(change, last[inside], taken[inside])
    return np.cumsum(change)[:n]
