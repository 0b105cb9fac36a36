"""Our modules beside XLA's partitioner: what both compute, what both move, and that the programs compared are right."""

from __future__ import annotations

import numpy as np
import pytest
from global_arrays import global_function
from opening import opened
from oracles.example_programs import NAMES, in_format, load, small
from versus_xla import measure

from shardwright.backends.simulation.random_inputs import random_inputs
from shardwright.backends.simulation.reference import evaluate
from shardwright.ir.program import Loop, Marking
from shardwright.ir.types import OpenType

XLA = dict(zip(NAMES[:5], [43008, 34816, 26624, 47104, 47104], strict=True))
"""Bytes that XLA's partitioner moves for the feedforward layers, counted by hand."""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NAMES)
def test_global_functions_compute_what_the_program_means(name: str) -> None:
    program = in_format(load(name, small(name)), "f32")
    for func in program.funcs:
        inputs = random_inputs(program, func, seed=0)
        wanted, wanted_state = evaluate(program, func.name, inputs.args, inputs.weights, inputs.state)
        args = [inputs.args[value.name] for value in func.params]
        found, state = global_function(program, func.name)(inputs.weights, inputs.state, *args)
        for ours, theirs in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4 * float(np.abs(theirs).max()))
        for value in program.state:
            np.testing.assert_allclose(state[value.name], wanted_state[value.name], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_opened_programs_are_typed_at_their_edges_only(name: str) -> None:
    program = load(name, small(name))
    free = opened(program)
    for before, after in zip(program.funcs, free.funcs, strict=True):
        assert (before.params, before.results) == (after.params, after.results)
        for statement, _ in after.walk():
            values = getattr(statement, "results", ())
            if isinstance(statement, Loop):
                values = (*values, *(carry.value for carry in statement.carries))
            assert all(isinstance(v.type, OpenType) and v.marking is Marking.UNWRITTEN for v in values)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", NAMES)
def test_compiled_modules(name: str) -> None:
    """Our module moves what was planned, no more; and with the interior open never more than XLA."""
    for row in measure(name, steps=0):
        assert row.ours_bytes == row.ours_predicted_bytes
        assert row.open_bytes <= row.ours_bytes
        assert row.open_bytes <= row.xla_bytes
        assert row.open_bytes <= row.xla_reduce_scatter_bytes <= row.xla_bytes
        if name in XLA:
            assert row.xla_bytes == XLA[name]
