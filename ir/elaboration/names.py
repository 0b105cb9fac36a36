"""The meaning of the names in a function where it is read: their places, faults and versions of state."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager

from shardwright.ir.diagnostics import Diagnostic, DiagnosticError, Note, Span, fault, nearest
from shardwright.ir.elaboration.declarations import Declarations
from shardwright.ir.program import Scope
from shardwright.ir.rewriter import Namer
from shardwright.ir.text import syntax
from shardwright.ir.types import ValueType


class PoisonedError(Exception):
    """A name whose definition was at fault: nothing more is said about what uses it."""


class Names:
    """The names of one function as they come to be defined, and the faults found so far.

    `owners` gives for a name the function that it is defined in, for those who look for it elsewhere.
    """

    def __init__(self, declarations: Declarations, item: syntax.FuncItem, owners: Mapping[str, str]) -> None:
        self.mesh = declarations.mesh
        self.state = frozenset(value.name for value in declarations.state)
        self.owners = owners
        self.diagnostics: list[Diagnostic] = []
        self.defined: dict[str, Span] = {v.name: v.span for v in (*declarations.weights, *declarations.state)}
        self.inner: dict[str, Span] = {}
        """Where names were defined inside a loop that has ended."""
        self.poisoned: set[str] = set(declarations.faulty)
        self.written = written_names(item)
        self.aliases: dict[str, tuple[str, int]] = {}
        """Other names of a state, with the version that they stand for."""
        self.versions: dict[str, int] = {}
        """How often each state has been set."""
        self.set_at: dict[str, Span] = {}
        self.namer = Namer(set(self.defined) | set(self.written))

    @contextmanager
    def recording(self) -> Generator[None]:
        """Keeps the faults raised inside and goes on after them."""
        try:
            yield
        except DiagnosticError as error:
            self.diagnostics.extend(error.diagnostics)
        except PoisonedError:
            pass

    def poison(self, statement: syntax.Stmt) -> None:
        """Marks what a statement at fault would have defined."""
        match statement:
            case syntax.LetStmt() | syntax.LoopStmt():
                self.poisoned.update(target.name for target in statement.targets)
                for target in statement.targets:
                    self.defined.setdefault(target.name, target.span)
            case _:
                pass

    def define(self, name: str, span: Span) -> None:
        """Takes note of a definition by the author; raises where the name has one already."""
        if name in self.defined:
            raise redefinition("value", name, span, self.defined[name])
        self.defined[name] = span
        self.inner.pop(name, None)

    def leave_loop(self, outside: set[str]) -> None:
        """From here on the names defined since, other than those `outside`, are no longer seen."""
        for name in set(self.defined) - outside:
            self.inner[name] = self.defined.pop(name)

    def set_state(self, name: str, span: Span) -> None:
        """A new version of a state: other names of it become old ones."""
        self.versions[name] = self.versions.get(name, 0) + 1
        self.set_at[name] = span

    def alias_of_state(self, name: str, source: str) -> None:
        """Takes note that `name = source` names the present version of a state, if that is what `source` is."""
        if source in self.state:
            self.aliases[name] = (source, self.versions.get(source, 0))
        elif source in self.aliases:
            self.aliases[name] = self.aliases[source]

    def view(self, name: str, scope: Scope, span: Span) -> ValueType:
        """The type of a name as seen here; raises where it is not defined, or is an old version of a state."""
        if name in self.poisoned:
            raise PoisonedError
        if name not in scope.values:
            if name in self.inner:
                raise fault(
                    "undeclared",
                    f"{name} is defined inside a loop and not seen outside it",
                    span,
                    Note("it is defined here", self.inner[name]),
                    "carry it out with next",
                )
            if name in self.written:
                raise fault(
                    "undeclared",
                    f"{name} is used before it is defined",
                    span,
                    Note("it is defined here", self.written[name]),
                )
            if name in self.mesh:
                raise fault("undeclared", f"{name} is a mesh axis, not a value", span)
            if name in self.owners:
                raise fault(
                    "undeclared",
                    f"{name} is not defined here, but in {self.owners[name]}",
                    span,
                    "functions share weights and state; hand it over as a parameter, or declare it as state",
                )
            near = nearest(name, [n for n in scope.values if n not in self.poisoned])
            raise fault("undeclared", f"{name} is not defined", span, near)
        if name in self.aliases:
            state, version = self.aliases[name]
            if self.versions.get(state, 0) != version:
                raise fault(
                    "old-version",
                    f"{name} is an old version of the state {state}, which has been set since",
                    span,
                    Note(f"{state} is set here", self.set_at[state]),
                    f"use {name} before the set, or {state} itself after it",
                )
        kind, outside = scope.values[name]
        for loop in scope.loops[outside:]:
            if loop.dim in kind.names and _is_split(kind, loop.dim):
                raise fault(
                    "split-loop",
                    f"the loop over {loop.dim} takes slices of {name}: {kind}, and {loop.dim} is split over chips",
                    span,
                    f"leave {loop.dim} whole; weights and state that are split so are pipeline stages, for check, opt,"
                    " compile, run and cost",
                )
        return scope.type_of(name)


def _is_split(kind: ValueType, dim: str) -> bool:
    return any(d.name == dim and axes for d, axes in zip(kind.dims, kind.splits, strict=True))


def head_span(node: syntax.FuncItem | syntax.LoopStmt) -> Span:
    """From the start of a function or a loop to the brace that opens its body."""
    return node.span.to(node.brace) if node.brace.line else node.span


def redefinition(what: str, name: str, span: Span, before: Span) -> DiagnosticError:
    """The fault of giving one name twice."""
    return fault("redefinition", f"{what} {name} is defined twice", span, Note("the first definition is here", before))


def written_names(item: syntax.FuncItem) -> dict[str, Span]:
    """Every name that the author gives in the function with its place, so that temporaries avoid them."""
    names: dict[str, Span] = {}

    def visit(body: Sequence[syntax.Stmt]) -> None:
        for statement in body:
            match statement:
                case syntax.LetStmt():
                    names.update((target.name, target.span) for target in statement.targets)
                case syntax.LoopStmt():
                    names.update((target.name, target.span) for target in statement.targets)
                    names.update((carry.target.name, carry.target.span) for carry in statement.carries)
                    if statement.index:
                        names[statement.index] = head_span(statement)
                    visit(statement.body)
                case _:
                    pass

    names.update((decl.name, decl.span) for decl in item.params)
    visit(item.body)
    return names
