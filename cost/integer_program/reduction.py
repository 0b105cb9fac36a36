"""Making a problem smaller and keeping a best choice.

Strategies that cannot be, that never fit, or that others of the node dominate, are removed. A node whose strategy
follows from that of a neighbour (`contraction`) is removed with its edges, and what it costs and takes becomes the
neighbour's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.integer_program.contraction import RemovedNode, contract
from shardwright.cost.integer_program.problem import Choice, Edge, Floats, HeldMemory, Problem

MOST_COMPARISONS = 1 << 26
"""Pairs of strategies times those at the other end of an edge: beyond it an edge is not looked through."""


@dataclass(frozen=True, eq=False)
class ReducedProblem:
    """A problem with fewer nodes and strategies, and which ones of the original they are."""

    problem: Problem
    nodes: tuple[int, ...]
    """The original node of each."""
    kept: tuple[NDArray[np.int64], ...]
    """The original strategies of each node."""
    removed: tuple[RemovedNode, ...] = ()
    """Nodes that follow others, in original numbers: those removed later may be followed by those removed before."""

    @staticmethod
    def none(problem: Problem) -> ReducedProblem:
        """The problem itself."""
        return ReducedProblem(
            problem, tuple(range(len(problem))), tuple(np.arange(len(costs)) for costs in problem.costs)
        )

    def original(self, choice: Choice) -> Choice:
        """A choice of the reduced problem as one of the original."""
        chosen = [0] * (len(self.nodes) + len(self.removed))
        for node, kept, s in zip(self.nodes, self.kept, choice, strict=True):
            chosen[node] = int(kept[s])
        for following in reversed(self.removed):
            chosen[following.node] = int(following.strategy[tuple(chosen[n] for n in following.after)])
        return tuple(chosen)

    def of(self, choice: Choice) -> Choice | None:
        """A choice of the original as one of the reduced problem; None where a strategy of it is gone."""
        found: list[int] = []
        for node, kept in zip(self.nodes, self.kept, strict=True):
            at = int(np.searchsorted(kept, choice[node]))
            if at == len(kept) or kept[at] != choice[node]:
                return None
            found.append(at)
        return tuple(found)

    def restricted(self, keep: Sequence[NDArray[np.bool_]]) -> ReducedProblem:
        """With only the strategies that are marked, of each node."""
        kept = tuple(k[m] for k, m in zip(self.kept, keep, strict=True))
        return replace(self, problem=restrict(self.problem, keep), kept=kept)

    def contracted(self, out_of_time: Callable[[], bool]) -> ReducedProblem:
        """Without nodes that follow others."""
        problem, nodes, removed = contract(self.problem, out_of_time)
        if not removed:
            return self
        following = tuple(each.renumbered(self.nodes, self.kept) for each in removed)
        return ReducedProblem(
            _folded(problem),
            tuple(self.nodes[n] for n in nodes),
            tuple(self.kept[n] for n in nodes),
            (*self.removed, *following),
        )


def reduce(problem: Problem, out_of_time: Callable[[], bool] = lambda: False) -> ReducedProblem:
    """The problem with one edge for each pair of nodes, without nodes and strategies that need not be looked at.

    A node without strategies in the result says that nothing can be chosen. Out of time, some that need not be chosen
    are left.
    """
    return reduced_further(replace(ReducedProblem.none(problem), problem=_merged(problem)), out_of_time)


def reduced_further(made: ReducedProblem, out_of_time: Callable[[], bool] = lambda: False) -> ReducedProblem:
    """The same again after strategies or pairs were ruled out."""
    look: Sequence[int] | None = None
    while True:
        made = made.restricted(_possible(made.problem))
        if not all(len(costs) for costs in made.problem.costs) or out_of_time():
            return made
        contracted = made.contracted(out_of_time)
        if contracted is not made:
            made, look = contracted, None
        fitting = [np.ones(0, np.bool_)] if out_of_time() else _fitting(made.problem)
        if not all(bool(marks.all()) for marks in fitting):
            made, look = made.restricted(fitting), None
            continue
        keep = _undominated(made.problem, range(len(made.problem)) if look is None else look, out_of_time)
        lost = {node for node, marks in enumerate(keep) if not marks.all()}
        if not lost:
            return made
        made = made.restricted(keep)
        look = sorted({n for edge in made.problem.edges if lost & {edge.a, edge.b} for n in (edge.a, edge.b)})


def restrict(problem: Problem, keep: Sequence[NDArray[np.bool_]]) -> Problem:
    """The problem with only the strategies that are marked, of each node."""
    if all(bool(marks.all()) for marks in keep):
        return problem
    return _folded(
        replace(
            problem,
            costs=tuple(costs[marks] for costs, marks in zip(problem.costs, keep, strict=True)),
            usages=tuple(usages[marks] for usages, marks in zip(problem.usages, keep, strict=True)),
            edges=tuple(
                e if keep[e.a].all() and keep[e.b].all() else Edge(e.a, e.b, e.costs[keep[e.a]][:, keep[e.b]])
                for e in problem.edges
            ),
            held=tuple(HeldMemory(h.node, h.interval, h.usages[keep[h.node]]) for h in problem.held),
        )
    )


def _folded(problem: Problem) -> Problem:
    """The problem without edges of nodes that have one strategy: what these charge is a cost of the other node."""
    sizes = [len(costs) for costs in problem.costs]
    alone = [edge for edge in problem.edges if sizes[edge.a] == 1 or sizes[edge.b] == 1]
    if not alone or 0 in sizes:
        return problem
    costs = list(problem.costs)
    for edge in alone:
        if sizes[edge.b] == 1:
            costs[edge.a] = costs[edge.a] + edge.costs[:, 0]
        else:
            costs[edge.b] = costs[edge.b] + edge.costs[0]
    kept = tuple(edge for edge in problem.edges if sizes[edge.a] > 1 and sizes[edge.b] > 1)
    return replace(problem, costs=tuple(costs), edges=kept)


def _merged(problem: Problem) -> Problem:
    edges: dict[tuple[int, int], Floats] = {}
    for edge in problem.edges:
        pair = (min(edge.a, edge.b), max(edge.a, edge.b))
        costs = edge.costs if pair == (edge.a, edge.b) else edge.costs.T
        edges[pair] = edges[pair] + costs if pair in edges else costs
    kept = tuple(Edge(a, b, costs) for (a, b), costs in edges.items() if costs.any())
    return _folded(replace(problem, edges=kept))


def _possible(problem: Problem) -> list[NDArray[np.bool_]]:
    """Strategies whose cost is finite with some strategy at the other end of each edge."""
    keep = [np.isfinite(costs) for costs in problem.costs]
    changed = True
    # Only an edge that forbids something can leave a strategy without a partner, as long as all have some left.
    edges = [edge for edge in problem.edges if not np.isfinite(edge.costs).all()]
    while changed:
        changed = False
        for edge in edges if all(bool(marks.any()) for marks in keep) else problem.edges:
            for node, other, costs in ((edge.a, edge.b, edge.costs), (edge.b, edge.a, edge.costs.T)):
                alone = keep[node] & ~np.isfinite(costs[:, keep[other]]).any(axis=1)
                if alone.any():
                    keep[node] &= ~alone
                    changed = True
    return keep


def _fitting(problem: Problem) -> list[NDArray[np.bool_]]:
    """Strategies that fit where every other node takes what it takes at least."""
    room = problem.memory.limit + problem.memory.rounding - problem.least_usage
    return [
        np.ones(len(costs), np.bool_)
        if profile is None
        else (profile.levels - profile.levels.min(axis=0) <= profile.least(room)).all(axis=1)
        for costs, profile in zip(problem.costs, problem.profiles, strict=True)
    ]


def _undominated(problem: Problem, look: Sequence[int], out_of_time: Callable[[], bool]) -> list[NDArray[np.bool_]]:
    """Strategies without another of the same node that costs no more whatever the neighbours do, and no more memory.

    Of equal ones the first stays. Nodes are looked at one by one and a neighbour that lost strategies counts as it is
    then, so that what two nodes lose at once is never more than one after the other would lose. Only the nodes in
    `look` are looked at.
    """
    keep = [np.ones(len(costs), np.bool_) for costs in problem.costs]
    for node in look:
        if out_of_time():
            break
        costs = problem.costs[node]
        n = len(costs)
        if n == 1 or any(n * n * table.shape[1] > MOST_COMPARISONS for _, table in problem.around[node]):
            continue
        worse = costs[:, None] - costs[None, :]  # at least, of the first over the second
        for other, table in problem.around[node]:
            now = table[:, keep[other]]
            with np.errstate(invalid="ignore"):
                difference = now[:, None, :] - now[None, :, :]
            if np.isposinf(now).any():
                difference[np.isposinf(now)[:, None, :] & np.ones((1, n, 1), np.bool_)] = np.inf
            worse = worse + difference.min(axis=2)
        dominated = worse >= 0
        profile = problem.profiles[node]
        if profile is not None:
            for levels in profile.levels.T:
                dominated &= levels[:, None] >= levels[None, :]
        np.fill_diagonal(dominated, False)
        both = dominated & dominated.T
        dominated &= ~both | np.tril(np.ones((n, n), np.bool_), -1)
        keep[node] = np.logical_not(dominated.any(axis=1))
    return keep
