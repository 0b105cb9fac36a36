"""The least sum of tables of costs over variables that they share, by eliminating one variable after the other.

Bertele and Brioschi 1972 ("nonserial dynamic programming"), Dechter 1999 ("bucket elimination"). Exact; the largest
table made on the way grows with the product of the choices that must be seen together, so it is for problems that are
nearly trees.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]


class TooLargeError(Exception):
    """A table would have more entries than are allowed."""


Table = tuple[tuple[int, ...], Costs]
"""Variables, each once, with an array that has an axis for each of them."""


@dataclass(frozen=True)
class Step:
    """A variable that was eliminated from `joined`, tables by number, which left one of its own over `scope`."""

    variable: int
    scope: tuple[int, ...]
    joined: dict[int, Table]
    number: int
    chosen: NDArray[np.intp]


def eliminate(factors: Sequence[Table], most: int = 1 << 23) -> tuple[dict[int, int], float]:
    """A choice for every variable at the least total of the factors, and this total.

    The variable whose elimination makes the smallest table goes first, the least number of several. Ties go to the
    earlier choice. Raises `TooLargeError` where a table would have more than `most` entries.
    """
    steps, total = _eliminated(factors, most)
    choice: dict[int, int] = {}
    for step in reversed(steps):
        choice[step.variable] = int(step.chosen[tuple(choice[other] for other in step.scope)])
    return choice, total


def min_marginals(factors: Sequence[Table], most: int = 1 << 23) -> dict[int, Costs]:
    """For each variable and each of its choices the least total of the factors with that choice. Raises as
    `eliminate`."""
    steps, total = _eliminated(factors, most)
    made: dict[int, Costs] = {}
    outside = {step.number: np.zeros(()) for step in steps}
    """By the table that a step left, the least of all that was not within it, over its scope."""
    for step in reversed(steps):
        own = (step.variable, *step.scope)
        tables = {**step.joined, -1: (step.scope, outside[step.number])}
        whole = _sum(list(tables.values()), own)
        made[step.variable] = whole.min(axis=tuple(range(1, whole.ndim)))
        for number, (scope, _) in step.joined.items():
            if number in outside:
                rest = _sum([table for other, table in tables.items() if other != number], own)
                rest = np.broadcast_to(rest, whole.shape)
                left = rest.min(axis=tuple(i for i, v in enumerate(own) if v not in scope))
                kept = [v for v in own if v in scope]
                outside[number] = left.transpose([kept.index(v) for v in scope])
    # What other parts, with which it shares nothing, cost at least is not in a part's own.
    return {variable: costs + (total - float(costs.min())) for variable, costs in made.items()}


def _eliminated(factors: Sequence[Table], most: int) -> tuple[list[Step], float]:
    """The steps, first to last, and the least total."""
    alive = dict(enumerate(factors))
    of: dict[int, set[int]] = {}
    near: dict[int, set[int]] = {}
    """For each variable those that it shares a factor with, itself among them."""
    sizes: dict[int, int] = {}
    for number, (variables, costs) in alive.items():
        for variable, size in zip(variables, costs.shape, strict=True):
            of.setdefault(variable, set()).add(number)
            near.setdefault(variable, set()).update(variables)
            sizes[variable] = size

    def entries(variable: int) -> int:
        return math.prod([sizes[other] for other in near[variable]])

    made = {variable: entries(variable) for variable in of}
    queue = [(size, variable) for variable, size in made.items()]
    heapq.heapify(queue)
    total, decided = 0.0, list[Step]()
    while queue:
        size, variable = heapq.heappop(queue)
        if made.get(variable) != size:
            continue  # it has another size since
        del made[variable]
        if size > most:
            raise TooLargeError
        numbers = sorted(of.pop(variable))
        joined = {number: alive.pop(number) for number in numbers}
        scope = tuple(dict.fromkeys(v for variables, _ in joined.values() for v in variables if v != variable))
        table = _sum(list(joined.values()), (variable, *scope))
        decided.append(Step(variable, scope, joined, len(factors) + len(decided), table.argmin(axis=0)))
        left: Costs = table.min(axis=0)
        if not scope:
            total += float(left)
            continue
        number = decided[-1].number
        alive[number] = (scope, left)
        for other in scope:
            of[other].difference_update(numbers)
            of[other].add(number)
            near[other].discard(variable)
            near[other].update(scope)
            made[other] = entries(other)
            heapq.heappush(queue, (made[other], other))
    return decided, total


def _sum(factors: Sequence[Table], variables: tuple[int, ...]) -> Costs:
    """The sum as one array with an axis for each of the variables, each of which some factor has."""
    at = {variable: i for i, variable in enumerate(variables)}
    total: Costs | float = 0.0
    for own, costs in factors:
        shape = [1] * len(variables)
        for variable, size in zip(own, costs.shape, strict=True):
            shape[at[variable]] = size
        order = sorted(range(len(own)), key=lambda k: at[own[k]])
        total = total + costs.transpose(order).reshape(shape)
    return np.asarray(total)
