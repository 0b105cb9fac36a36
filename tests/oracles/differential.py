"""Random programs, compiled, against their unsharded meaning: in the simulator exactly, and under JAX in f32."""

from __future__ import annotations

import numpy as np
from programs import random_program

from shardwright.backends.random_inputs import random_inputs
from shardwright.backends.reference import evaluate
from shardwright.backends.validation import compare
from shardwright.ir.diagnostics import Source
from shardwright.ir.digit_orders import typed_values
from shardwright.ir.elaborate import elaborate
from shardwright.ir.parser import parse
from shardwright.ir.program import Program
from shardwright.ir.types import DType
from shardwright.passes.pipelines import explicit

_TOLERANCES = {DType.F32: 2e-4, DType.F16: 4e-3, DType.BF16: 3e-2}


def jax_tolerance(program: Program) -> float:
    """Relative to the largest element: some roundings of the coarsest format in it, in another order of summation."""
    formats = {use.type.dtype for func in program.funcs for use in typed_values(program, func)}
    return max(_TOLERANCES.get(dtype, 0.0) for dtype in formats)


def surface_program(seed: int, *, cramped: bool = False) -> Program:
    """The random program with this number."""
    return elaborate(parse(Source(f"random program {seed}", random_program(seed, cramped=cramped))))


def in_simulator(program: Program, seed: int) -> float:
    """The largest relative difference of the compiled program from the unsharded one, in float64."""
    compiled = explicit(program)
    return max(compare(program, compiled, func, seed) for func in program.funcs)


def under_jax(program: Program, seed: int) -> float:
    """The largest relative difference between the compiled program under JAX and the unsharded one, in its formats."""
    from shardwright.backends.jax.session import run_program

    compiled = explicit(program)
    worst = 0.0
    for func in program.funcs:
        inputs = random_inputs(program, func, seed)
        results, state = evaluate(program, func.name, inputs.args, inputs.weights, inputs.state, precision="declared")
        found, found_state = run_program(compiled, func.name, inputs.args, inputs.weights, inputs.state)
        pairs = [*zip(results, found, strict=True), *((state[name], found_state[name]) for name in state)]
        worst = max(worst, *(difference(a, b) for a, b in pairs)) if pairs else worst
    return worst


def difference(wanted: object, found: object) -> float:
    """The largest difference relative to the largest element; infinite where one is finite and the other not."""
    a, b = np.asarray(wanted, np.float64), np.asarray(found, np.float64)
    assert a.shape == b.shape
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    if not (np.isfinite(a) == np.isfinite(b)).all():
        return float("inf")
    scale = max(float(np.abs(a[np.isfinite(a)]).max(initial=0.0)), 1.0)
    return float(np.abs(np.where(same, 0.0, a - b)).max()) / scale
