"""The tools with which passes write statements: names that are free, types, and for each value what it was made
from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from shardwright.ir.diagnostics import NOWHERE, Span
from shardwright.ir.operation import Operand, Operation
from shardwright.ir.program import Func, Let, Marking, Program, Statement, Value
from shardwright.ir.types import OpenType, Shape, ValueType
from shardwright.ir.walk import names_of, values_in


class Namer:
    """Gives names that are not taken, with `joint` before their numbers: `h_2` for a value, `A2` for a dimension."""

    def __init__(self, taken: set[str], joint: str = "_") -> None:
        self.taken, self.joint = taken, joint

    @staticmethod
    def of(program: Program, *funcs: Func, taken: Iterable[str] = ()) -> Namer:
        """Names that are free in these functions, and besides those `taken`."""
        return Namer(set(program.globals).union(taken, *map(names_of, funcs)))

    def fresh(self, wish: str) -> str:
        """The wish itself if it is free, else the wish with the least number that makes it so."""
        name, count = wish, 1
        while name in self.taken:
            count += 1
            name = f"{wish}{self.joint}{count}"
        self.taken.add(name)
        return name


@dataclass
class Rewriter:
    """Writes statements of one function in place of others, into `out`.

    What is written stands for the value named `source`, and is at `span` in the text: `at` says both by the statement
    that is rewritten. A value's origin is the name of what it was made from, then what that was made from, and so on.
    """

    namer: Namer
    origins: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    out: list[Statement] = field(default_factory=list[Statement])
    source: str = ""
    span: Span = NOWHERE

    @classmethod
    def of(cls, program: Program, func: Func, taken: Iterable[str] = ()) -> Rewriter:
        """For a function whose names, and besides those `taken`, are not free."""
        values = (*program.weights, *program.state, *func.params, *values_in(func.body))
        return cls(Namer.of(program, func, taken=taken), {value.name: value.origin for value in values if value.origin})

    def at(self, statement: Let) -> None:
        """From here on statements are written in place of this one."""
        self.source, self.span = statement.result.name, statement.span

    def value(self, wish: str, kind: ValueType | Shape, marking: Marking = Marking.FOUND, source: str = "") -> Value:
        """A value under a fresh name, made from `source`. Of a mere shape the type is open, as of what nobody wrote."""
        if isinstance(kind, Shape):
            kind, marking = OpenType.anything(kind), Marking.UNWRITTEN
        source = source or self.source
        origin = (source, *self.origins.get(source, ())) if source else ()
        value = Value(self.namer.fresh(wish), kind, marking, self.span, origin)
        self.origins[value.name] = origin
        return value

    def like(self, value: Value, wish: str, kind: ValueType, marking: Marking) -> Value:
        """A value made from another, whose place in the text it has."""
        return replace(self.value(wish, kind, marking, value.name), span=value.span)

    def define(self, value: Value, operation: Operation, operands: Sequence[Operand]) -> str:
        """Writes the statement that gives a value its name."""
        self.out.append(Let((value,), operation, tuple(operands), self.span))
        return value.name

    def let(
        self,
        operation: Operation,
        operands: Sequence[Operand],
        wish: str,
        kind: ValueType | Shape,
        marking: Marking = Marking.FOUND,
    ) -> str:
        """Writes a statement whose result has a fresh name, which it gives back."""
        return self.define(self.value(wish, kind, marking), operation, operands)

    def put(self, *statements: Statement) -> None:
        """Writes statements that are there already."""
        self.out.extend(statements)

    def written(self) -> tuple[Statement, ...]:
        """The statements since the last call."""
        made = tuple(self.out)
        self.out.clear()
        return made

    def aside(self) -> Rewriter:
        """For statements that stand elsewhere, as in a loop's body, under names that are free here too."""
        return replace(self, out=[])

    def trial(self) -> Rewriter:
        """For statements that are thrown away: the names that they take stay free here."""
        return replace(self, namer=Namer(set(self.namer.taken)), origins=dict(self.origins), out=[])


def derived(value: Value, name: str) -> Value:
    """The value under another name, made from what it was; itself under its own."""
    return value if name == value.name else replace(value, name=name, origin=(value.name, *value.origin))


_WORDS = ("style", "form", "dtype", "tier")
"""Fields of operations whose words name no dimension."""


def rename_dims(operation: Operation, renamed: Mapping[str, str]) -> Operation:
    """An operation with dimensions renamed among its statics."""
    made: Any = operation
    changed = {f.name: _static(getattr(made, f.name), renamed) for f in fields(made) if f.name not in _WORDS}
    return replace(made, **changed)


def _static(static: object, renamed: Mapping[str, str]) -> object:
    match static:
        case Operation():
            return rename_dims(static, renamed)
        case tuple():
            items = cast("tuple[object, ...]", static)
            return tuple(_static(item, renamed) for item in items)
        case str():
            return renamed.get(static, static)
        case _:
            return static
