"""The part that is left of a factor graph as choices are ruled out, with the costs shifted between its factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.factors import FORBIDDEN, Costs, Factor, TableFactor

CALL_ENTRIES = 10_000
"""What asking a factor counts for, however small it is."""


@dataclass
class Remainder:
    """The part that is left of the graph, or of a component of it, as choices are ruled out.

    `theta[f][slot]` are the costs shifted into factor f at one of its variables; `values[v]` are the original
    numbers of the choices that variable v still has. `constant` has been paid by factors that are decided; of those
    that are left `origins` has the numbers in the graph.
    """

    factors: list[Factor]
    theta: list[list[Costs]]
    values: list[NDArray[np.int64]]
    origins: list[int]
    constant: float = 0.0
    neighbours: list[list[tuple[int, int]]] = field(init=False)

    def __post_init__(self) -> None:
        self.neighbours = [[] for _ in self.values]
        for f, factor in enumerate(self.factors):
            for slot, variable in enumerate(factor.variables):
                self.neighbours[variable].append((f, slot))

    @cached_property
    def ahead(self) -> tuple[list[list[tuple[int, int, int]]], list[list[tuple[int, int, int]]]]:
        """For each factor its slots whose variables are those of a factor before it, and of one after it, with that
        factor and its slot."""
        both: list[list[tuple[int, int, int]]] = []
        for f, factor in enumerate(self.factors):
            around = ((slot, *other) for slot, v in enumerate(factor.variables) for other in self.neighbours[v])
            both.append([each for each in around if each[1] != f])
        before = [[each for each in around if each[1] < f] for f, around in enumerate(both)]
        return before, [[each for each in around if each[1] > f] for f, around in enumerate(both)]

    def entries(self) -> int:
        """How many numbers the factors look at when all are asked once, and as many as their calls take the time of."""
        return sum(factor.entries + CALL_ENTRIES for factor in self.factors)

    def bound(self) -> float:
        least = (factor.least(theta) for factor, theta in zip(self.factors, self.theta, strict=True))
        return self.constant + sum(least)

    def sweep(self, *, forward: bool) -> float:
        """Pushes each factor's costs on to the factors after it (or before it); returns the bound, which does not fall.

        What a factor pushes on leaves its least cost as it is, and nothing comes to it after its turn. That a choice
        cannot be is told as such: beside a sum with so large a number in it bytes would be lost to rounding.
        """
        indices = range(len(self.factors))
        bound = self.constant
        for f in indices if forward else reversed(indices):
            factor, own, ahead = self.factors[f], self.theta[f], self.ahead[forward][f]
            if not ahead:
                bound += factor.least(own)
                continue
            marginals = factor.min_marginals(own, [slot for slot, _, _ in ahead])
            least = float(np.minimum.reduce(marginals[ahead[0][0]]))
            bound += least
            for slot, g, other in ahead:
                marginal, theirs = marginals[slot], self.theta[g]
                shift = marginal - least
                if len(ahead) > 1:
                    shift /= len(ahead)
                barred = marginal >= FORBIDDEN / 2
                if np.count_nonzero(barred):
                    shift[barred] = 0.0
                    theirs[other] = np.where(barred, FORBIDDEN, theirs[other])
                own[slot] = own[slot] - shift
                theirs[other] = theirs[other] + shift
        return bound

    def decode(self, *, forward: bool) -> tuple[int, ...]:
        """A choice (in original numbers) made factor by factor, each the best given those before.

        Backward after a forward sweep it is exact on trees: each factor then knows the costs of all before it.
        """
        choice = [-1 if len(values) > 1 else 0 for values in self.values]
        indices = range(len(self.factors))
        for f in indices if forward else reversed(indices):
            factor = self.factors[f]
            before = [choice[variable] for variable in factor.variables]
            if min(before) >= 0:
                continue
            fixed = [costs if c < 0 else _fixed(costs, c) for costs, c in zip(self.theta[f], before, strict=True)]
            for variable, chosen in zip(factor.variables, factor.best(fixed), strict=True):
                if choice[variable] < 0:
                    choice[variable] = chosen
        choice = [max(c, 0) for c in choice]
        return tuple(int(values[c]) for values, c in zip(self.values, choice, strict=True))

    def restricted(
        self, keep: Mapping[int, NDArray[np.bool_]], slack: float, *, settle: bool = True
    ) -> Remainder | None:
        """The problem without choices that are not kept (of a variable that `keep` lacks all are) or cost more than
        `slack` above the bound; None if empty.

        Factors that are decided are paid, and leave, unless they are not to be settled.
        """
        masks = dict(keep)
        rows_left: list[NDArray[np.bool_] | None] = []
        for factor, theta in zip(self.factors, self.theta, strict=True):
            rows: NDArray[np.bool_] | None = None
            if slack >= FORBIDDEN:  # nothing costs more
                rows_left.append(np.ones(len(factor.rows), np.bool_) if isinstance(factor, TableFactor) else None)
                continue
            # Of a single choice nothing can be ruled out; the first variable says what is least.
            open_ones = [slot for slot, costs in enumerate(theta) if not slot or len(costs) > 1]
            if isinstance(factor, TableFactor):
                total = factor.totals(theta)
                marginals = factor.marginals_of(total, [len(costs) for costs in theta], open_ones)
                most = float(np.minimum.reduce(marginals[0])) + slack
                rows = total <= most
            else:
                marginals = factor.min_marginals(theta, open_ones)
                most = float(np.minimum.reduce(marginals[0])) + slack
            for slot in open_ones:
                cheap, variable = marginals[slot] <= most, factor.variables[slot]
                if np.count_nonzero(cheap) < len(cheap):
                    masks[variable] = masks[variable] & cheap if variable in masks else cheap
            rows_left.append(rows)
        masks = {v: mask for v, mask in masks.items() if np.count_nonzero(mask) < len(mask)}
        if not _consistent(self.factors, [len(values) for values in self.values], masks, rows_left):
            return None
        number = {v: mask.cumsum() - 1 for v, mask in masks.items()}
        values = [v[masks[i]] if i in masks else v for i, v in enumerate(self.values)]
        factors: list[Factor] = []
        shifted: list[list[Costs]] = []
        origins: list[int] = []
        constant = self.constant
        for factor, theta, rows, origin in zip(self.factors, self.theta, rows_left, self.origins, strict=True):
            as_before = masks.keys().isdisjoint(factor.variables)
            kept = [*theta]
            if not as_before:
                kept = [c[masks[v]] if v in masks else c for c, v in zip(theta, factor.variables, strict=True)]
            if as_before and (rows is None or np.count_nonzero(rows) == len(rows)):
                smaller: Factor = factor
            elif isinstance(factor, TableFactor):
                left = factor.rows[rows]
                for k, v in enumerate(factor.variables):
                    if v in masks:
                        left[:, k] = number[v][left[:, k]]
                smaller = TableFactor(
                    factor.variables,
                    left,
                    factor.costs[rows],
                    factor.numbers[rows],
                )
            else:
                smaller = factor.restricted([masks.get(v) for v in factor.variables])
            if settle and all(len(costs) == 1 for costs in kept):
                constant += smaller.least(kept)
                if constant >= FORBIDDEN / 2:
                    return None
                continue
            factors.append(smaller)
            shifted.append(kept)
            origins.append(origin)
        return Remainder(factors, shifted, values, origins, constant)


def _consistent(
    factors: Sequence[Factor],
    sizes: Sequence[int],
    masks: dict[int, NDArray[np.bool_]],
    rows_left: list[NDArray[np.bool_] | None],
) -> bool:
    """Drops rows without support and choices without rows until nothing changes; False if a variable is left empty.
    `masks` has the variables that have lost a choice."""
    left = {v: int(np.count_nonzero(mask)) for v, mask in masks.items()}
    smaller = set(masks)
    first = True
    while smaller or first:
        before, smaller = smaller, set[int]()
        for f, factor in enumerate(factors):
            rows = rows_left[f]
            if not isinstance(factor, TableFactor) or rows is None:
                continue
            touched = not (before.isdisjoint(factor.variables) and smaller.isdisjoint(factor.variables))
            if first and not touched:
                supported = all(factor.supports(k, left.get(v, sizes[v])) for k, v in enumerate(factor.variables))
                touched = not (supported and np.count_nonzero(rows) == len(rows))
            if not touched:
                continue
            kept = rows.copy()
            for k, variable in enumerate(factor.variables):
                if variable in masks:
                    kept &= masks[variable][factor.rows[:, k]]
            rows_left[f] = kept
            for k, variable in enumerate(factor.variables):
                supported = np.zeros(sizes[variable], np.bool_)
                supported[factor.rows[kept, k]] = True
                if variable in masks:
                    supported &= masks[variable]
                n = int(np.count_nonzero(supported))
                if n < left.get(variable, sizes[variable]):
                    masks[variable], left[variable] = supported, n
                    smaller.add(variable)
                if not n:
                    return False
        first = False
    return all(left.values())


def _fixed(costs: Costs, choice: int) -> Costs:
    """The costs with all choices but one forbidden."""
    if len(costs) == 1:
        return costs
    made = np.full(len(costs), FORBIDDEN)
    made[choice] = costs[choice]
    return made
