"""The least sum of tables of costs over variables that they share, by eliminating one variable after the other.

Bertele and Brioschi 1972 ("nonserial dynamic programming"), Dechter 1999 ("bucket elimination"). Exact; the largest
table made on the way grows with the product of the choices that must be seen together, so it is for problems that are
nearly trees.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]


class TooLargeError(Exception):
    """A table would have more entries than are allowed."""


def eliminate(factors: Sequence[tuple[tuple[int, ...], Costs]], most: int = 1 << 23) -> tuple[dict[int, int], float]:
    """A choice for every variable at the least total of the factors, and this total.

    A factor is its variables, each once, with an array that has an axis for each of them. The variable whose
    elimination makes the smallest table goes first, the least number of several. Ties go to the earlier choice.

    Raises `TooLargeError` where a table would have more than `most` entries.
    """
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
    total, decided = 0.0, list[tuple[int, tuple[int, ...], NDArray[np.intp]]]()
    while queue:
        size, variable = heapq.heappop(queue)
        if made.get(variable) != size:
            continue  # it has another size since
        del made[variable]
        if size > most:
            raise TooLargeError
        numbers = sorted(of.pop(variable))
        joined = [alive.pop(number) for number in numbers]
        scope = tuple(dict.fromkeys(v for variables, _ in joined for v in variables if v != variable))
        table = _sum(joined, (variable, *scope))
        chosen = table.argmin(axis=0)
        decided.append((variable, scope, chosen))
        left: Costs = table.min(axis=0)
        if not scope:
            total += float(left)
            continue
        number = len(factors) + len(decided)
        alive[number] = (scope, left)
        for other in scope:
            of[other].difference_update(numbers)
            of[other].add(number)
            near[other].discard(variable)
            near[other].update(scope)
            made[other] = entries(other)
            heapq.heappush(queue, (made[other], other))
    choice: dict[int, int] = {}
    for variable, scope, chosen in reversed(decided):
        choice[variable] = int(chosen[tuple(choice[other] for other in scope)])
    return choice, total


def _sum(factors: Sequence[tuple[tuple[int, ...], Costs]], variables: tuple[int, ...]) -> Costs:
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
