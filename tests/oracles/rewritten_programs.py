"""A program before and after a pass that changes its weights: unsharded, and compiled in the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt

from shardwright.backends.number_formats import Precision
from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import simulate
from shardwright.ir.program import Program
from shardwright.ir.text.format import format_module
from shardwright.ir.text.unparse import unparse
from shardwright.passes.pipelines import explicit

Arrays = Mapping[str, npt.ArrayLike]


class Change(Protocol):
    """From the arrays of the program before (the weights, or a function's arguments) to those of the one after."""

    def __call__(self, arrays: Arrays, func: str | None = None) -> Mapping[str, npt.ArrayLike]: ...


def printed(program: Program) -> str:
    return format_module(unparse(program))


def largest_error(
    before: Program,
    after: Program,
    change: Change,
    seed: int = 0,
    tolerance: float = 1e-12,
    compiled: Program | None = None,
    precision: Precision = "exact",
) -> float:
    """The largest error of `after` in this precision, relative to the largest element of each result, over all
    functions and states.

    Asserts that the program compiled for the mesh, `compiled` where a test has it, gives what the unsharded one gives,
    up to `tolerance`.
    """
    compiled = compiled or explicit(after)
    worst = 0.0
    for func in before.funcs:
        given = random_inputs(before, func, seed)
        args, weights = change(given.args, func.name), change(given.weights)
        wanted, kept = evaluate(before, func.name, given.args, given.weights, given.state)
        found, found_state = evaluate(after, func.name, args, weights, given.state)
        on_chips = simulate(compiled, func.name, args, weights, given.state)
        rounded, rounded_state = found, found_state
        if precision == "declared":
            rounded, rounded_state = evaluate(after, func.name, args, weights, given.state, precision)
        pairs = [*zip(wanted, found, on_chips.results, rounded, strict=True)]
        pairs += [(kept[name], found_state[name], on_chips.state[name], rounded_state[name]) for name in kept]
        for expected, unsharded, sharded, made in pairs:
            scale = max(1e-30, float(np.abs(expected).max()))
            assert float(np.abs(unsharded - sharded).max()) <= tolerance * scale
            worst = max(worst, float(np.abs(made - expected).max()) / scale)
    return worst
