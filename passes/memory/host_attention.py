"""Attention where the cache lies: `attend` of one position over a cache on the host, computed there (CPU delegation,
Sheng et al. 2023, section 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from shardwright.ir.ops import Alias, Attend, Rename, Take, Update
from shardwright.ir.program import Func, Let, Loop, Marking, Program, Scope, SetState, Statement, Value
from shardwright.ir.types import ON_HOST


def with_attention_on_host(program: Program) -> Program:
    """The program with attention of one position written to leave its result on the host, where its cache lies there;
    `offload` then has it computed there."""

    def written(func: Func) -> Func:
        _, there = attending_on_host(program, func, always=True)

        def visit(statement: Statement) -> Statement:
            if isinstance(statement, Loop):
                return replace(statement, body=tuple(map(visit, statement.body)))
            attends = isinstance(statement, Let) and isinstance(statement.operation, Attend)
            if not attends or statement.results[0].name not in there:
                return statement
            return replace(statement, results=tuple(map(_on_host, statement.results)))

        return replace(func, body=tuple(map(visit, func.body)))

    return replace(program, funcs=tuple(map(written, program.funcs)))


def attending_on_host(program: Program, func: Func, *, always: bool) -> tuple[Func, frozenset[str]]:
    """The function with attention on the host where it is written to leave its result there, or `always` where queries
    have one position, and where keys and values lie there but for the rows that are new.

    Caches with their new rows and results have types that say so, and are the names beside the function; movements are
    still to be written.
    """
    sizes = program.sizes(func)
    named: set[str] = set()

    def delegated(let: Let) -> bool:
        operation = let.operation
        if not isinstance(operation, Attend) or operation.page is not None:
            return False
        single = operation.causal is None or sizes[operation.causal] == 1
        return let.results[0].type.placement == ON_HOST or (always and single)

    def block(body: tuple[Statement, ...], scope: Scope) -> tuple[Statement, ...]:
        made: list[Statement] = []
        lets: dict[str, Let] = {}
        there, states = set[str](), set[str]()
        for statement in body:
            inner = statement
            if isinstance(statement, Loop):
                inner = replace(statement, body=block(statement.body, scope.inside(statement)))
            elif isinstance(statement, Let):
                lets |= {value.name: statement for value in statement.results}
                if delegated(statement):
                    found = [_cache(str(name), lets, scope) for name in statement.operands[1:3]]
                    if all(names for names in found):
                        there |= {name for names in found for name in names[1:]}
                        there |= {value.name for value in statement.results}
                        states |= {names[0] for names in found}
            made.append(inner)
            scope.define(*statement.results)
        for statement in body:  # what such a cache is set to, then, is new rows written where it lies
            if isinstance(statement, SetState) and statement.state in states:
                names = _cache(statement.operand, lets, scope)
                there |= set(names[1:] if names[:1] == (statement.state,) else ())
        named.update(there)
        return tuple(
            replace(s, results=tuple(map(_on_host, s.results)))
            if isinstance(s, Let) and there.intersection(value.name for value in s.results)
            else s
            for s in made
        )

    made = replace(func, body=block(func.body, Scope.of(program, func)))
    return made, frozenset(named)


def _cache(name: str, lets: Mapping[str, Let], scope: Scope) -> tuple[str, ...]:
    """The value on the host and the names from there to another of this body, if these are parts of it and rows written
    into it alone; nothing where it is something else."""
    let = lets.get(name)
    match let.operation if let is not None else None:
        case Take(stop=None) | Rename() | Alias() | Update(indexed=(), wrap=False, page=None):
            assert let is not None
            if further := _cache(str(let.operands[0]), lets, scope):
                return (*further, name)
        case _:
            pass
    return (name,) if scope.type_of(name).placement == ON_HOST else ()


def _on_host(value: Value) -> Value:
    marking = Marking.FOUND if value.marking is Marking.UNWRITTEN else value.marking
    return replace(value, type=replace(value.type, placement=ON_HOST), marking=marking)
