"""Functions of JAX without their constraints on shardings, which say where values lie and not what they are."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

CONSTRAINTS = ("sharding_constraint", "reshard")


def unconstrained(function: Callable[..., Any], args: Sequence[Any]) -> Callable[..., list[Any]]:
    """The function of its flattened arguments, with flat results, as it can run where a mesh has no devices."""
    from shardwright.tracing.capture_jax import evaluate_inlined, jaxpr_of

    closed = _without(jaxpr_of(function, args)[0])
    return lambda *given: evaluate_inlined(closed, given, lambda _, value: value)


def _without(value: Any) -> Any:
    """A jaxpr without the constraints in it and in the bodies that it calls; anything else as it is."""
    from jax.extend.core import Literal

    if isinstance(value, list | tuple):
        has_bodies = any(hasattr(getattr(each, "jaxpr", each), "eqns") for each in value)
        return tuple(map(_without, value)) if has_bodies else value
    if hasattr(value, "jaxpr"):
        return value.replace(jaxpr=_without(value.jaxpr))
    if not hasattr(value, "eqns"):
        return value
    same: dict[Any, Any] = {}

    def source(atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else same.get(atom, atom)

    equations: list[Any] = []
    for equation in value.eqns:
        operands = [source(atom) for atom in equation.invars]
        if equation.primitive.name in CONSTRAINTS:
            same[equation.outvars[0]] = operands[0]
        else:
            params = {key: _without(param) for key, param in equation.params.items()}
            equations.append(equation.replace(invars=operands, params=params))
    return value.replace(eqns=equations, outvars=[source(atom) for atom in value.outvars])
