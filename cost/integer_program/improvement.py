"""Better choices from good ones: one node at a time, and back under the limit where memory is exceeded."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from shardwright.cost.integer_program.problem import Choice, Floats, Problem


@dataclass(frozen=True)
class Neighbours:
    """Choices that differ from a choice in one node."""

    problem: Problem

    def alternatives(self, choice: list[int], node: int) -> Floats:
        """The cost of each strategy of a node, with its edges, while the others stay."""
        total = self.problem.costs[node].copy()
        for other, table in self.problem.around[node]:
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
            profile = problem.profiles[node]
            if profile is not None:
                room = profile.least(memory.limit - usage)
                costs[(profile.levels - profile.levels[now[node]] > room).any(axis=1)] = np.inf
            best = int(np.argmin(costs))
            if costs[best] < costs[now[node]]:
                if profile is not None:
                    usage[profile.rows] += profile.spread(profile.levels[best] - profile.levels[now[node]])
                now[node] = best
                waiting.update(dict.fromkeys(other for other, _ in self.problem.around[node]))
        return tuple(now)

    def repaired(self, choice: Choice, out_of_time: Callable[[], bool]) -> Choice | None:
        """A choice that fits, by the changes that cost least for the memory they save; None where none helps.

        Memory is freed where it is exceeded most, until it is exceeded nowhere. What a change costs and saves is
        looked at anew just before it is made, and it is made if it still is the best of those known.
        """
        problem, memory = self.problem, self.problem.memory
        now = list(choice)
        usage = memory.usage(problem, now)
        while not out_of_time():
            over = np.maximum(usage - memory.limit, 0)
            worst = int(np.argmax(over)) if len(over) else 0
            if not over.any():
                return tuple(now)
            queue: list[tuple[float, int]] = []
            for node in map(int, memory.alive(worst)):
                found = self._cheapest_saving(node, now, usage)
                if found is not None:
                    queue.append((found[0], node))
                if out_of_time():
                    return None
            heapq.heapify(queue)
            changed = False
            while queue and usage[worst] > memory.limit and not out_of_time():
                _, node = heapq.heappop(queue)
                found = self._cheapest_saving(node, now, usage)
                if found is None:
                    continue
                rate, s = found
                if queue and rate > queue[0][0]:
                    heapq.heappush(queue, (rate, node))
                    continue
                profile = problem.profiles[node]
                assert profile is not None
                usage[profile.rows] += profile.spread(profile.levels[s] - profile.levels[now[node]])
                now[node] = s
                changed = True
                heapq.heappush(queue, (rate, node))
            if not changed:
                return None
        return None

    def _cheapest_saving(self, node: int, now: list[int], usage: Floats) -> tuple[float, int] | None:
        """The change of a node that costs least for each byte by which it lessens what is beyond the limit."""
        problem, profile = self.problem, self.problem.profiles[node]
        assert profile is not None
        delta = profile.levels - profile.levels[now[node]]
        if delta.min() >= 0:
            return None
        own = usage[profile.rows] - problem.memory.limit
        exceeded = np.flatnonzero(own > 0) if delta.max() <= 0 else np.arange(len(own))
        now_over = own[exceeded]
        after = np.maximum(now_over[None, :] + profile.spread(delta)[:, exceeded], 0).sum(axis=1)
        saved = float(now_over[now_over > 0].sum()) - after
        useful = np.flatnonzero(saved > 0)
        if not len(useful):
            return None
        costs = self.alternatives(now, node)
        with np.errstate(invalid="ignore"):
            rate = (costs[useful] - costs[now[node]]) / saved[useful]
        at = int(np.argmin(rate))
        return (float(rate[at]), int(useful[at])) if np.isfinite(rate[at]) else None
