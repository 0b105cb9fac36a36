"""`topk` over a dimension whose layout is open: whether it is in stages, and by which blocks, is chosen too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, prod
from typing import TypeVar

from shardwright.ir.ops import Lookup, Topk
from shardwright.ir.program import Func, Let, Loop, Program, Statement, Value
from shardwright.ir.types import Axes, TensorType, axis_set
from shardwright.ir.walk import DefinitionPath, Site, lets, map_sites, reads, sites, statements
from shardwright.passes.compiling.decompose import topk_blocks, topk_in_stages

C = TypeVar("C")

Blocks = dict[DefinitionPath, Axes]
"""The axes whose blocks give candidates, by where the values are defined; none where they are in one."""

_MOST_TRIES, _SMALL = 16, 50
"""Of so many ways to write all of them each is tried, in programs of so many operations; else those that are likely to
be best."""


@dataclass(frozen=True)
class Staged:
    """A `topk` in stages: candidates of each block, the greatest of these and, where they are used, their indices.

    `others` are the axes of other blocks that might be, none where it is in one operation. With the blocks of the axes
    that split the dimension there are fewest candidates.
    """

    key: DefinitionPath
    trips: int
    operand: Value
    candidates: Let
    choice: Let
    lookup: Let | None
    others: tuple[Axes, ...]

    @property
    def blocks(self) -> Axes:
        return _topk(self.candidates).by

    @property
    def split_blocks(self) -> Axes:
        """The axes over which the candidates are split."""
        kind = self.candidates.result.type
        return kind.splits[kind.names.index(_topk(self.candidates).target)] or ()

    @property
    def in_one(self) -> Let:
        """The one operation in their place."""
        values, places = self.choice.results
        results = (values, places if self.lookup is None else self.lookup.result)
        operation = replace(_topk(self.choice), dim=_topk(self.candidates).dim)
        return replace(self.choice, results=results, operation=operation, operands=(self.operand.name,))

    def alone(self, program: Program, blocks: Axes, split: Axes) -> Program:
        """The operation by itself on a value split over these axes, with blocks of some, and all else whole."""
        let, name = self.in_one, str(self.key[0])
        operand = replace(self.operand, type=_split(self.operand, _topk(let).dim, split))
        func = replace(
            program.func(name),
            params=(operand,),
            body=(replace(let, results=tuple(replace(v, type=_split(v)) for v in let.results)),),
            returns=tuple(value.name for value in let.results),
            results=tuple(_split(value) for value in let.results),
        )
        one = replace(program, weights=(), state=(), funcs=(func,))
        here = (name, let.result.name)
        staged = topk_in_stages(one, {here: blocks})
        stages = {value.name: split for made in staged_in(staged, {here}) for value in made.candidates.results}

        def typed(site: Site) -> tuple[Statement, ...]:
            let = site.statement
            assert isinstance(let, Let)
            target = _topk(let).target if isinstance(let.operation, Topk) else None
            made = (replace(v, type=_split(v, target, stages.get(v.name, ()))) for v in let.results)
            return (replace(let, results=tuple(made)),)

        return replace(staged, funcs=tuple(map_sites(staged, func, typed) for func in staged.funcs))

    def beyond(self, other: Axes, program: Program, price: Callable[[Program], float]) -> float:
        """The most that these stages cost beyond others on the same layouts; infinite where they lack blocks."""
        if not set(other) <= set(self.blocks):
            return inf
        mine, others = (price(self.alone(program, blocks, other)) for blocks in (self.blocks, other))
        return self.trips * max(0.0, mine - others)


def best_over_stages(
    program: Program,
    choose: Callable[[Program, C | None], C],
    reached: Callable[[C], tuple[Program, float, float]],
    price: Callable[[Program], float],
    enough: float = 0.0,
) -> tuple[C, float]:
    """The best that `choose` finds, whatever the blocks of candidates, and a bound of all.

    `choose` is given what was found before; `reached` gives the program with its layouts, its total and its bound. What
    the stages of `decompose` cost beyond others, by the `price` of such an operation alone, bounds what is not tried.
    """
    best = choose(program, None)
    placed, total, least = reached(best)
    staged: list[Staged] = []
    bounds, ways = [least], 1
    for each in staged_in(program):
        beyond = {other: each.beyond(other, program, price) for other in each.others}
        least -= max(beyond.values(), default=0.0)
        staged.append(replace(each, others=tuple(other for other, cost in beyond.items() if cost)))
        ways *= 1 + len(staged[-1].others)
    few = ways <= _MOST_TRIES and sum(1 for _ in lets(program)) <= _SMALL
    for blocks in _ways(staged, placed, few=few):
        if least >= total * (1 - enough):
            break
        found = choose(with_blocks(program, staged, blocks), best)
        _, there, bound = reached(found)
        bounds.append(bound)
        if there < total:
            best, total = found, there
    if len(bounds) == ways:
        least = max(least, min(bounds))
    return best, min(total, max(0.0, least))


def _ways(staged: Sequence[Staged], placed: Program, *, few: bool) -> Iterator[Blocks]:
    """First the blocks over which a program's candidates are split, then all in one, then others where they are few."""
    first = tuple(each.blocks for each in staged)
    tight = {each.key: each.split_blocks for each in staged_in(placed, {each.key for each in staged})}
    near, one = (
        tuple(by if (by := wanted.get(each.key, ())) in each.others else each.blocks for each in staged)
        for wanted in (tight, {})
    )
    every = product(*((each.blocks, *each.others) for each in staged)) if few else ()
    for blocks in dict.fromkeys((near, one, *every)):
        if blocks != first:
            yield {each.key: by for each, by in zip(staged, blocks, strict=True)}


def staged_in(program: Program, only: Iterable[DefinitionPath] | None = None) -> tuple[Staged, ...]:
    """Each `topk` that `decompose` wrote in stages because the layout of its operand is open, or else these."""
    return tuple(made for func in program.funcs for made in _staged(program, func, only))


def with_blocks(program: Program, staged: Sequence[Staged], blocks: Mapping[DefinitionPath, Axes]) -> Program:
    """The program with other blocks of candidates; dimensions that only the candidates had are gone."""
    written = {each.key: each.in_one for each in staged}
    gone = {(*s.key[:-1], let.result.name) for s in staged for let in (s.candidates, s.lookup) if let is not None}

    def rewrite(site: Site) -> tuple[Statement, ...]:
        if not isinstance(let := site.statement, Let):
            return (let,)
        path = site.path(let.result.name)
        return () if path in gone else (written.get(path, let),)

    made = replace(program, funcs=tuple(map_sites(program, func, rewrite) for func in program.funcs))
    left = {dim for let, _ in lets(made) for value in let.results for dim in value.type.names}
    among = {_topk(each.candidates).target for each in staged} - left
    made = replace(made, dims=tuple(dim for dim in program.dims if dim.name not in among))
    return topk_in_stages(made, blocks)


def staged_as_in(program: Program, placed: Program) -> Program:
    """A program after `decompose` with the blocks of candidates that `placed` has, where its layouts are chosen."""
    staged = staged_in(program)
    chosen = {each.key: each.blocks for each in staged_in(placed, {each.key for each in staged})}
    return with_blocks(program, staged, {each.key: chosen.get(each.key, ()) for each in staged}) if staged else program


def _staged(program: Program, func: Func, only: Iterable[DefinitionPath] | None) -> Iterator[Staged]:
    stages: dict[DefinitionPath, tuple[Value, Let]] = {}
    for site in sites(program, func):
        let, scope = site.statement, site.scope
        match let:
            case Let(operation=Topk(by=by), operands=(str(operand),)) if by:
                stages[site.path(let.result.name)] = Value(operand, scope.type_of(operand)), let
            case Let(operation=Topk(), operands=(str(name),)) if site.path(name) in stages:
                key, (operand, candidates) = site.path(let.result.name), stages[site.path(name)]
                first, kind = _topk(candidates), operand.type
                where, places = candidates.results[1].name, let.results[1].name
                lookup, uses = _uses(func, site, where, places)
                alone = (uses[name], uses[where], uses[places]) == ((1, 0, 0) if lookup is None else (1, 1, 1))
                if not alone or site.path(name)[:-1] != key[:-1]:
                    continue
                is_open = kind.splits[kind.names.index(first.dim)] is None
                written = candidates.result.origin[:1] == (let.result.name,) and is_open
                if written if only is None else key in only:
                    trips = prod(program.sizes(func)[loop.dim] for loop in scope.loops)
                    whole = replace(_topk(let), dim=first.dim)
                    others = tuple(by for by in (*topk_blocks(program, func, kind, whole), ()) if by != first.by)
                    yield Staged(key, trips, operand, candidates, let, lookup, others)
            case _:
                pass


def _uses(func: Func, site: Site, *looked_up: str) -> tuple[Let | None, Counter[str]]:
    """The look-up of these values in the block of a statement, if there is one, and how often names are used there."""
    around = site.scope.loops[-1] if site.scope.loops else func
    after = around.following if isinstance(around, Loop) else around.returns
    within = list(statements(around.body))
    uses = Counter([*after, *(name for statement in within for name in reads(statement))])
    lookups = (s for s in within if isinstance(s, Let) and isinstance(s.operation, Lookup) and s.operands == looked_up)
    return next(lookups, None), uses


def _topk(let: Let) -> Topk:
    assert isinstance(let.operation, Topk)
    return let.operation


def _split(value: Value, dim: str | None = None, axes: Axes = ()) -> TensorType:
    """The type of a value with this dimension split, and whole on every chip but for that."""
    shape = value.type.shape
    return TensorType(shape.dtype, shape.dims, tuple(axis_set(axes) if d.name == dim else () for d in shape.dims))
