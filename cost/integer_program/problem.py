"""The problem: nodes that take one strategy each, edges that charge for pairs of them, and memory over time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Choice = tuple[int, ...]
"""A strategy for each node."""

LARGEST = float(2**52)
"""Costs from here on count as infinite: that strategy, or that pair, cannot be chosen. Sums below twice as much are
exact."""


@dataclass(frozen=True, eq=False)
class Edge:
    """Two different nodes, and what each pair of their strategies costs: [strategies of a, strategies of b]."""

    a: int
    b: int
    costs: Floats

    @property
    def nodes(self) -> tuple[int, int]:
        return self.a, self.b


@dataclass(frozen=True, eq=False)
class HeldMemory:
    """Memory that a node takes beside its own: `usages[s]` during `interval` where it has strategy s."""

    node: int
    interval: tuple[int, int]
    usages: Floats


@dataclass(frozen=True, eq=False)
class Problem:
    """Choose a strategy for each node so that the costs of nodes and edges add up to the least.

    Node i takes `usages[i][s]` of memory during `intervals[i]`, from its start to just before its end, where it has
    strategy s; at no time may the sum exceed `usage_limit`, if there is one. Infinite costs forbid. A problem that was
    made smaller has memory in `held` too, of nodes whose strategy follows from another's.

    `base` is what every choice costs beside, of a file whose costs are beyond `LARGEST`; `beyond` says that some costs
    count as infinite only because they are so much above the others.
    """

    name: str
    intervals: tuple[tuple[int, int], ...]
    costs: tuple[Floats, ...]
    usages: tuple[Floats, ...]
    edges: tuple[Edge, ...]
    usage_limit: float | None = None
    held: tuple[HeldMemory, ...] = ()
    base: int = 0
    beyond: bool = False

    def __len__(self) -> int:
        return len(self.costs)

    @property
    def columns(self) -> int:
        """Strategies of the nodes and pairs of the edges: the variables of the integer program."""
        return sum(map(len, self.costs)) + sum(edge.costs.size for edge in self.edges)

    @cached_property
    def allowed(self) -> int:
        """Strategies, and pairs that are not forbidden."""
        return sum(map(len, self.costs)) + sum(int(np.isfinite(edge.costs).sum()) for edge in self.edges)

    @cached_property
    def integral(self) -> bool:
        """Tells whether every finite cost is a whole number, so that any two objectives differ by 1 or not at all."""
        return all(
            bool(np.all(finite == np.floor(finite)))
            for costs in (*self.costs, *(edge.costs for edge in self.edges))
            for finite in (costs[np.isfinite(costs)],)
        )

    @cached_property
    def least(self) -> float:
        """The cost that every choice reaches: each node and each edge at its cheapest."""
        return sum(float(costs.min()) for costs in (*self.costs, *(edge.costs for edge in self.edges)))

    @cached_property
    def dearest(self) -> float:
        """The cost that no choice that is allowed exceeds; infinite where some node or edge allows nothing."""
        return sum(
            float(np.max(costs, initial=-np.inf, where=np.isfinite(costs))) if np.isfinite(costs).any() else np.inf
            for costs in (*self.costs, *(edge.costs for edge in self.edges))
        )

    def cost(self, choice: Sequence[int]) -> float:
        """The cost of a choice; infinite where it is forbidden, memory apart."""
        nodes = sum(float(costs[s]) for costs, s in zip(self.costs, choice, strict=True))
        return nodes + sum(float(edge.costs[choice[edge.a], choice[edge.b]]) for edge in self.edges)

    @cached_property
    def around(self) -> tuple[list[tuple[int, Floats]], ...]:
        """The edges of each node, seen from it: the node at the other end, and the costs."""
        made: tuple[list[tuple[int, Floats]], ...] = tuple([] for _ in self.costs)
        for edge in self.edges:
            made[edge.a].append((edge.b, edge.costs))
            made[edge.b].append((edge.a, edge.costs.T))
        return made

    @cached_property
    def memory(self) -> BindingTimes:
        return BindingTimes.of(self)

    @cached_property
    def taken(self) -> tuple[Floats, ...]:
        """The memory that the terms of `memory` take: of each node, then those held."""
        return (*self.usages, *(held.usages for held in self.held))

    @cached_property
    def taken_by_strategy(self) -> tuple[Floats, NDArray[np.int64]]:
        """The memory that all terms of `memory` take, one after the other, and where each begins."""
        sizes = [len(usages) for usages in self.taken]
        return np.concatenate([*self.taken, np.zeros(0)]), np.cumsum([0, *sizes])[:-1]

    @cached_property
    def profiles(self) -> tuple[Profile | None, ...]:
        """The memory that each node takes over the times of `memory`; None where it is in no set."""
        memory, taken = self.memory, self.taken

        def profile(terms: NDArray[np.int64]) -> Profile:
            first, last = memory.first[terms], memory.last[terms]
            if len(terms) == 1:
                return Profile(first, int(last[0]), taken[int(terms[0])][:, None])
            bounds = np.unique(np.concatenate([first, last]))
            change = np.zeros((len(bounds), len(taken[int(terms[0])])))
            usages = np.stack([taken[int(j)] for j in terms])
            np.add.at(change, np.searchsorted(bounds, first), usages)
            np.subtract.at(change, np.searchsorted(bounds, last), usages)
            return Profile(bounds[:-1], int(bounds[-1]), np.ascontiguousarray(np.cumsum(change, axis=0)[:-1].T))

        return tuple(profile(terms) if len(terms) else None for terms in memory.terms)

    def priced(self, prices: Floats) -> list[Floats]:
        """The costs of the nodes with the memory that they take at these prices for the times of `memory`."""
        memory, taken = self.memory, self.taken
        priced = list(self.costs)
        total = np.zeros(len(prices) + 1)
        total[1:] = np.cumsum(prices)
        per_term = total[memory.last] - total[memory.first]
        for j in np.flatnonzero((memory.first < memory.last) & (per_term != 0)):
            node = int(memory.node[j])
            priced[node] = priced[node] + per_term[j] * taken[j]
        return priced

    @cached_property
    def least_usage(self) -> Floats:
        """At each time of `memory`, the sum of what each node takes at least."""
        change = np.zeros(len(self.memory.times) + 1)
        for profile in self.profiles:
            if profile is not None:
                levels = profile.levels.min(axis=0)
                change[profile.starts[0]] += levels[0]
                change[profile.starts[1:]] += levels[1:] - levels[:-1]
                change[profile.stop] -= levels[-1]
        return np.cumsum(change)[:-1]

    @property
    def may_fit(self) -> bool:
        """Tells whether each node has a strategy, and the ones that use least memory fit."""
        if not all(map(len, self.costs)):
            return False
        return bool((self.least_usage <= self.memory.limit + self.memory.rounding).all())


@dataclass(frozen=True, eq=False)
class Profile:
    """A node's memory over the times: `levels[s, k]` with strategy s from row `starts[k]` to before `starts[k + 1]`.

    The last piece ends before row `stop`.
    """

    starts: NDArray[np.int64]
    stop: int
    levels: Floats

    @property
    def pieces(self) -> Iterator[tuple[int, int, Floats]]:
        """The first row of each piece, the row after its last, and the memory that each strategy takes."""
        ends = [*self.starts[1:].tolist(), self.stop]
        return zip(self.starts.tolist(), ends, self.levels.T, strict=True)

    @property
    def rows(self) -> slice:
        return slice(int(self.starts[0]), self.stop)

    def least(self, over_time: Floats) -> Floats:
        """The least in each piece of an array over the times."""
        return np.minimum.reduceat(over_time[: self.stop], self.starts)

    def spread(self, pieces: Floats) -> Floats:
        """A value for each piece as one for each row, [..., rows]."""
        return np.repeat(pieces, np.diff(self.starts, append=self.stop), axis=-1)


@dataclass(frozen=True, eq=False)
class BindingTimes:
    """The times at which memory may bind: one for each set of nodes that are alive together and in no larger such set.

    `times[t]` is the first moment of set t. Terms are what takes memory: one for each node, then those held beside.
    Term j is of node `node[j]` and in the sets from `first[j]` to just before `last[j]`, in none where its strategies
    all use nothing. `rounding` is what sums may be off by, 0 where they are of whole numbers.
    """

    limit: float
    times: tuple[int, ...]
    node: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    rounding: float = 0.0

    @staticmethod
    def of(problem: Problem) -> BindingTimes:
        """Only sets whose largest usages together exceed the limit."""
        node = np.array([*range(len(problem)), *(held.node for held in problem.held)], np.int64)
        none = np.zeros(len(node), np.int64)
        if problem.usage_limit is None or len(problem) == 0:
            return BindingTimes(np.inf, (), node, none, none)
        limit = problem.usage_limit
        intervals = np.array([*problem.intervals, *(held.interval for held in problem.held)], np.int64)
        starts, ends = intervals[:, 0], intervals[:, 1]
        most = np.array([float(each.max(initial=0.0)) for each in problem.taken])
        counted = np.flatnonzero((starts < ends) & (most > 0))
        if not len(counted):
            return BindingTimes(limit, (), node, none, none)
        # A set is largest where something starts and the next thing to happen is an end.
        begun, over = np.unique(starts[counted]), np.unique(ends[counted])
        next_start = np.append(begun[1:], np.int64(2**63 - 1))
        next_end = over[np.searchsorted(over, begun, side="right")]
        times = begun[next_end <= next_start]
        first, last = none.copy(), none.copy()
        first[counted] = np.searchsorted(times, starts[counted])
        last[counted] = np.searchsorted(times, ends[counted])
        together = _over_time(most, first, last, len(times))
        binding = together > limit
        exact = together.max() < 2 * LARGEST and all((each == np.floor(each)).all() for each in problem.taken)
        rounding = 0.0 if exact or math.isinf(limit) else 1e-12 * limit
        numbers = np.zeros(len(times) + 1, np.int64)
        numbers[1:] = np.cumsum(binding)
        return BindingTimes(limit, tuple(int(t) for t in times[binding]), node, numbers[first], numbers[last], rounding)

    @cached_property
    def terms(self) -> tuple[NDArray[np.int64], ...]:
        """The terms of each node that are in any set."""
        found = np.flatnonzero(self.first < self.last)
        found = found[np.argsort(self.node[found], kind="stable")]
        n = int(self.node.max(initial=-1)) + 1
        return tuple(np.split(found, np.searchsorted(self.node[found], np.arange(1, n)))) if n else ()

    def limits(self, node: int) -> bool:
        """Tells whether a node is in any set."""
        return len(self.terms[node]) > 0

    def alive(self, row: int) -> NDArray[np.int64]:
        """The nodes of a set."""
        return np.unique(self.node[(self.first <= row) & (row < self.last)])

    @cached_property
    def entries(self) -> int:
        """How many terms all sets have together."""
        return int((self.last - self.first).sum())

    def usage(self, problem: Problem, choice: Sequence[int]) -> Floats:
        """The memory that a choice takes at each of the times."""
        every, starts = problem.taken_by_strategy
        taken = every[starts + np.asarray(choice, np.int64)[self.node]]
        return _over_time(taken, self.first, self.last, len(self.times))

    def excess(self, problem: Problem, choice: Sequence[int]) -> float:
        """By how much a choice exceeds the limit at the worst time; 0 where it fits."""
        return float(np.maximum(self.usage(problem, choice) - self.limit, 0).max(initial=0.0))


def _over_time(taken: Floats, first: NDArray[np.int64], last: NDArray[np.int64], n: int) -> Floats:
    """The memory taken in each of n sets, by what comes and what goes at each."""
    inside = first < last
    change = np.zeros(n + 1)
    np.add.at(change, first[inside], taken[inside])
    np.subtract.at(change, last[inside], taken[inside])
    return np.cumsum(change)[:n]
