"""Completion: the types that nobody wrote in an explicit program, each of which follows from its operands."""

from __future__ import annotations

from dataclasses import replace

from shardwright.ir.diagnostics import placed
from shardwright.ir.operation import Number
from shardwright.ir.program import Let, Loop, Program, Scope, Statement, Value
from shardwright.ir.strategies import result_types
from shardwright.ir.types import OpenType, TensorType


def complete(program: Program) -> Program:
    """The program with every type filled in that the operands determine.

    Raises a `DiagnosticError` where an operation does not determine its result or its operands do not fit.

        s = sum[E](x)          # x: f32 BE_x   -->   s: f32 B(partialsum-x) = sum[E](x)
    """
    funcs = tuple(replace(func, body=_block(program, func.body, Scope.of(program, func))) for func in program.funcs)
    return replace(program, funcs=funcs)


def _block(program: Program, body: tuple[Statement, ...], scope: Scope) -> tuple[Statement, ...]:
    made: list[Statement] = []
    for statement in body:
        match statement:
            case Let():
                done: Statement = _let(program, statement, scope)
            case Loop():
                done = _loop(program, statement, scope)
            case _:
                done = statement
        scope.define(*done.results)
        made.append(done)
    return tuple(made)


def _let(program: Program, statement: Let, scope: Scope) -> Let:
    if all(isinstance(value.type, TensorType) for value in statement.results):
        return statement
    kinds: list[TensorType | None] = []
    for operand in statement.operands:
        kind = None if isinstance(operand, Number) else scope.type_of(operand)
        if isinstance(kind, OpenType):
            return statement
        kinds.append(kind)
    shapes = [value.shape for value in statement.results]
    with placed(statement.span):
        found = result_types(statement.operation, statement.operands, kinds, shapes, program.mesh)
    values: list[Value] = []
    for value, kind in zip(statement.results, found, strict=True):
        made = value
        if isinstance(value.type, OpenType) and value.type.placement is not None:
            lying = replace(kind, placement=value.type.placement, in_flight=value.type.in_flight)
            made = replace(value, type=lying) if value.type.admits(lying) else value
        values.append(made)
    return replace(statement, results=tuple(values))


def _loop(program: Program, statement: Loop, scope: Scope) -> Loop:
    carries = tuple(
        replace(carry, value=replace(carry.value, type=scope.type_of(carry.initial)))
        if isinstance(carry.value.type, OpenType)
        else carry
        for carry in statement.carries
    )
    results = tuple(
        replace(result, type=carry.value.type) if isinstance(result.type, OpenType) else result
        for result, carry in zip(statement.results, carries, strict=True)
    )
    head = replace(statement, carries=carries, results=results)
    return replace(head, body=_block(program, statement.body, scope.inside(head)))
