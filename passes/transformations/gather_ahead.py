"""`gather-ahead`: loops gather the weights of their next trip while they compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from shardwright.ir.ops import AllGather, Start, Take, Wait
from shardwright.ir.program import Carry, Free, Func, Let, Loop, Marking, Program, Statement, Value
from shardwright.ir.rewriter import Rewriter
from shardwright.ir.verification.verifier import Level
from shardwright.ir.walk import Site, map_sites
from shardwright.passes.base import Pass


@dataclass(frozen=True)
class GatherAhead(Pass):
    """All-gathers of weights in a loop are begun a trip ahead, and go on beside what the loop computes.

        y = loop[N](h: BE_x = x) {
          w_gathered = all_gather[x](w)
          next h @ w_gathered
        }

    becomes

        w_first = take[N, 0](w)
        w_begun = start(all_gather[x](w_first))
        y, w_rest = loop[N](h: BE_x = x, w_now: EF in flight = w_begun) {
          w_next = start(all_gather[x, ahead=N](w))
          w_gathered = wait(w_now)
          next h @ w_gathered, w_next
        }
        free w_rest

    A chip holds what two trips gather, and the links carry zeros after the last. Takes explicit programs; only weights
    that the loop itself takes slices of are gathered ahead. Collectives that wait for what a trip computes stay where
    they are: `loop-collectives` is for those.
    """

    name: ClassVar[str] = "gather-ahead"
    takes: ClassVar[Level] = Level.EXPLICIT
    leaves: ClassVar[Level] = Level.EXPLICIT

    def run(self, program: Program) -> Program:
        return replace(program, funcs=tuple(_with_gathers_ahead(program, func) for func in program.funcs))


def _with_gathers_ahead(program: Program, func: Func) -> Func:
    weights = {value.name for value in program.weights}
    writer = Rewriter.of(program, func)

    def gathered(statement: Statement, site: Site, loop: Loop) -> bool:
        match statement:
            case Let(operation=AllGather(ahead=()), operands=(str() as name,)):
                return name in weights and loop.dim in site.scope.type_of(name).names
            case _:
                return False

    def rewrite(site: Site) -> Sequence[Statement]:
        loop = site.statement
        if not isinstance(loop, Loop) or program.sizes(func)[loop.dim] == 1:
            return (loop,)
        ahead = [_Gather.of(s, loop, site, writer) for s in loop.body if isinstance(s, Let) and gathered(s, site, loop)]
        if not ahead:
            return (loop,)
        waits = {gather.statement.result.name: gather.wait for gather in ahead}
        body = [waits.get(s.results[0].name, s) if isinstance(s, Let) else s for s in loop.body]
        looped = replace(
            loop,
            carries=(*loop.carries, *(Carry(gather.now, gather.begun.name) for gather in ahead)),
            body=(*(gather.next for gather in ahead), *body),
            following=(*loop.following, *(gather.following.name for gather in ahead)),
            results=(*loop.results, *(gather.rest for gather in ahead)),
        )
        left = Free(tuple(gather.rest.name for gather in ahead), loop.span)
        return (*(s for gather in ahead for s in gather.before), looped, left)

    return map_sites(program, func, rewrite)


@dataclass(frozen=True)
class _Gather:
    """A gather in a loop, and its values in flight: before the loop, in it, for its next trip, and after it."""

    statement: Let
    loop: Loop
    first: Value
    begun: Value
    now: Value
    following: Value
    rest: Value

    @staticmethod
    def of(statement: Let, loop: Loop, site: Site, writer: Rewriter) -> _Gather:
        source = str(statement.operands[0])
        writer.source, writer.span = source, statement.span
        flying = replace(statement.result.type, in_flight=True)
        first = writer.value(f"{source}_first", site.scope.type_of(source).without_dim(loop.dim))
        begun, now, following, rest = (
            writer.value(f"{source}_{word}", flying, Marking.FOUND) for word in ("begun", "now", "next", "rest")
        )
        return _Gather(statement, loop, first, begun, now, following, rest)

    @property
    def gather(self) -> AllGather:
        assert isinstance(self.statement.operation, AllGather)
        return self.statement.operation

    @property
    def before(self) -> tuple[Statement, ...]:
        span = self.statement.span
        return (
            Let((self.first,), Take(self.loop.dim, 0), self.statement.operands, span),
            Let((self.begun,), Start(self.gather), (self.first.name,), span),
        )

    @property
    def next(self) -> Statement:
        ahead = replace(self.gather, ahead=(self.loop.dim,))
        return Let((self.following,), Start(ahead), self.statement.operands, self.statement.span)

    @property
    def wait(self) -> Statement:
        return Let(self.statement.results, Wait(), (self.now.name,), self.statement.span)
