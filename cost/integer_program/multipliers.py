"""Prices for memory: the Lagrangian dual of the usage limit, and the feasible choices found on the way.

With a price for the memory of each time, memory is a cost of the nodes and the rest is a problem on the graph
alone, which `elimination` solves. The best prices give the largest lower bound; they are found by cutting planes
within a box that grows and shrinks with success (boxstep, Marsten, Hogan and Blankenship 1975).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardwright.cost.integer_program.elimination import Order, Upward, eliminate
from shardwright.cost.integer_program.problem import Choice, Floats, Problem

ROUNDS = 60
NEAR = 8
_PRECISION = 1e-9


@dataclass
class Dual:
    """What the prices gave: the best bound with its prices, and every choice seen."""

    bound: float = -np.inf
    prices: Floats = field(default_factory=lambda: np.zeros(0))
    upward: Upward | None = None
    feasible: list[Choice] = field(default_factory=list[Choice])
    near: list[Choice] = field(default_factory=list[Choice])
    """The last choices that do not fit, the nearest to the best prices last."""


def priced(problem: Problem, prices: Floats) -> list[Floats]:
    """The costs of the nodes with the memory that they take at these prices."""
    if not len(prices):
        return list(problem.costs)
    per_node: list[float] = problem.memory.per_node(prices).tolist()
    return [
        costs + price * usages if price else costs
        for costs, usages, price in zip(problem.costs, problem.usages, per_node, strict=True)
    ]


def best_prices(
    problem: Problem, order: Order, good_enough: Callable[[float], bool], out_of_time: Callable[[], bool]
) -> Dual:
    """The prices with the largest bound that was found in time; stops early where a bound is good enough.

    A bound of infinity says that nothing fits: prices were found at which every choice costs more than any can.
    """
    memory = problem.memory
    n = len(memory.times)
    dual = Dual(prices=np.zeros(n))
    cuts: dict[bytes, tuple[float, Floats]] = {}
    seen: set[Choice] = set()
    most = problem.dearest
    center, step = np.zeros(n), 0.0
    trial = center
    for round_number in range(ROUNDS):
        upward = eliminate(order, priced(problem, trial), problem.edges)
        bound = upward.least - float(trial @ np.full(n, memory.limit))
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
        improved = bound > dual.bound
        if improved:
            dual.bound, dual.prices, dual.upward = bound, trial, upward
        if n == 0 or good_enough(dual.bound) or out_of_time():
            break
        # From a lower bound the choice may cost more than the bound says: the cut then is the bound's own tangent.
        cut = bound - float(trial @ excess), excess
        cuts[excess.tobytes()] = min(cut, cuts.get(excess.tobytes(), cut), key=lambda c: c[0])
        violated = float(np.maximum(excess, 0).sum())
        if round_number == 0:
            if violated == 0:
                break
            step = max(abs(bound), 1.0) / violated
        elif improved:
            center, step = trial, step * 2
        else:
            step /= 2
        made = _master(list(cuts.values()), center, step)
        if made is None:
            break
        promised, trial = made
        if promised - dual.bound <= _PRECISION * max(1.0, abs(dual.bound)):
            if step > 1e12 or not bool(np.any(trial >= center + step * (1 - 1e-9))):
                break
            step *= 8
    return dual


def _master(cuts: list[tuple[float, Floats]], center: Floats, step: float) -> tuple[float, Floats] | None:
    """The largest bound that the cuts allow within the box, and the prices that reach it; None where GLOP gives up."""
    from ortools.math_opt.python import mathopt

    model: Any = mathopt.Model()
    touched = np.flatnonzero(np.any([slope != 0 for _, slope in cuts], axis=0) & _wanted(cuts, center))
    prices = {
        int(t): model.add_variable(lb=max(0.0, float(center[t]) - step), ub=float(center[t]) + step) for t in touched
    }
    height = model.add_variable(lb=-np.inf, ub=np.inf)
    for constant, slope in cuts:
        model.add_linear_constraint(height <= constant + sum(float(slope[t]) * prices[int(t)] for t in touched))
    model.maximize(height)
    result = mathopt.solve(model, mathopt.SolverType.GLOP)
    if not result.has_primal_feasible_solution():
        return None
    found = result.variable_values()
    trial = np.zeros_like(center)
    for t, variable in prices.items():
        trial[t] = max(0.0, found[variable])
    return float(found[height]), trial


def _wanted(cuts: list[tuple[float, Floats]], center: Floats) -> Any:
    """Times that some choice exceeded, or that have a price: others stay free."""
    return np.any([slope > 0 for _, slope in cuts], axis=0) | (center > 0)
