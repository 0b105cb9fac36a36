"""Prices for memory: the Lagrangian dual of the usage limit, and the feasible choices found on the way.

With a price for the memory of each time, memory is a cost of the nodes and the rest is a problem on the graph
alone, which `elimination` solves. The best prices give the largest lower bound; they are found by cutting planes
within a box that grows and shrinks with success (boxstep, Marsten, Hogan and Blankenship 1975).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from shardwright.cost.integer_program.elimination import Order, Upward, eliminate
from shardwright.cost.integer_program.highs import linear_minimum
from shardwright.cost.integer_program.problem import Choice, Floats, Problem

ROUNDS = 100
NEAR = 8
_PRECISION = 1e-7


@dataclass
class Dual:
    """The outcome of prices: the best bound with its prices, and every choice seen."""

    bound: float = -np.inf
    prices: Floats = field(default_factory=lambda: np.zeros(0))
    upward: Upward | None = None
    feasible: list[Choice] = field(default_factory=list[Choice])
    near: list[Choice] = field(default_factory=list[Choice])
    """The last choices that do not fit, the nearest to the best prices last."""


def best_prices(
    problem: Problem,
    order: Order,
    good_enough: Callable[[float], bool],
    out_of_time: Callable[[], bool],
    start: Floats | None = None,
) -> Dual:
    """The prices with the largest bound that was found in time; stops early where a bound is good enough.

    `start` are prices to begin with. A bound of infinity says that nothing fits: prices were found at which every
    choice costs more than any can.
    """
    memory = problem.memory
    n = len(memory.times)
    dual = Dual(prices=np.zeros(n))
    cuts: dict[bytes, tuple[float, Floats]] = {}
    seen: set[Choice] = set()
    most = problem.dearest
    center, reached, step, promised = np.zeros(n), -np.inf, 0.0, np.inf
    misses = 0
    trial = center if start is None else start
    for round_number in range(ROUNDS):
        upward = eliminate(order, problem.priced(trial), problem.edges)
        bound = upward.least - (float(trial.sum()) * memory.limit if n else 0.0)
        if bound > most:
            dual.bound = np.inf
            return dual
        choice = upward.choice()
        excess = memory.usage(problem, choice) - memory.limit
        if choice not in seen:
            seen.add(choice)
            if n == 0 or excess.max() <= 0:
                dual.feasible.append(choice)
            else:
                dual.near = [*dual.near[-(NEAR - 1) :], choice]
        if bound > dual.bound:
            dual.bound, dual.prices, dual.upward = bound, trial, upward
        if n == 0 or good_enough(dual.bound) or out_of_time():
            break
        # From a lower bound the choice may cost more than the bound says: the cut then is the bound's own tangent.
        cut = bound - float(trial @ excess), excess
        cuts[excess.tobytes()] = min(cut, cuts.get(excess.tobytes(), cut), key=lambda c: c[0])
        violated = float(np.maximum(excess, 0).sum())
        if round_number == 0:
            if violated == 0 and not trial.any():
                break
            center, reached = trial, bound
            step = 0.5 * float(trial.max()) if trial.any() else max(abs(bound), 1.0) / violated
        elif bound - reached >= 0.1 * (promised - reached):
            if (np.abs(trial - center) > 0.999 * step).any():
                step *= 2
            center, reached, misses = trial, bound, 0
        else:  # the cut of this trial may be all that was missing; only a bad surprise makes the box smaller
            surprise = (reached - bound) / max(promised - reached, 1e-300)
            misses += 1
            if surprise > 3 or (misses >= 3 and surprise > 1):
                step /= min(4.0, surprise)
                misses = 0
        made = _master(list(cuts.values()), center, step)
        if made is None:
            break
        promised, trial = made
        while promised - reached <= _PRECISION * max(1.0, abs(reached)):
            # Nothing better in the box: nothing at all, unless the box is too small to tell.
            if not (np.abs(trial - center) > 0.999 * step).any() or step > float(center.max()) > 0:
                return dual
            step *= 8
            made = _master(list(cuts.values()), center, step)
            if made is None:
                return dual
            promised, trial = made
    return dual


def _master(cuts: list[tuple[float, Floats]], center: Floats, step: float) -> tuple[float, Floats] | None:
    """The largest bound that the cuts allow within the box, and the prices that reach it; None where GLOP gives up."""
    slopes = np.array([slope for _, slope in cuts])
    # Times that some choice exceeded, or that have a price: others stay free.
    wanted = np.flatnonzero((slopes > 0).any(axis=0) | (center > 0))
    n, n_cuts = len(wanted), len(cuts)
    # In units of the box, from its center, and of the dearest memory in it: maximise the height, which is at most
    # constant + slope @ prices for each cut.
    matrix = step * slopes[:, wanted]
    unit = max(float(np.abs(matrix).max(initial=0.0)), 1e-300)
    constants = np.array([constant for constant, _ in cuts]) + slopes @ center
    above = float(constants.min())
    found = linear_minimum(
        np.append(np.zeros(n), -1.0),
        np.append(np.maximum(-1.0, -center[wanted] / step), -np.inf),
        np.append(np.ones(n), np.inf),
        np.concatenate([-matrix / unit, np.ones((n_cuts, 1))], axis=1),
        np.full(n_cuts, -np.inf),
        (constants - above) / unit,
    )
    if found is None:
        return None
    trial = np.zeros_like(center)
    trial[wanted] = np.maximum(0.0, center[wanted] + step * found[:-1])
    return above + unit * float(found[-1]), trial
