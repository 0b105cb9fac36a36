"""Placements of a whole program: every value put where a function says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from shardwright.ir.program import Carry, Let, Loop, Marking, Program, Statement, Value
from shardwright.ir.types import ON_DEVICE, AnyPartial, Placement, TensorType, ValueType
from shardwright.ir.walk import program_values

Placing = Callable[[str, ValueType], Placement]
"""From a name (of a carried value with its function's and a dot before it) and its type to its placement."""


def with_placements(program: Program, place: Placing) -> Program:
    """The program with every value where `place` has it; a type that was open is marked as found."""
    funcs = tuple(
        replace(
            func,
            params=tuple(_value(value, place) for value in func.params),
            body=tuple(_statement(statement, func.name, place) for statement in func.body),
            results=tuple(_lying(kind, place(func.name, kind)) for kind in func.results),
        )
        for func in program.funcs
    )
    weights = tuple(_value(value, place) for value in program.weights)
    state = tuple(_value(value, place) for value in program.state)
    return replace(program, weights=weights, state=state, funcs=funcs)


def on_device(program: Program) -> Program:
    """The program with everything on the device."""
    return with_placements(program, lambda _name, _kind: ON_DEVICE)


def off_device(program: Program) -> bool:
    """Tells whether a value lies elsewhere than on the device, or may."""
    kinds = [value.type for _, value in program_values(program)]
    return any(kind.placement != ON_DEVICE for kind in (*kinds, *(kind for f in program.funcs for kind in f.results)))


def _statement(statement: Statement, func: str, place: Placing) -> Statement:
    match statement:
        case Let():
            return replace(statement, results=tuple(_found(value, place) for value in statement.results))
        case Loop():
            carries = tuple(Carry(_found(c.value, place, f"{func}."), c.initial) for c in statement.carries)
            results = tuple(
                replace(value, type=_lying(value.type, carry.value.type.placement or ON_DEVICE))
                for value, carry in zip(statement.results, carries, strict=True)
            )
            body = tuple(_statement(inner, func, place) for inner in statement.body)
            return replace(statement, carries=carries, results=results, body=body)
        case _:
            return statement


def _value(value: Value, place: Placing, prefix: str = "") -> Value:
    return replace(value, type=_lying(value.type, place(prefix + value.name, value.type)))


def _found(value: Value, place: Placing, prefix: str = "") -> Value:
    open_before = value.type.placement is None and value.marking is Marking.DEMANDED
    made = _value(value, place, prefix)
    return replace(made, marking=Marking.FOUND) if open_before else made


def _lying(kind: ValueType, placement: Placement) -> ValueType:
    """The type there; a demand where its placement was the only hole."""
    made = replace(kind, placement=placement)
    if isinstance(made, TensorType):
        return made
    splits = [axes for axes in made.splits if axes is not None]
    if made.open or len(splits) < len(made.splits) or isinstance(made.partial, AnyPartial):
        return made
    return TensorType(made.dtype, made.dims, tuple(splits), made.partial, placement, made.in_flight)
