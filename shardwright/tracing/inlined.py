"""Calls of a jaxpr whose bodies stand in their place."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_BODY = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat2": "jaxpr",
    "checkpoint": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr", "custom_lin": "call_jaxpr",
}  # fmt: skip
"""The parameter that has the body, of calls that compute what their body does."""


def body_of(equation: Any, operands: Sequence[Any]) -> tuple[Any, Sequence[Any]] | None:
    """The jaxpr that a call computes and what it computes it of, None where the equation is no such call.

    A `custom_linear_solve` is how it solves: what it says of gradients has been used when a jaxpr is made.
    """
    name, params = equation.primitive.name, equation.params
    if name == "custom_linear_solve":
        lengths = params["const_lengths"]
        first = lengths.matvec + lengths.vecmat
        return params["jaxprs"].solve, (*operands[first : first + lengths.solve], *operands[sum(lengths) :])
    return (params[_BODY[name]], operands) if name in _BODY else None


def unplaced(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a primitive without where its result lies, which says nothing of a number."""
    return {name: None if name in ("sharding", "out_sharding") else value for name, value in params.items()}
