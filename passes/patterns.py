"""What passes that rewrite products with weights look for: which values are weights, and where a name is used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwright.ir.ops import Alias, Contract, Convert
from shardwright.ir.program import Func, Let, Program, Scope, Statement, Value
from shardwright.ir.walk import reads, scoped


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
    for statement, scope in scoped(program, func):
        yield Site(func, statement, Scope(dict(scope.values), scope.loops))


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
            case statement:
                for name in reads(statement):
                    found.pop(source.get(name, name), None)
    return found
