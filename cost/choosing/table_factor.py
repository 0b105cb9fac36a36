"""The table of an operation's strategies, as a factor of a layout problem."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.float64]

FORBIDDEN = 1e30
"""The cost of what cannot be. It never enters the shifted costs, only minima over them."""

EVERY = range(1 << 30)
"""Every variable of a factor."""


@dataclass
class TableFactor:
    """Rows of choices, one column per variable, with the cost of each row."""

    variables: tuple[int, ...]
    rows: NDArray[np.int64]
    costs: Costs
    numbers: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """The numbers of the rows in the table that they are left of."""

    def __post_init__(self) -> None:
        if not len(self.numbers):
            self.numbers = np.arange(len(self.rows), dtype=np.int64)

    @cached_property
    def _sorted(self) -> list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
        """For each variable the rows in the order of its choices, the choices that occur, and where each begins."""
        made: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        for column in self.rows.T:
            order = np.argsort(column, kind="stable")
            there = column[order]
            first = np.ones(len(there), np.bool_)
            np.not_equal(there[1:], there[:-1], out=first[1:])
            (starts,) = first.nonzero()
            made.append((order, there[starts], starts))
        return made

    @cached_property
    def _columns(self) -> list[NDArray[np.int64]]:
        """The choices of each variable, by row."""
        return [*np.ascontiguousarray(self.rows.T)]

    @property
    def entries(self) -> int:
        """How many numbers are looked at when the factor is asked once."""
        return self.rows.size

    def over(self, variables: Sequence[int]) -> TableFactor:
        """The same factor of variables with these numbers."""
        made = copy(self)
        made.variables = tuple(variables)
        return made

    def restricted(self, masks: Sequence[NDArray[np.bool_]]) -> TableFactor:
        """The factor with fewer choices, numbered anew."""
        kept = np.all([mask[column] for mask, column in zip(masks, self.rows.T, strict=True)], axis=0)
        numbers = [np.cumsum(mask) - 1 for mask in masks]
        rows = [number[column[kept]] for number, column in zip(numbers, self.rows.T, strict=True)]
        return TableFactor(self.variables, np.stack(rows, axis=1), self.costs[kept])

    def priced(self, costs: Costs) -> TableFactor:
        """The same rows at other costs."""
        made = copy(self)
        made.costs = costs
        return made

    def totals(self, theta: Sequence[Costs]) -> Costs:
        total = self.costs.copy()
        for column, costs in zip(self._columns, theta, strict=True):
            total += costs[column]
        return total

    def least(self, theta: Sequence[Costs]) -> float:
        """The least cost of the factor."""
        return float(self.totals(theta).min())

    def best(self, theta: Sequence[Costs]) -> list[int]:
        """A choice for each variable at the least cost of the factor; the earliest row of several."""
        return [int(chosen) for chosen in self.rows[self.totals(theta).argmin()]]

    def min_marginals(self, theta: Sequence[Costs], slots: Container[int] = EVERY) -> list[Costs]:
        """For each variable and each of its choices, the least cost of the factor with that choice.

        Of variables that are not in `slots` it is not worked out, and their costs mean nothing.
        """
        return self.marginals_of(self.totals(theta), [len(costs) for costs in theta], slots)

    def marginals_of(self, total: Costs, sizes: Sequence[int], slots: Container[int] = EVERY) -> list[Costs]:
        """The min-marginals of variables with so many choices, of the costs of the rows."""
        made: list[Costs] = []
        for slot, ((order, values, starts), size) in enumerate(zip(self._sorted, sizes, strict=True)):
            if slot not in slots:
                made.append(total)
                continue
            if len(values) == size:
                made.append(np.minimum.reduceat(total[order], starts))
                continue
            marginal = np.full(size, FORBIDDEN)
            if len(values):
                marginal[values] = np.minimum.reduceat(total[order], starts)
            made.append(marginal)
        return made

    def supports(self, slot: int, size: int) -> bool:
        """Tells whether there is a row for each of so many choices of a variable."""
        return len(self._sorted[slot][1]) == size

    def dense_entries(self, sizes: Sequence[int]) -> int:
        """How many numbers `dense` looks at."""
        return math.prod(sizes)

    def dense(self, sizes: Sequence[int]) -> Costs:
        """The cost of every combination of choices, of which each variable has so many."""
        made = np.full(math.prod(sizes), FORBIDDEN)
        at = np.ravel_multi_index(tuple(self.rows.T), tuple(sizes))
        np.minimum.at(made, at, self.costs)
        return made.reshape(tuple(sizes))

    def evaluate(self, choice: Sequence[int]) -> float:
        """The cost of one choice for each variable."""
        fits = np.all(self.rows == np.asarray(choice)[None, :], axis=1)
        return float(self.costs[fits].min()) if fits.any() else FORBIDDEN
