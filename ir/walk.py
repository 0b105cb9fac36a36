"""The names that statements read, define, set and free, said once, and the walks and rewrites that follow from it.

Each kind of statement is described in the first section alone: all else, here and in passes, prices and backends, is
made of these descriptions. A loop reads what it begins with and what it hands on; what its body reads is the body's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.ir.operation import Number, Operand
from shardwright.ir.program import Carry, Free, Func, Let, Loop, Program, Scope, SetState, Statement, Value
from shardwright.ir.types import OpenType, ValueType

# ---------------------------------------------------------------- one statement


def operand_names(operands: Iterable[Operand]) -> tuple[str, ...]:
    """The operands that are values."""
    return tuple(operand for operand in operands if isinstance(operand, str))


def reads(statement: Statement) -> tuple[str, ...]:
    """The names that a statement reads itself, one that it reads twice twice. Freeing is no reading."""
    match statement:
        case Let():
            return operand_names(statement.operands)
        case SetState():
            return (statement.operand,)
        case Free():
            return ()
        case Loop():
            return (*(carry.initial for carry in statement.carries), *statement.following)


def defined(statement: Statement) -> tuple[Value, ...]:
    """The values that a statement gives names to: what a loop's body sees carried, then the results."""
    if isinstance(statement, Loop):
        return (*(carry.value for carry in statement.carries), *statement.results)
    return statement.results


def body_of(statement: Statement) -> tuple[Statement, ...]:
    """The statements inside."""
    return statement.body if isinstance(statement, Loop) else ()


def with_body(statement: Statement, change: Callable[[tuple[Statement, ...]], tuple[Statement, ...]]) -> Statement:
    """The statement around its body changed; itself where it has none."""
    return replace(statement, body=change(statement.body)) if isinstance(statement, Loop) else statement


def with_values(statement: Statement, change: Callable[[Value], Value]) -> Statement:
    """The statement with each value that it defines itself changed."""
    match statement:
        case Let():
            results = _changed(statement.results, change)
            return statement if results is statement.results else replace(statement, results=results)
        case SetState() | Free():
            return statement
        case Loop():
            carries = tuple(Carry(change(carry.value), carry.initial) for carry in statement.carries)
            return replace(statement, carries=carries, results=_changed(statement.results, change))


def _changed(values: tuple[Value, ...], change: Callable[[Value], Value]) -> tuple[Value, ...]:
    made = tuple(map(change, values))
    return values if all(a is b for a, b in zip(made, values, strict=True)) else made


def with_operands(statement: Statement, names: Mapping[str, str]) -> Statement:
    """The statement with what it reads itself, or frees, under other names. State that is `set` keeps its name."""

    def new(name: str) -> str:
        return names.get(name, name)

    match statement:
        case Let():
            operands = tuple(o if isinstance(o, Number) else new(o) for o in statement.operands)
            return replace(statement, operands=operands)
        case SetState():
            return replace(statement, operand=new(statement.operand))
        case Free():
            return replace(statement, names=tuple(map(new, statement.names)))
        case Loop():
            carries = tuple(replace(carry, initial=new(carry.initial)) for carry in statement.carries)
            return replace(statement, carries=carries, following=tuple(map(new, statement.following)))


# ---------------------------------------------------------------- blocks, inner ones included


def statements(body: Iterable[Statement]) -> Iterator[Statement]:
    """Every statement, a loop before its body."""
    for statement in body:
        yield statement
        if inner := body_of(statement):
            yield from statements(inner)


Position = tuple[int, ...]
"""Where a statement stands in a function: the numbers in their blocks of the loops around it, then its own."""

DefinitionPath = tuple[str | int, ...]
"""Where a value is defined: a function, which of its block's loops each loop around is, then its name, which loops may
share. Statements other than loops may come and go."""


def lets_in(body: Iterable[Statement]) -> Iterator[Let]:
    """Every operation."""
    return (statement for statement in statements(body) if isinstance(statement, Let))


def values_in(body: Iterable[Statement]) -> Iterator[Value]:
    """Every value that statements define."""
    return (value for statement in statements(body) for value in defined(statement))


def as_written(written: Iterable[Value], made: Iterable[Value]) -> list[Value]:
    """For each value of a program as it was written what passes made of it: of the same name, at the same place where
    the bodies of several loops have the name; itself where there is none."""
    by_name = {value.name: value for value in made}
    by_place = {(value.name, value.span): value for value in made}
    return [by_place.get((value.name, value.span)) or by_name.get(value.name, value) for value in written]


def names_read(body: Iterable[Statement]) -> list[str]:
    """The names that statements read, each once, in order of appearance."""
    found: dict[str, None] = {}
    for statement in body:
        names = reads(statement)
        if isinstance(statement, Loop):  # what it hands on is read after its body
            begun = len(statement.carries)
            names = (*names[:begun], *names_read(statement.body), *names[begun:])
        found.update(dict.fromkeys(names))
    return list(found)


def names_defined(body: Iterable[Statement]) -> set[str]:
    """The names that statements give to values, the indices of loops among them."""
    indices = {s.index for s in statements(body) if isinstance(s, Loop) and s.index is not None}
    return indices | {value.name for value in values_in(body)}


def names_freed(body: Iterable[Statement]) -> set[str]:
    """The names whose values statements free."""
    return {name for statement in statements(body) if isinstance(statement, Free) for name in statement.names}


def states_set(body: Iterable[Statement]) -> list[str]:
    """The state that statements make new versions of, each once, in order of appearance."""
    return list(dict.fromkeys(s.state for s in statements(body) if isinstance(s, SetState)))


def names_used(body: Iterable[Statement]) -> set[str]:
    """The names that statements read, and the state that they set."""
    given = tuple(body)
    return {*names_read(given), *states_set(given)}


def captured(loop: Loop) -> set[str]:
    """The names of what stands around a loop that it uses."""
    return names_used((loop,)) - (names_defined((loop,)) - {value.name for value in loop.results})


def rename_operands(statement: Statement, names: Mapping[str, str]) -> Statement:
    """The statement with operands renamed, also those inside a loop."""
    return with_body(with_operands(statement, names), lambda body: tuple(rename_operands(s, names) for s in body))


def map_values(body: Iterable[Statement], change: Callable[[Value], Value]) -> tuple[Statement, ...]:
    """The statements with each value that they define changed, inside loops too."""
    return tuple(with_body(with_values(s, change), lambda inner: map_values(inner, change)) for s in body)


# ---------------------------------------------------------------- functions and programs


def names_of(func: Func) -> set[str]:
    """Every name that the function defines or mentions."""
    names = {value.name for value in func.params} | set(func.returns) | names_defined(func.body)
    return names.union(names_read(func.body), names_freed(func.body), states_set(func.body))


def use_counts(func: Func) -> Counter[str]:
    """How often each name is read in a function; its caller reads what it returns."""
    return Counter([*func.returns, *(name for statement in statements(func.body) for name in reads(statement))])


@dataclass(frozen=True)
class Site:
    """A statement, where it stands, and what is visible before it. The scope goes on with the walk: see `kept`."""

    func: Func
    at: Position
    statement: Statement
    scope: Scope

    @property
    def block(self) -> Position:
        """The block that it stands in, as the position of the loop whose body that is."""
        return self.at[:-1]

    def path(self, name: str) -> DefinitionPath:
        """The path of a value that is visible here, or that the statement defines."""
        _, outside = self.scope.values.get(name, (None, len(self.block)))
        body, loops = self.func.body, list[int]()
        for number in self.block[:outside]:
            loops.append(sum(isinstance(statement, Loop) for statement in body[:number]))
            body = body_of(body[number])
        return (self.func.name, *loops, name)

    def kept(self) -> Site:
        """The site with its scope as it is now."""
        return replace(self, scope=Scope(dict(self.scope.values), self.scope.loops))


def sites(program: Program, func: Func) -> Iterator[Site]:
    """Every statement of a function, a loop before its body."""
    return _sites(func, func.body, Scope.of(program, func), ())


def _sites(func: Func, body: Iterable[Statement], scope: Scope, block: Position) -> Iterator[Site]:
    for number, statement in enumerate(body):
        yield Site(func, (*block, number), statement, scope)
        if isinstance(statement, Loop):
            yield from _sites(func, statement.body, scope.inside(statement), (*block, number))
        scope.define(*statement.results)


def lets(program: Program, *funcs: Func) -> Iterator[tuple[Let, Scope]]:
    """Every operation of these functions, or else of all, with what is visible before it."""
    for func in funcs or program.funcs:
        for site in sites(program, func):
            if isinstance(site.statement, Let):
                yield site.statement, site.scope


def open_values(func: Func) -> list[Value]:
    """The parameters and results of statements whose layouts the author left open."""
    found = (*func.params, *(value for statement in statements(func.body) for value in statement.results))
    return [value for value in found if isinstance(value.type, OpenType)]


def program_values(program: Program) -> Iterator[tuple[Func | None, Value]]:
    """Every value of a program, with the function that has it: weights and state, then parameters and what is made."""
    yield from ((None, value) for value in (*program.weights, *program.state))
    for func in program.funcs:
        yield from ((func, value) for value in (*func.params, *values_in(func.body)))


def map_bodies(func: Func, rewrite: Callable[[tuple[Statement, ...]], tuple[Statement, ...]]) -> Func:
    """The function with every block rewritten, inner loops first."""

    def visit(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return rewrite(tuple(with_body(statement, visit) for statement in body))

    return replace(func, body=visit(func.body))


def map_sites(program: Program, func: Func, rewrite: Callable[[Site], Sequence[Statement]]) -> Func:
    """The function with every statement replaced by what `rewrite` gives for it.

    The body of a loop is rewritten before the loop itself; sites, and the types in their scopes, are those before.
    """

    def visit(body: tuple[Statement, ...], scope: Scope, block: Position) -> tuple[Statement, ...]:
        made: list[Statement] = []
        for number, statement in enumerate(body):
            at = (*block, number)
            inside = scope.inside(statement) if isinstance(statement, Loop) else scope
            inner = with_body(statement, lambda body, at=at, inside=inside: visit(body, inside, at))
            made.extend(rewrite(Site(func, at, inner, scope)))
            scope.define(*statement.results)
        return tuple(made)

    return replace(func, body=visit(func.body, Scope.of(program, func), ()))


def map_func_values(
    func: Func, change: Callable[[Value], Value], result: Callable[[ValueType], ValueType] = lambda kind: kind
) -> Func:
    """The function with each parameter and each value that it makes changed, and the type of each result."""
    return replace(
        func,
        params=_changed(func.params, change),
        body=map_values(func.body, change),
        results=tuple(map(result, func.results)),
    )


def map_program_values(
    program: Program,
    change: Callable[[Func | None, Value], Value],
    result: Callable[[Func, ValueType], ValueType] = lambda _func, kind: kind,
) -> Program:
    """The program with each value changed, given with the function that has it (None for weights and state)."""

    def inside(func: Func) -> Func:
        return map_func_values(func, lambda value: change(func, value), lambda kind: result(func, kind))

    def around(declared: tuple[Value, ...]) -> tuple[Value, ...]:
        return _changed(declared, lambda value: change(None, value))

    funcs = tuple(map(inside, program.funcs))
    return replace(program, weights=around(program.weights), state=around(program.state), funcs=funcs)
