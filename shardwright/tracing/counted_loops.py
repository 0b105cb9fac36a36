"""Loops that run until a condition holds, where numbers alone decide when: how many trips they make."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardwright.tracing.graph import Constant, Operand

MOST_TRIPS = 1_000_000


def trips(params: Mapping[str, Any], operands: Sequence[Operand]) -> int | None:
    """The trips of a `while` with these parameters and operands; None where they depend on arguments of the function,
    or are more than `MOST_TRIPS`.

    Only what the condition reads is computed, and what of the body that depends on.
    """
    import jax
    import jax.numpy as jnp
    from jax.extend.core import jaxpr_as_fun

    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body, carried = operands[:n_cond], operands[n_cond : n_cond + n_body], operands[n_cond + n_body :]
    condition, read = _part(params["cond_jaxpr"], [0])
    counted: list[int] = []
    while True:
        wider = sorted({i - n_cond for i in read if i >= n_cond}.union(counted))
        body, read_by_body = _part(params["body_jaxpr"], wider)
        wider = sorted({i - n_body for i in read_by_body if i >= n_body}.union(wider))
        if wider == counted:
            break
        counted = wider
    numbers = [*(of_cond[i] for i in read if i < n_cond), *(of_body[i] for i in read_by_body if i < n_body),
               *(carried[i] for i in counted)]  # fmt: skip
    if not all(isinstance(each, Constant) for each in numbers):
        return None

    def value(operand: Operand) -> Any:
        assert isinstance(operand, Constant)
        return jnp.asarray(np.full(operand.shape, operand.value, operand.dtype))

    def goes_on(state: Any) -> Any:
        given = [value(of_cond[i]) if i < n_cond else state[1][counted.index(i - n_cond)] for i in read]
        (more,) = jaxpr_as_fun(condition)(*given)
        return more & (state[0] <= MOST_TRIPS)

    def trip(state: Any) -> Any:
        given = [value(of_body[i]) if i < n_body else state[1][counted.index(i - n_body)] for i in read_by_body]
        return state[0] + 1, jaxpr_as_fun(body)(*given)

    made, _ = jax.lax.while_loop(goes_on, trip, (0, [value(carried[i]) for i in counted]))
    return None if int(made) > MOST_TRIPS else int(made)


def _part(closed: Any, results: Sequence[int]) -> tuple[Any, list[int]]:
    """The part of a jaxpr that gives these results alone, and the numbers of the parameters that it reads."""
    from jax.extend.core import ClosedJaxpr, Literal

    jaxpr = closed.jaxpr
    wanted = {jaxpr.outvars[i] for i in results if not isinstance(jaxpr.outvars[i], Literal)}
    equations: list[Any] = []
    for equation in reversed(jaxpr.eqns):
        if not wanted.isdisjoint(equation.outvars):
            equations.insert(0, equation)
            wanted.update(atom for atom in equation.invars if not isinstance(atom, Literal))
    read = [i for i, variable in enumerate(jaxpr.invars) if variable in wanted]
    invars, outvars = [jaxpr.invars[i] for i in read], [jaxpr.outvars[i] for i in results]
    unnamed = jaxpr.debug_info and jaxpr.debug_info.with_unknown_names()
    part = jaxpr.replace(eqns=equations, invars=invars, outvars=outvars, debug_info=unnamed)
    return ClosedJaxpr(part, closed.consts), read
