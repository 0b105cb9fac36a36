"""Extents where a dimension's declared size is meant: in loops, beside `size[D]`, and where values leave a function.

Extents travel with values, and an operation may give another than the declared size. A loop over N makes as many trips
as N's declared size, so what it takes slices of has that extent; `size[D]` is the declared size, so the value that it
is about has it, too; parameters, results, weights and state always have theirs.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

from shardwright.ir.diagnostics import Diagnostic, DiagnosticError, Note, Span, fault
from shardwright.ir.operation import Number
from shardwright.ir.program import Func, Let, Loop, Program, Scope, SetState, Statement
from shardwright.ir.types import Shape, ValueType
from shardwright.ir.walk import operand_names


def check_extents(program: Program, func: Func) -> list[Diagnostic]:
    """The faults of extents in a function, in the order of its statements."""
    checker = _Checker(program, func)
    scope = Scope.of(program, func)
    checker.block(func.body, scope)
    for name, kind in zip(func.returns, func.results, strict=True):
        with checker.gathering():
            checker.same(scope, name, kind, f"{func.name} returns", func.span)
    return checker.diagnostics


def sized_values(program: Program, func: Func) -> list[tuple[str, str]]:
    """The dimension of each `size[D]` with a value whose extent it is about: what it meets, or what that is made of."""
    checker = _Checker(program, func)
    checker.block(func.body, Scope.of(program, func))
    return checker.sized


class _Checker:
    """Goes through a function; `sources` has what each value so far was made of, under the names that are visible."""

    def __init__(self, program: Program, func: Func) -> None:
        self.sizes = program.sizes(func)
        self.sources: dict[str, tuple[str, ...]] = {}
        self.sized: list[tuple[str, str]] = []
        self.diagnostics: list[Diagnostic] = []

    @contextmanager
    def gathering(self) -> Generator[None]:
        """Keeps the fault that is raised inside, and goes on after it."""
        try:
            yield
        except DiagnosticError as error:
            self.diagnostics.extend(error.diagnostics)

    def block(self, body: tuple[Statement, ...], scope: Scope) -> None:
        for statement in body:
            match statement:
                case Let():
                    with self.gathering():
                        self.let(statement, scope)
                    names = operand_names(statement.operands)
                    for value in statement.results:
                        self.sources[value.name] = names
                        scope.define(value)
                case SetState():
                    with self.gathering():
                        self.set(statement, scope)
                case Loop():
                    self.loop(statement, scope)
                case _:
                    pass

    def let(self, statement: Let, scope: Scope) -> None:
        names = operand_names(statement.operands)
        for name in names:
            self.sliced(scope, name, statement.span)
        for number in statement.operands:
            for dim in number.sizes_of if isinstance(number, Number) else ():
                for name in names:
                    self.about(dim, name, scope, statement.span)

    def set(self, statement: SetState, scope: Scope) -> None:
        self.sliced(scope, statement.state, statement.span)
        self.sliced(scope, statement.operand, statement.span)
        kind = scope.type_of(statement.state)
        self.same(scope, statement.operand, kind, f"{statement.state} is set to", statement.span)

    def loop(self, loop: Loop, scope: Scope) -> None:
        for carry in loop.carries:
            with self.gathering():
                self.sliced(scope, carry.initial, loop.span)
                self.same(scope, carry.initial, carry.value.type, f"{carry.value.name} is carried from", loop.span)
            self.sources[carry.value.name] = (carry.initial,)
        inside = scope.inside(loop)
        self.block(loop.body, inside)
        for carry, name in zip(loop.carries, loop.following, strict=True):
            with self.gathering():
                self.sliced(inside, name, loop.span)
                self.same(inside, name, carry.value.type, "next gives", loop.span)
        for value, name in zip(loop.results, loop.following, strict=True):
            self.sources[value.name] = (name,)
            scope.define(value)

    def sliced(self, scope: Scope, name: str, span: Span) -> None:
        """Raises where a loop would take slices of a value that has more of them, or fewer, than the loop has trips."""
        kind, outside = scope.values[name]
        for loop in scope.loops[outside:]:
            if loop.dim not in kind.names:
                continue
            extent, size = kind.shape.size(loop.dim), self.sizes[loop.dim]
            if extent != size:
                part = [f"take the part that it goes over: take[{loop.dim} 0:{size}]({name})"] if extent > size else []
                raise fault(
                    "size-mismatch",
                    f"the loop over {loop.dim} makes {size} trips, the declared size, and {name} has {extent} of"
                    f" {loop.dim}",
                    span,
                    *([Note("the loop is here", loop.span)] if span != loop.span else []),
                    *part,
                    f"{'or ' if part else ''}loop over a dimension of its own: {own_dimension(loop.dim, extent, name)}",
                )

    def about(self, dim: str, name: str, scope: Scope, span: Span) -> None:
        """Raises where `size[dim]` stands beside a value that was made of one with another extent of `dim`."""
        size = self.sizes[dim]
        for value, shape in self.nearest(dim, name, scope):
            self.sized.append((dim, value))
            if shape.size(dim) != size:
                meets = "" if value == name else "it meets what is made of "
                which = "" if value == name else ", which"
                raise fault(
                    "size-mismatch",
                    f"size[{dim}] is {size}, the declared size, and {meets}{value}{which} has {shape.size(dim)} of"
                    f" {dim}",
                    span,
                    f"write the number that is meant, {shape.size(dim)} or {size}",
                    "or give the extent a dimension of its own, and its size instead:"
                    f" {own_dimension(dim, shape.size(dim), value)}",
                )

    def nearest(self, dim: str, name: str, scope: Scope) -> Iterator[tuple[str, Shape]]:
        """Going from a value to what it was made of, the first ones that have the dimension."""
        pending, seen = [name], {name}
        while pending:
            at = pending.pop()
            if at in scope.values and dim in scope.values[at][0].names:
                yield at, scope.values[at][0].shape
                continue
            new = [source for source in self.sources.get(at, ()) if source not in seen]
            seen.update(new)
            pending.extend(new)

    def same(self, scope: Scope, name: str, kind: ValueType, what: str, span: Span) -> None:
        """Raises where a value has other extents than it must have here; an author's are found in elaboration."""
        shape = scope.type_of(name).shape
        if shape.names != kind.names:
            raise fault("wrong-dimensions", f"{what} {name}: {shape}, where {kind.shape} is needed", span)
        require_extents(shape, kind, what, span)


def require_extents(found: Shape, declared: ValueType, what: str, span: Span) -> None:
    """Raises where a value that leaves the function, or comes round again, has another extent than declared."""
    for have, want in zip(found.dims, declared.dims, strict=True):
        if have.size != want.size:
            raise fault(
                "size-mismatch",
                f"{what} {have.size} of {have.name}, where {have.name}={want.size} is declared",
                span,
                f"give the part a dimension of its own: {own_dimension(have.name, have.size, '...')}",
            )


def own_dimension(dim: str, extent: int, value: str) -> str:
    """How an extent comes to be the declared size of another dimension."""
    return f"dim {dim}2={extent} and rename[{dim} -> {dim}2]({value})"
