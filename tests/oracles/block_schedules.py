"""Block schedules against the programs that they were made of: the same rows, batch by batch."""

from __future__ import annotations

import numpy as np

from shardwright.backends.number_formats import Array
from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.backends.simulation.simulator import simulate
from shardwright.ir.program import Program
from shardwright.ir.types import ValueType


def in_batches(array: object, kind: ValueType, batch: str, count: int) -> Array:
    """An array with its rows in batches: b = m |B| + b'."""
    given = np.asarray(array)
    if batch not in kind.names:
        return given
    at = kind.names.index(batch)
    return given.reshape(*given.shape[:at], count, given.shape[at] // count, *given.shape[at + 1 :])


def largest_difference(plain: Program, scheduled: Program, count: int, batch: str = "B") -> float:
    """Between what the functions of both programs give, results and state; the schedule runs on chips.

    What the schedule keeps hidden states in begins as not-a-number, so that none of it is read before it is set.
    """
    worst = 0.0
    for func in plain.funcs:
        inputs = random_inputs(plain, func.name, 0)
        wanted, state = evaluate(plain, func.name, inputs.args, inputs.weights, inputs.state)
        kinds = {value.name: value.type for value in (*plain.state, *func.params)}
        args = {name: in_batches(array, kinds[name], batch, count) for name, array in inputs.args.items()}
        begun = {name: in_batches(array, kinds[name], batch, count) for name, array in inputs.state.items()}
        for value in scheduled.state:
            begun.setdefault(value.name, np.full([dim.size for dim in value.type.dims], np.nan))
        found = simulate(scheduled, func.name, args, inputs.weights, begun)
        pairs = [(a, b.reshape(a.shape)) for a, b in zip(wanted, found.results, strict=True)]
        pairs += [(state[name], found.state[name].reshape(state[name].shape)) for name in state]
        for a, b in pairs:
            difference = np.abs(np.asarray(a, dtype=float) - np.asarray(b, dtype=float))
            assert not np.isnan(difference).any()
            worst = max(worst, float(difference.max(initial=0.0)))
    return worst
