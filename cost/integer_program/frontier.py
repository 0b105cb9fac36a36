"""The best choices under the memory of a few times: elimination that keeps what choices cost and take.

Elimination at the best prices for memory leaves a gap: choices that seem cheap take too much, or leave memory unused.
Here each entry of a table holds several labels, the cost and the memory at the times that matter of partial choices
none of which is worse than another in every way. A label is dropped where its part and the best rest, at the prices,
cost more than a threshold: what that leaves out costs more than it. Layers that are alike make many choices that cost
and take the same; of these one is kept, where branching would look at all. (Labels as in shortest paths with resources,
Desrochers and Soumis 1988; with the bounds of the Lagrangian dual, Beasley and Christofides 1989.)
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.integer_program.elimination import Upward
from shardwright.cost.integer_program.problem import Choice, Floats, Problem

LEAST_LABELS = 50
"""Of one table, however little time there is."""

WINDOW = 8
"""Labels that one is compared with where more than one time matters."""

Ints = NDArray[np.int64]


@dataclass
class Labels:
    """Partial choices, sorted by their state: the strategies of the nodes that their table joins, as one number."""

    state: Ints
    cost: Floats
    usage: Floats
    """[labels, times]"""
    bound: Floats
    """What a whole choice with it costs at least; of a finished table, how much more than the best of its state."""
    strategy: Ints
    parts: tuple[Ints, ...]
    """The label of each part."""

    def __len__(self) -> int:
        return len(self.state)

    def take(self, at: Ints | NDArray[np.bool_]) -> Labels:
        parts = tuple(part[at] for part in self.parts)
        return Labels(self.state[at], self.cost[at], self.usage[at], self.bound[at], self.strategy[at], parts)


@dataclass(frozen=True)
class Frontier:
    """Choices that fit at the times looked at, the cheapest first, and a bound for all that fit there."""

    choices: list[Choice]
    bound: float
    complete: bool
    """Whether all choices up to the threshold were looked at."""


def frontier(
    problem: Problem,
    upward: Upward,
    prices: Floats,
    rows: Ints,
    threshold: float,
    most_labels: int,
    seconds: float,
    stop: Callable[[], bool] = lambda: False,
) -> Frontier | None:
    """The choices cheaper than the threshold that fit at the times `rows`; None where it was stopped.

    `upward` is the elimination at these prices. Where there would be more labels than allowed, or than there is time
    for, the threshold is lowered; the bound says how far.
    """
    try:
        return _Frontier(problem, upward, prices, rows, threshold, most_labels, seconds, stop).run()
    except TimeoutError:
        return None


class _Frontier:
    def __init__(
        self,
        problem: Problem,
        upward: Upward,
        prices: Floats,
        rows: Ints,
        threshold: float,
        most_labels: int,
        seconds: float,
        stop: Callable[[], bool],
    ) -> None:
        self.problem, self.upward = problem, upward
        self.began, self.seconds, self.stop = time.monotonic(), seconds, stop
        self.order = upward.order
        self.threshold = threshold
        self.wanted = threshold
        self.most = most_labels
        self.limit = problem.memory.limit
        self.most_memory = self.limit + problem.memory.rounding
        # What a choice costs at the prices, less what they charge for the limit, is at most its cost if it fits.
        self.credit = float(prices.sum()) * self.limit if len(prices) else 0.0
        outside = prices.copy()
        outside[rows] = 0
        self.outside_credit = float(outside.sum()) * self.limit if len(prices) else 0.0
        self.costs = problem.priced(outside)
        self.prices = prices[rows]
        self.none = np.zeros(len(rows))
        self.usages = [np.zeros((len(costs), len(rows))) for costs in problem.costs]
        for node, profile in enumerate(problem.profiles):
            if profile is not None:
                for k, row in enumerate(rows.tolist()):
                    if profile.starts[0] <= row < profile.stop:
                        piece = bisect_right(profile.starts.tolist(), row) - 1
                        self.usages[node][:, k] = profile.levels[:, piece]
        self.least: list[Floats] = [usages.min(axis=0) for usages in self.usages]
        self.slack: Floats = self.most_memory - np.sum([self.none, *self.least], axis=0)

    def run(self) -> Frontier:
        cliques = self.order.cliques
        beliefs = dict(self.upward.beliefs())
        tables: list[Labels] = []
        inside: list[Floats] = []  # the least that the nodes of a clique and its parts take
        roots: list[int] = []
        for at, clique in enumerate(cliques):
            used = (time.monotonic() - self.began) / self.seconds
            if used > 0.05 + 0.9 * at / len(cliques):
                self.most = max(LEAST_LABELS, self.most * 2 // 3)
            belief = beliefs.pop(at)
            tables.append(self.of_clique(at, belief, tables, inside))
            if not clique.over:
                roots.append(at)
        whole = self.start(np.array([self.upward.least - self.credit]))
        done = self.none
        for at in roots:
            whole, done = self.with_part(whole, np.zeros(1, np.int64), tables[at], done, inside[at])
        cheap = whole.cost - self.outside_credit <= self.wanted
        fits = whole.take(cheap & (whole.usage <= self.most_memory).all(axis=1))
        order = np.argsort(fits.cost, kind="stable")
        bound = min(self.threshold, float(fits.cost.min(initial=np.inf)) - self.outside_credit)
        choices = [self.choice(fits, int(k), roots, tables) for k in order[:16]]
        return Frontier(choices, bound, self.threshold == self.wanted)

    def start(self, bounds: Floats) -> Labels:
        """One label for each entry of a table, without cost and memory yet."""
        n = len(bounds)
        zeros = np.zeros(n)
        return Labels(np.arange(n), zeros, np.zeros((n, len(self.none))), bounds, np.zeros(n, np.int64), ())

    def of_clique(self, at: int, belief: Floats, tables: list[Labels], inside: list[Floats]) -> Labels:
        """The labels of a clique, by the state of what its table joins."""
        clique = self.order.cliques[at]
        bounds = belief.ravel() - self.credit
        entries = np.flatnonzero(bounds <= self.threshold)
        where = dict(zip((clique.node, *clique.over), np.unravel_index(entries, belief.shape), strict=True))

        def states(over: tuple[int, ...]) -> Ints:
            if not over:
                return np.zeros(len(entries), np.int64)
            return np.ravel_multi_index([where[n] for n in over], [self.order.sizes[n] for n in over])

        labels = self.start(bounds[entries])
        labels.strategy = where[clique.node]
        done = self.none
        if clique.first:
            labels.cost = labels.cost + self.costs[clique.node][labels.strategy]
            labels.usage = self.usages[clique.node][labels.strategy]
            done = self.least[clique.node]
        for number in clique.edges:
            edge = self.problem.edges[number]
            labels.cost = labels.cost + edge.costs[where[edge.a], where[edge.b]]
        for part in clique.parts:
            over = self.order.cliques[part].over
            labels, done = self.with_part(labels, states(over), tables[part], done, inside[part])
        inside.append(done)
        labels.state = states(clique.over)[labels.state]
        labels = self.undominated(labels)
        message = self.upward.messages[at].ravel()
        labels.bound = labels.cost + labels.usage @ self.prices - message[labels.state]
        return labels

    def with_part(
        self, labels: Labels, states: Ints, part: Labels, done: Floats, inside: Floats
    ) -> tuple[Labels, Floats]:
        """Each label with each one of a part at its state, given for each entry; and the least that these take."""
        numbers = np.arange(len(part))
        while True:
            if self.stop() or time.monotonic() > self.began + 1.5 * self.seconds:
                raise TimeoutError
            wanted, at = states[labels.state], part.state[numbers]
            first = np.searchsorted(at, wanted, side="left")
            counts = np.searchsorted(at, wanted, side="right") - first
            total = int(counts.sum())
            if total <= 4 * self.most:
                break
            # Fewer of both: those whose bound, with the best of the others, is lowest.
            least = float(labels.bound.min())
            self.threshold = least + 0.7 * (self.threshold - least)
            if self.threshold - least > 1e-9 * max(1.0, abs(least)):
                labels = labels.take(labels.bound <= self.threshold)
                numbers = numbers[part.bound[numbers] <= self.threshold - least]
            else:
                self.threshold = least
                labels = labels.take(np.arange((len(labels) + 1) // 2))
                numbers = numbers[: (len(numbers) + 1) // 2]
        own = np.repeat(np.arange(len(labels)), counts)
        other = numbers[np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(total)]
        bound = labels.bound[own] + part.bound[other]
        usage = labels.usage[own] + part.usage[other]
        done = done + inside
        kept = (bound <= self.threshold) & (usage <= self.slack + done).all(axis=1)
        own, other = own[kept], other[kept]
        parts = (*(before[own] for before in labels.parts), other)
        cost = labels.cost[own] + part.cost[other]
        made = Labels(labels.state[own], cost, usage[kept], bound[kept], labels.strategy[own], parts)
        return self.undominated(made), done

    def undominated(self, labels: Labels) -> Labels:
        """Sorted by state, without labels that another of the state is as good as in cost and at every time."""
        if len(labels.usage.T) == 0:
            labels = labels.take(np.lexsort((labels.cost, labels.state)))
            kept = np.ones(len(labels), np.bool_)
            kept[1:] = labels.state[1:] != labels.state[:-1]
        elif len(labels.usage.T) == 1:
            labels = labels.take(np.lexsort((labels.cost, labels.usage[:, 0], labels.state)))
            kept = labels.cost < _least_before(labels.cost, labels.state)
        else:
            labels = labels.take(np.lexsort((*labels.usage.T, labels.cost, labels.state)))
            kept = np.ones(len(labels), np.bool_)
            for away in range(1, min(WINDOW, len(labels) - 1) + 1):
                worse = (labels.usage[away:] >= labels.usage[:-away]).all(axis=1)
                kept[away:] &= ~(worse & (labels.state[away:] == labels.state[:-away]))
        labels = labels.take(kept)
        if len(labels) > self.most:
            self.threshold = min(self.threshold, float(np.partition(labels.bound, self.most)[self.most]))
            labels = labels.take(labels.bound < self.threshold)
        return labels

    def choice(self, labels: Labels, at: int, roots: list[int], tables: list[Labels]) -> Choice:
        """The strategies of a label of the whole."""
        chosen = [-1] * len(self.order.sizes)
        waiting = [(root, int(part[at])) for root, part in zip(roots, labels.parts, strict=True)]
        while waiting:
            clique, label = waiting.pop()
            found = self.order.cliques[clique]
            if found.first:
                chosen[found.node] = int(tables[clique].strategy[label])
            parts = tables[clique].parts
            waiting += [(part, int(each[label])) for part, each in zip(found.parts, parts, strict=True)]
        return tuple(chosen)


def _least_before(values: Floats, group: Ints) -> Floats:
    """For each value the least of those before it in its group, which lies together; infinite for the first."""
    least = np.full(len(values), np.inf)
    same = group[1:] == group[:-1]
    least[1:] = np.where(same, values[:-1], np.inf)
    longest = int(np.bincount(np.unique(group, return_inverse=True)[1]).max(initial=0))
    away = 1
    while away < longest:
        same = group[away:] == group[:-away]
        least[away:] = np.where(same, np.minimum(least[away:], least[:-away]), least[away:])
        away *= 2
    return least
