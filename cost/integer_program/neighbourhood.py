"""A part of a problem with the rest held as a choice has it, as a problem of its own (large-neighbourhood search)."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from shardwright.cost.integer_program.problem import Choice, Edge, Floats, HeldMemory, Problem


class Neighbourhoods:
    """Windows of a problem: nodes that lie together in its graph, or in the order of the program."""

    def __init__(self, problem: Problem, seed: int = 0) -> None:
        self.problem = problem
        self.random = random.Random(seed)
        self.free = [node for node, costs in enumerate(problem.costs) if len(costs) > 1]

    def window(self, size: int) -> list[int]:
        """About so many nodes with more than one strategy, of one place or two."""
        if size >= len(self.free):
            return self.free
        places = self.random.choice((1, 1, 2, 3))
        chosen: dict[int, None] = {}
        for k in range(places):
            wanted = size * (k + 1) // places
            start = self.random.randrange(len(self.free))
            if self.random.random() < 0.3:
                for node in self.free[start : start + wanted - len(chosen)]:
                    chosen[node] = None
                continue
            waiting = [self.free[start]]
            seen = set(waiting)
            at = 0
            while at < len(waiting) and len(chosen) < wanted:
                node = waiting[at]
                at += 1
                if len(self.problem.costs[node]) > 1:
                    chosen[node] = None
                others = [n for n, _ in self.problem.around[node] if n not in seen]
                self.random.shuffle(others)
                seen.update(others)
                waiting += others
        return sorted(chosen)

    def part(self, choice: Choice, usage: Floats, window: Sequence[int]) -> Problem:
        """The window as a problem, its costs with the edges to the rest; `usage` is the memory that the choice takes.

        What the rest takes is that of a last node with one strategy.
        """
        problem = self.problem
        at = {node: k for k, node in enumerate(window)}
        costs = [problem.costs[node] for node in window]
        edges: list[Edge] = []
        held: list[HeldMemory] = []
        intervals: list[tuple[int, int]] = []
        usages: list[Floats] = []
        rest = usage.copy()
        most = np.zeros(len(usage))
        for k, node in enumerate(window):
            for other, table in problem.around[node]:
                if other not in at:
                    costs[k] = costs[k] + table[:, choice[other]]
                elif k < at[other]:
                    edges.append(Edge(k, at[other], table))
            profile = problem.profiles[node]
            intervals.append((0, 0))
            usages.append(np.zeros(len(costs[k])))
            if profile is None:
                continue
            rest[profile.rows] -= profile.spread(profile.levels[choice[node]])
            most[profile.rows] += profile.spread(profile.levels.max(axis=0))
            held += [HeldMemory(k, (start, end), levels) for start, end, levels in profile.pieces]
        limit = problem.usage_limit
        if limit is not None:
            binding = np.flatnonzero((most > 0) & (rest + most > limit))
            held += [HeldMemory(len(window), (row, row + 1), rest[row : row + 1]) for row in binding.tolist()]
        return Problem(
            "window",
            (*intervals, (0, 0)),
            (*costs, np.zeros(1)),
            (*usages, np.zeros(1)),
            tuple(edges),
            limit,
            tuple(held),
        )
