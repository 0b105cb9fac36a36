"""Better choices from good ones: one node at a time, and back under the limit where memory is exceeded."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from shardwright.cost.integer_program.problem import Choice, Floats, Problem


class Neighbours:
    """The edges of each node, seen from it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.around: list[list[tuple[int, Floats]]] = [[] for _ in problem.costs]
        for edge in problem.edges:
            self.around[edge.a].append((edge.b, edge.costs))
            self.around[edge.b].append((edge.a, edge.costs.T))

    def alternatives(self, choice: list[int], node: int) -> Floats:
        """What each strategy of a node costs, with its edges, while the others stay."""
        total = self.problem.costs[node].copy()
        for other, table in self.around[node]:
            total += table[:, choice[other]]
        return total

    def improved(self, choice: Choice, out_of_time: Callable[[], bool]) -> Choice:
        """A choice that fits and that no change of one node makes cheaper; the given one must fit."""
        problem, memory = self.problem, self.problem.memory
        now = list(choice)
        usage = memory.usage(problem, now)
        waiting = dict.fromkeys(range(len(problem)))
        while waiting and not out_of_time():
            node = next(iter(waiting))
            del waiting[node]
            costs = self.alternatives(now, node)
            rows = memory.rows_of[node]
            if len(rows):
                most = problem.usages[node][now[node]] + float((memory.limit - usage[rows]).min())
                costs[problem.usages[node] > most] = np.inf
            best = int(np.argmin(costs))
            if costs[best] < costs[now[node]]:
                if len(rows):
                    usage[rows] += problem.usages[node][best] - problem.usages[node][now[node]]
                now[node] = best
                waiting.update(dict.fromkeys(other for other, _ in self.around[node]))
        return tuple(now)

    def repaired(self, choice: Choice, out_of_time: Callable[[], bool]) -> Choice | None:
        """A choice that fits, by the changes that cost least for the memory they save; None where none helps."""
        problem, memory = self.problem, self.problem.memory
        now = list(choice)
        usage = memory.usage(problem, now)
        while not out_of_time():
            over = np.maximum(usage - memory.limit, 0)
            if not over.any():
                return tuple(now)
            best: tuple[float, int, int] | None = None
            for node in memory.alive[int(np.argmax(over))]:
                rows = memory.rows_of[node]
                delta = problem.usages[node] - problem.usages[node][now[node]]
                after = np.maximum(usage[rows][:, None] + delta[None, :] - memory.limit, 0).sum(axis=0)
                saved = over[rows].sum() - after
                useful = np.flatnonzero(saved > 0)
                if not len(useful):
                    continue
                costs = self.alternatives(now, node)
                with np.errstate(invalid="ignore"):
                    rate = (costs[useful] - costs[now[node]]) / saved[useful]
                at = int(np.argmin(rate))
                if np.isfinite(rate[at]) and (best is None or rate[at] < best[0]):
                    best = (float(rate[at]), node, int(useful[at]))
            if best is None:
                return None
            _, node, s = best
            usage[memory.rows_of[node]] += problem.usages[node][s] - problem.usages[node][now[node]]
            now[node] = s
        return None
