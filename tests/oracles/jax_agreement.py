"""Hand-written explicit programs run under JAX on eight virtual devices and compared with their unsharded meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from oracles.extremes import whole_range

from shardwright.backends.jax.session import Session
from shardwright.backends.number_formats import numpy_dtype
from shardwright.backends.simulation.reference import evaluate
from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.program import Program
from shardwright.ir.text.parser import parse
from shardwright.ir.types import DType, ValueType
from shardwright.ir.verification.completion import complete
from shardwright.ir.verification.verifier import Level, verify


def explicit(text: str) -> Program:
    """The verified explicit program that a text is."""
    program = complete(elaborate(parse(Source("test.shard", text))))
    verify(program, Level.EXPLICIT)
    return program


def random_array(kind: ValueType, rng: np.random.Generator, high: int | None = None) -> np.ndarray:
    """Random numbers of a type: floats around 0, bools and integers over the whole range, or from 0 up to `high`."""
    shape = tuple(dim.size for dim in kind.dims)
    if kind.dtype is DType.BOOL or (kind.dtype.is_integer and high is None):
        return whole_range(kind.dtype, shape, rng)
    if kind.dtype.is_integer:
        return rng.integers(0, high, shape).astype(numpy_dtype(kind.dtype))
    return (2 * rng.standard_normal(shape)).astype(np.float32).astype(numpy_dtype(kind.dtype))


def tolerance(dtype: DType) -> float:
    return {DType.F32: 2e-5, DType.BF16: 2e-2, DType.F16: 2e-3}.get(dtype, 0.0)


def agree(found: np.ndarray, wanted: np.ndarray, dtype: DType, what: str) -> None:
    """Equal for integers, and within a few roundings of the format for floats, relative to the largest number."""
    assert found.dtype == numpy_dtype(dtype), what
    assert found.shape == wanted.shape, what
    if not dtype.is_float:
        np.testing.assert_array_equal(found.astype(np.int64), wanted.astype(np.int64), what)
        return
    finite = np.isfinite(wanted)
    scale = max(1.0, float(np.abs(wanted[finite]).max(initial=0.0)))
    np.testing.assert_allclose(
        found.astype(np.float64), wanted.astype(np.float64), rtol=0, atol=tolerance(dtype) * scale, err_msg=what
    )


def check(text: str, func: str = "f", *, high: int | None = None, seed: int = 0, **given: Any) -> Program:
    """Runs a function on random arrays (or those given) and compares results and state with the reference."""
    return check_each(text, [given], func, high=high, seed=seed)


def check_each(
    text: str, cases: Sequence[Mapping[str, Any]], func: str = "f", *, high: int | None = None, seed: int = 0
) -> Program:
    """The same with each of these given, one after the other, of a function that is compiled once."""
    program = explicit(text)
    session: Session | None = None
    for given in cases:
        rng = np.random.default_rng(seed)
        session = _check(program, func, rng, high, given, session)
    return program


def _check(
    program: Program,
    func: str,
    rng: np.random.Generator,
    high: int | None,
    given: Mapping[str, Any],
    session: Session | None,
) -> Session:
    made = {
        value.name: np.asarray(given[value.name]) if value.name in given else random_array(value.type, rng, high)
        for value in (*program.func(func).params, *program.weights, *program.state)
    }
    args = {value.name: made[value.name] for value in program.func(func).params}
    weights = {value.name: made[value.name] for value in program.weights}
    state = {value.name: made[value.name] for value in program.state}
    if session is None:
        session = Session(program, weights, state)
    else:
        session.reset(state)
    results, new = session.call(func, args), session.state
    wanted, wanted_state = evaluate(program, func, args, weights, state, "declared")
    for found, expected, kind in zip(results, wanted, program.func(func).results, strict=True):
        agree(found, expected, kind.dtype, f"result: {kind}")
    assert set(new) == set(wanted_state)
    for value in program.state:
        agree(new[value.name], wanted_state[value.name], value.type.dtype, f"state {value.name}")
    return session
