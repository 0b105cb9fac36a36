"""What passes that rewrite products with weights look for: which values are weights, and where a name is used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwright.ir.operation import Number
from shardwright.ir.ops import Alias, Contract, Convert
from shardwright.ir.program import Free, Func, Let, Loop, Program, Scope, SetState, Statement, Value


@dataclass(frozen=True)
class Site:
    """A statement with what is visible before it, and the block that it stands in (by the loops around it)."""

    func: Func
    statement: Statement
    scope: Scope

    @property
    def block(self) -> tuple[int, ...]:
        return tuple(id(loop) for loop in self.scope.loops)


def sites(program: Program, func: Func) -> Iterator[Site]:
    """Every statement of a function, a loop before its body, with its scope at that point."""
    yield from _sites(func, func.body, Scope.of(program, func))


def _sites(func: Func, body: tuple[Statement, ...], scope: Scope) -> Iterator[Site]:
    for statement in body:
        yield Site(func, statement, Scope(dict(scope.values), scope.loops))
        if isinstance(statement, Loop):
            yield from _sites(func, statement.body, scope.inside(statement))
        if isinstance(statement, Let | Loop):
            for value in statement.results:
                scope.define(value)


def use_counts(func: Func) -> dict[str, int]:
    """How often each name is used in a function."""
    counts: dict[str, int] = {}

    def count(name: str) -> None:
        counts[name] = counts.get(name, 0) + 1

    for name in func.returns:
        count(name)
    for statement, _ in func.walk():
        match statement:
            case Let():
                for operand in statement.operands:
                    if not isinstance(operand, Number):
                        count(operand)
            case SetState():
                count(statement.operand)
            case Free():
                pass
            case Loop():
                for name in (*(carry.initial for carry in statement.carries), *statement.following):
                    count(name)
    return counts


def weights_of(program: Program, func: Func) -> dict[str, Value]:
    """The matrices (of two dimensions or more) that a function may multiply with, by name, in declared order.

    These are the program's declared weights. Where it declares none, they are the parameters that are only ever
    the right operand of a contraction, and of one that has no batch dimension.
    """
    if program.weights:
        return {value.name: value for value in program.weights if len(value.shape.dims) > 1}
    found = {value.name: value for value in func.params if len(value.shape.dims) > 1}
    for name in func.returns:
        found.pop(name, None)
    source: dict[str, str] = {}
    for site in sites(program, func):
        match site.statement:
            case Let(operation=Alias() | Convert(), operands=(str() as name,)) as let:
                source[let.result.name] = source.get(name, name)
            case Let(operation=Contract() as operation, operands=(str() as left, str() as right)):
                found.pop(source.get(left, left), None)
                shared = set(site.scope.type_of(left).names) & set(site.scope.type_of(right).names)
                if shared != set(operation.dims):
                    found.pop(source.get(right, right), None)
            case Let() as let:
                for operand in let.operands:
                    if isinstance(operand, str):
                        found.pop(source.get(operand, operand), None)
            case SetState() as statement:
                found.pop(source.get(statement.operand, statement.operand), None)
            case Free():
                pass
            case Loop() as loop:
                for name in (*(carry.initial for carry in loop.carries), *loop.following):
                    found.pop(source.get(name, name), None)
    return found
