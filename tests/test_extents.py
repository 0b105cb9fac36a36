"""Random programs in which extents differ from sizes: what `check` accepts compiles, and means one thing everywhere."""

import numpy as np
import pytest
import torch
from oracles.extents import Case, random_case

from shardwright.backends.jax.session import run_program
from shardwright.backends.reference import evaluate
from shardwright.backends.simulator import simulate
from shardwright.backends.torch.interpreter import Interpreter
from shardwright.backends.torch.tensors import Named, from_numpy
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.elaborate import elaborate
from shardwright.ir.parser import parse
from shardwright.ir.program import Program
from shardwright.ir.types import DType
from shardwright.ir.verifier import Level, verify
from shardwright.passes.pipelines import explicit

SIMULATED, PER_TEST = 200, 20
UNDER_JAX, PER_JAX_TEST = 30, 5

_ABOUT_EXTENTS = ("trips, the declared size", "the declared size, and")


def accepted(case: Case) -> Program | None:
    """The program, or None where the verifier refuses it for a loop or a `size[D]`, the only faults there are."""
    try:
        program = elaborate(parse(Source("random", case.text)))
        verify(program, Level.SURFACE)
    except DiagnosticError as error:
        for diagnostic in error.diagnostics:
            assert any(words in diagnostic.message for words in _ABOUT_EXTENTS), f"{diagnostic}\n{case.text}"
        return None
    return program


@pytest.mark.parametrize("first", range(0, SIMULATED, PER_TEST))
def test_the_reference_and_the_chips_compute_what_numpy_does(first: int) -> None:
    taken = 0
    for seed in range(first, first + PER_TEST):
        case = random_case(seed)
        program = accepted(case)
        if program is None:
            continue
        taken += 1
        for results in (
            evaluate(program, "f", case.args)[0],
            simulate(explicit(program), "f", case.args).results,
        ):
            np.testing.assert_allclose(np.asarray(results, np.float64), case.results, 1e-9, 1e-9, err_msg=case.text)
    assert taken >= PER_TEST // 3


@pytest.mark.parametrize("first", range(0, UNDER_JAX, PER_JAX_TEST))
def test_jax_and_torch_compute_what_numpy_does(first: int) -> None:
    for seed in range(first, first + PER_JAX_TEST):
        case = random_case(seed)
        program = accepted(case)
        if program is None:
            continue
        args = {name: array.astype(np.float32) for name, array in case.args.items()}
        under_jax, _ = run_program(explicit(program), "f", args)
        func = program.func("f")
        named = {v.name: Named(from_numpy(args[v.name]), v.shape.names, DType.F32) for v in func.params}
        under_torch = [made.tensor for made in Interpreter(program, func, torch.device("cpu")).run(named, {})]
        for results in (under_jax, under_torch):
            np.testing.assert_allclose(np.asarray(results), case.results, 1e-3, 1e-3, err_msg=case.text)
