"""The patterns that passes rewriting products with weights look for: which values are weights."""

from __future__ import annotations

from shardwright.ir.ops import Alias, Contract, Convert
from shardwright.ir.program import Func, Let, Program, Value
from shardwright.ir.walk import reads, sites


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
