"""Nodes whose best strategy follows from those of one or two neighbours, removed with what they cost and take.

Exactly one strategy may be allowed by an edge for each of the neighbour's (as where one value is a copy of another); or
memory may not bind for the node, so that the cheapest strategy beside each one of its only neighbour, or beside each
pair of its two, is as good as any (the first steps of eliminating nodes one by one, for good).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.integer_program.problem import Edge, Floats, HeldMemory, Problem


@dataclass(frozen=True, eq=False)
class RemovedNode:
    """A removed node, the one or two that it follows, and its strategy for each of theirs."""

    node: int
    after: tuple[int, ...]
    strategy: NDArray[np.int64]

    def renumbered(self, nodes: Sequence[int], kept: Sequence[NDArray[np.int64]]) -> RemovedNode:
        """In the numbers of the problem from which these nodes and strategies are left."""
        strategy = np.zeros([int(kept[n][-1]) + 1 for n in self.after], np.int64)
        strategy[np.ix_(*(kept[n] for n in self.after))] = kept[self.node][self.strategy]
        return RemovedNode(nodes[self.node], tuple(nodes[n] for n in self.after), strategy)


def contract(
    problem: Problem, out_of_time: Callable[[], bool] = lambda: False
) -> tuple[Problem, list[int], list[RemovedNode]]:
    """The problem without such nodes, the nodes that are left, and those removed, in the order of removal.

    Every strategy must have an allowed one at the other end of each edge, and two nodes at most one edge. A node is
    left where the problem would have more pairs without it, and once the time is out.
    """
    return _Contraction(problem).run(out_of_time)


class _Contraction:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.costs = list(problem.costs)
        self.around: list[dict[int, Floats]] = [{} for _ in problem.costs]
        for edge in problem.edges:
            self.around[edge.a][edge.b] = edge.costs
            self.around[edge.b][edge.a] = edge.costs.T
        self.held: list[dict[tuple[int, int], Floats]] = [{} for _ in problem.costs]
        for held in problem.held:
            self.hold(held.node, held.interval, held.usages)
        self.removed: list[RemovedNode] = []
        self.touched: list[int] = []
        """The neighbours of the node removed last, whose edges are new."""
        self.limited = [problem.memory.limits(node) for node in range(len(problem))]

    def run(self, out_of_time: Callable[[], bool]) -> tuple[Problem, list[int], list[RemovedNode]]:
        waiting = dict.fromkeys(range(len(self.problem)))
        while waiting and not out_of_time():
            node = next(iter(waiting))
            del waiting[node]
            if self.around[node] and (self.into_one(node) or self.into_two(node)):
                waiting.update(dict.fromkeys(self.touched))
        if not self.removed:
            return self.problem, list(range(len(self.problem))), []
        gone = {each.node for each in self.removed}
        left = [node for node in range(len(self.problem)) if node not in gone]
        return self.problem_of(left), left, self.removed

    def problem_of(self, left: list[int]) -> Problem:
        at = {node: k for k, node in enumerate(left)}
        return replace(
            self.problem,
            intervals=tuple(self.problem.intervals[n] for n in left),
            costs=tuple(self.costs[n] for n in left),
            usages=tuple(self.problem.usages[n] for n in left),
            edges=tuple(
                Edge(at[n], at[other], table)
                for n in left
                for other, table in self.around[n].items()
                if n < other and table.any()
            ),
            held=tuple(HeldMemory(at[n], interval, usages) for n in left for interval, usages in self.held[n].items()),
        )

    def into_one(self, node: int) -> bool:
        """Removes a node that follows a neighbour, or that neighbour where it follows too and has less around it."""
        if len(self.around[node]) == 1 and not self.limited[node]:
            ((other, table),) = self.around[node].items()
            self.follow(node, other, (table + self.costs[node][:, None]).argmin(axis=0))
            return True
        for other, table in self.around[node].items():
            if len(table) > len(table.T):  # fewer strategies cannot decide more, save where some are never allowed
                continue
            allowed = np.isfinite(table)
            if not (allowed.sum(axis=0) == 1).all():
                continue
            if len(table) == len(table.T) and (allowed.sum(axis=1) == 1).all():
                if self.size(other) < self.size(node):
                    self.follow(other, node, allowed.argmax(axis=1))
                else:
                    self.follow(node, other, allowed.argmax(axis=0))
                return True
            pairs = sum(len(t.T) for n, t in self.around[node].items() if n != other)
            if pairs * (len(table.T) - len(table)) <= table.size:
                self.follow(node, other, allowed.argmax(axis=0))
                return True
        return False

    def size(self, node: int) -> int:
        return len(self.around[node]) + len(self.held[node])

    def follow(self, node: int, other: int, strategy: NDArray[np.int64]) -> None:
        """Makes what the node costs and takes the other's."""
        table = self.around[node][other]
        self.costs[other] = self.costs[other] + self.costs[node][strategy] + table[strategy, np.arange(len(strategy))]
        if self.limited[node]:
            self.limited[other] = True
            self.hold(other, self.problem.intervals[node], self.problem.usages[node][strategy])
            for interval, usages in self.held[node].items():
                self.hold(other, interval, usages[strategy])
        for n, costs in self.around[node].items():
            if n != other:
                self.join(other, n, costs[strategy])
            del self.around[n][node]
        self.touched = [*self.around[node]]
        self.around[node] = {}
        self.removed.append(RemovedNode(node, (other,), strategy))

    def hold(self, node: int, interval: tuple[int, int], usages: Floats) -> None:
        if interval[0] < interval[1] and usages.any():
            before = self.held[node].get(interval)
            self.held[node][interval] = usages if before is None else before + usages

    def join(self, a: int, b: int, costs: Floats) -> None:
        """Adds what pairs cost to the edge between two nodes, [strategies of a, strategies of b]."""
        total = self.around[a][b] + costs if b in self.around[a] else costs
        self.around[a][b] = total
        self.around[b][a] = total.T

    def into_two(self, node: int) -> bool:
        """Removes a node with two neighbours for which memory does not bind."""
        if len(self.around[node]) != 2 or self.limited[node]:
            return False
        (a, first), (b, second) = self.around[node].items()
        n, n_a, n_b = len(self.costs[node]), len(first.T), len(second.T)
        if b not in self.around[a] and n_a * n_b > n * (n_a + n_b):
            return False
        if n * n_a * n_b > 1 << 24:
            return False
        every = (self.costs[node][:, None] + first)[:, :, None] + second[:, None, :]
        self.touched = [a, b]
        for neighbour in (a, b):
            del self.around[neighbour][node]
        self.around[node] = {}
        self.join(a, b, every.min(axis=0))
        self.removed.append(RemovedNode(node, (a, b), every.argmin(axis=0)))
        return True
