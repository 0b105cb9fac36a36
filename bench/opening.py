"""Programs with only their edges typed, so that every layout inside is left to the compiler."""

from __future__ import annotations

from dataclasses import replace

from shardwright.ir import ops
from shardwright.ir.program import Carry, Let, Loop, Marking, Program, Statement, Value
from shardwright.ir.types import OpenType


def opened(program: Program) -> Program:
    """The program with only its edges typed: interior demands and movements are taken out."""

    def free(value: Value) -> Value:
        return replace(value, type=OpenType.anything(value.shape), marking=Marking.UNWRITTEN)

    def visit(statement: Statement) -> Statement:
        match statement:
            case Let(operation=operation):
                kept = ops.Alias() if operation.is_movement else operation
                return replace(statement, operation=kept, results=tuple(map(free, statement.results)))
            case Loop():
                return replace(
                    statement,
                    results=tuple(map(free, statement.results)),
                    carries=tuple(Carry(free(carry.value), carry.initial) for carry in statement.carries),
                    body=tuple(map(visit, statement.body)),
                )
            case _:
                return statement

    return replace(program, funcs=tuple(replace(f, body=tuple(map(visit, f.body))) for f in program.funcs))
