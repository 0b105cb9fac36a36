"""Lifetimes: what is in flight lands exactly once, and what was freed is used no more.

A value in flight (the result of `start` or `prefetch`) is taken by one `wait`, `free` or `next`, or carried into one
loop; until then nothing reads it. `free` ends the life of a value of the same block, one trip of a loop at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shardwright.ir.diagnostics import Diagnostic, Note, Span, fault
from shardwright.ir.ops import Ahead, Fetch, Movement, Start, Store, Wait
from shardwright.ir.program import Free, Func, Let, Loop, Program, Scope, Statement, Value
from shardwright.ir.types import ON_DEVICE, Placement, ValueType
from shardwright.ir.walk import reads

_WAITS = "in-flight"
_FREED = "freed"


def check_lifetimes(program: Program, func: Func) -> list[Diagnostic]:
    """The faults of values in flight and of freed ones in a function, in the order of its statements."""
    checker = _Checker()
    for value in (*program.weights, *program.state, *func.params):
        checker.at_an_edge(value.name, value.type, value.span)
    for kind in func.results:
        checker.at_an_edge(f"a result of {func.name}", kind, func.span)
    if checker.diagnostics:
        return checker.diagnostics
    borrowed = frozenset(v.name for v in (*program.weights, *program.state, *func.params))
    checker.block(func.body, Scope.of(program, func), _Block(borrowed), func.returns, func.span)
    return checker.diagnostics


def has_lifetimes(func: Func) -> bool:
    """Tells whether a schedule is written down in a function: something is started or freed."""
    return any(isinstance(s, Free) or (isinstance(s, Let) and isinstance(s.operation, Start)) for s, _ in func.walk())


@dataclass
class _Block:
    """The state of names at a point of one body.

    `outside` are names whose lives do not end here: they come from around the body, or belong to the caller.
    """

    outside: frozenset[str]
    around: _Block | None = None
    flying: dict[str, Span] = field(default_factory=dict[str, Span])
    landed: dict[str, Span] = field(default_factory=dict[str, Span])
    freed: dict[str, Span] = field(default_factory=dict[str, Span])
    own: set[str] = field(default_factory=set[str])

    def excuse(self, name: str) -> None:
        """Something was said about the name; that it never lands follows from it."""
        block: _Block | None = self
        while block is not None:
            block.flying.pop(name, None)
            block = block.around

    def defines(self, value: Value) -> None:
        """From here on the body has a value of its own."""
        self.own.add(value.name)
        if value.type.in_flight:
            self.flying[value.name] = value.span


@dataclass
class _Checker:
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])
    blamed: set[str] = field(default_factory=set[str])
    """Names made of what was at fault."""

    def say(self, code: str, message: str, span: Span, *notes: str | Note) -> None:
        self.diagnostics.extend(fault(code, message, span, *notes).diagnostics)

    def at_an_edge(self, what: str, kind: ValueType, span: Span) -> None:
        if kind.in_flight:
            self.say(_WAITS, f"{what} is in flight, and a function's edges are not", span, "wait for it inside")

    # ------------------------------------------------------------ statements

    def block(self, body: Sequence[Statement], scope: Scope, at: _Block, ending: Sequence[str], end: Span) -> None:
        """The statements of a body that hands on the names of `ending`."""
        for statement in body:
            match statement:
                case Let():
                    self.let(statement, scope, at)
                case Free():
                    self.free(statement, scope, at)
                case Loop():
                    self.loop(statement, scope, at)
                case _:
                    for name in reads(statement):
                        self.reads(name, scope, at, statement.span)
            for value in statement.results:
                scope.define(value)
                at.defines(value)
        for name in ending:
            if scope.loops and _in_flight(name, scope):
                self.lands(name, at, end, "next hands it on")
            else:
                self.reads(name, scope, at, end)
        for name, span in at.flying.items():
            self.say(
                _WAITS,
                f"{name} is in flight and never lands",
                span,
                f"take it with wait({name}), drop it with free {name}, or hand it on with next",
            )

    def let(self, statement: Let, scope: Scope, at: _Block) -> None:
        operation, before = statement.operation, len(self.diagnostics)
        for operand in statement.operands:
            if not isinstance(operand, str):
                continue
            if not isinstance(operation, Wait):
                self.reads(operand, scope, at, statement.span)
            elif _in_flight(operand, scope):
                self.lands(operand, at, statement.span, "waited for")
            elif operand not in self.blamed:
                self.say(
                    _WAITS,
                    f"{operand}: {scope.type_of(operand)} is not in flight, and wait lands what is",
                    statement.span,
                    f"use {operand} itself",
                )
        for value in statement.results:
            starts = isinstance(operation, Start)
            if starts and not value.type.in_flight:
                self.say(
                    _WAITS,
                    f"{value.name}: {value.type} is written, and what a movement starts is in flight",
                    value.span,
                    f"write {value.name}: {replace(value.type, in_flight=True)}",
                )
            elif value.type.in_flight and not starts:
                self.say(
                    _WAITS,
                    f"{value.name}: {value.type} is written, and {operation.keyword or 'another name'} starts nothing",
                    value.span,
                    "prefetch(...) and start(...) do",
                )
        if len(self.diagnostics) > before:
            self.blamed.update(value.name for value in statement.results)
        elif isinstance(operation, Movement) and isinstance(statement.operands[0], str):
            self.movement(statement, operation.moves, scope)

    def movement(self, statement: Let, operation: Movement, scope: Scope) -> None:
        """Where copies between memories come from and go to, and what `ahead` looks ahead to."""
        name, result = str(statement.operands[0]), statement.result
        kind = scope.type_of(name)
        if isinstance(operation, Ahead):
            self.ahead(operation, name, scope, statement.span)
        placement = kind.placement
        if placement is None or result.type.placement is None:
            return
        match operation:
            case Fetch():
                if placement == ON_DEVICE:
                    self.say("misapplied-movement", f"fetch: {name}: {kind} is on the device", statement.span,
                             "leave out fetch(...)")  # fmt: skip
                    return
            case Store():
                if placement != ON_DEVICE:
                    self.say(
                        "misapplied-movement",
                        f"store takes what is on the device, and {name} is on {placement}",
                        statement.span,
                        f"fetch it first: fetch({name})",
                    )
                    return
            case Wait():
                pass
            case _:
                return
        self.arrives(result, operation.placed(placement), statement)

    def arrives(self, result: Value, placement: Placement, statement: Let) -> None:
        if result.type.placement != placement:
            self.say(
                "misapplied-movement",
                f"{statement.operation.keyword} leaves {result.name} on {placement}, and {result.type} is written",
                result.span,
                f"write {replace(result.type, placement=placement)}",
            )

    def ahead(self, operation: Ahead, name: str, scope: Scope, span: Span) -> None:
        """Each dimension of `ahead` is one that a loop around takes slices of this value along, in the loops' order."""
        if not operation.ahead:
            return
        kind, outside = scope.values[name]
        sliced = [loop.dim for loop in scope.loops[outside:] if loop.dim in kind.names]
        for dim in operation.ahead:
            if dim not in sliced:
                listed = f"it is sliced along {', '.join(sliced)}" if sliced else "no loop around takes slices of it"
                ahead = "".join(operation.ahead)
                self.say(
                    "bad-static", f"{operation.keyword}: ahead={ahead}, and no loop slices {name} along {dim}",
                    span, listed,
                )  # fmt: skip
                return
        ordered = [dim for dim in sliced if dim in operation.ahead]
        if ordered != list(operation.ahead):
            self.say(
                "bad-static",
                f"{operation.keyword}: ahead={''.join(operation.ahead)} is not in the order of the loops",
                span,
                f"write ahead={''.join(ordered)}, the innermost loop last",
            )

    def free(self, statement: Free, scope: Scope, at: _Block) -> None:
        for name in statement.names:
            if name in at.freed:
                self.say(_FREED, f"{name} is freed twice", statement.span, Note("the first is here", at.freed[name]))
            elif name in at.outside or name not in at.own:
                owner = "the function's caller" if not scope.loops else "what stands outside the loop"
                way_out = "leave it out" if not scope.loops else "free it after the loop"
                self.say(_FREED, f"{name} belongs to {owner}, and is not freed here", statement.span, way_out)
                continue  # so that uses after it are no faults of their own
            elif _in_flight(name, scope):
                self.lands(name, at, statement.span, "freed")
            at.freed.setdefault(name, statement.span)

    def loop(self, loop: Loop, scope: Scope, at: _Block) -> None:
        for carry in loop.carries:
            kind, begins = carry.value.type, _in_flight(carry.initial, scope)
            if begins and kind.in_flight:
                self.lands(carry.initial, at, loop.span, "carried into the loop")
            elif begins != kind.in_flight:
                self.mismatch(carry.value, carry.initial, "is carried from", scope.type_of(carry.initial))
            else:
                self.reads(carry.initial, scope, at, loop.span)
        inside = scope.inside(loop)
        body = _Block(frozenset(scope.values), at, freed=dict(at.freed))
        for carry in loop.carries:
            body.defines(carry.value)
        self.block(loop.body, inside, body, loop.following, loop.span)
        for carry, following in zip(loop.carries, loop.following, strict=True):
            if following in inside.values and _in_flight(following, inside) != carry.value.type.in_flight:
                self.mismatch(carry.value, following, "is handed on from", inside.type_of(following))

    def mismatch(self, value: Value, name: str, how: str, kind: ValueType) -> None:
        ours, theirs = ("in flight", "is not") if value.type.in_flight else ("not in flight", "is")
        self.say(
            _WAITS,
            f"{value.name} is {ours} and {how} {name}: {kind}, which {theirs}",
            value.span,
            "both are in flight, or neither is: wait for one, or start the other",
        )

    # ------------------------------------------------------------ names

    def reads(self, name: str, scope: Scope, at: _Block, span: Span) -> None:
        """An ordinary use."""
        if name in at.freed:
            self.say(_FREED, f"{name} is used after it was freed", span, Note("it is freed here", at.freed[name]),
                     "free it after its last use")  # fmt: skip
        elif name in scope.values and _in_flight(name, scope):
            if name in at.landed:
                self.taken(name, at, span)
            else:
                self.say(_WAITS, f"{name} is in flight here", span, f"wait for it first: wait({name})")
                at.excuse(name)

    def lands(self, name: str, at: _Block, span: Span, how: str) -> None:
        """The one use that ends a flight."""
        if name in at.landed:
            self.taken(name, at, span)
        elif name not in at.own:
            self.say(
                _WAITS,
                f"{name} set out outside the loop, and would be {how} in every trip",
                span,
                "carry it into the loop, and hand the next one on with next",
            )
            at.excuse(name)
        else:
            at.landed[name] = span
            at.flying.pop(name, None)

    def taken(self, name: str, at: _Block, span: Span) -> None:
        self.say(
            _WAITS,
            f"{name} has landed already",
            span,
            Note("it lands here", at.landed[name]),
            "give what wait returns a name, and use that",
        )


def _in_flight(name: str, scope: Scope) -> bool:
    return name in scope.values and scope.values[name][0].in_flight
