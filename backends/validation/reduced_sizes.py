"""Programs at sizes as small as their digits, ranges and products allow, the same for all programs that are given.

A dimension is made of segments (`backends.validation.stretches`): ranges that are taken or concatenated, the terms of
its size. Each statement says which segments are as long as which; then all are shortened at once, and ranges, indices
along them and sizes that functions override are rewritten with them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.backends.validation.stretches import (
    Run,
    Segments,
    Stretch,
    between,
    equate,
    length,
    short,
    short_place,
)
from shardwright.ir import ops
from shardwright.ir.digit_orders import orders_in
from shardwright.ir.digits import Order, order_size
from shardwright.ir.elaboration.elaborate import elaborate
from shardwright.ir.operation import Operation
from shardwright.ir.program import DimInfo, Func, Let, Loop, Program, Scope, SetState, Statement, Value
from shardwright.ir.text.unparse import unparse
from shardwright.ir.types import ValueType
from shardwright.ir.verification.extents import sized_values
from shardwright.ir.walk import operand_names, with_body

Runs = Mapping[str, Run]
"""The extents of a value by the names of its dimensions."""


def at_reduced_sizes(*programs: Program) -> tuple[Program, ...]:
    """The programs at sizes that keep their digits and no more, unlike where they may be.

    Dimensions, functions and weights of one name are one in all programs. Raises a `DiagnosticError` where a program is
    not well formed at the sizes that were found.
    """
    dimensions = _Dimensions(programs)
    analyses = [_Analysis(program, dimensions) for program in programs]
    for analysis in analyses:
        analysis.gather()
    declared = [dimensions.run(dim.name) for program in programs for dim in program.dims]
    numbered = [static.run for analysis in analyses for static in analysis.numbered()]
    dimensions.segments.shorten([*declared, *dimensions.runs.values(), *numbered])
    return tuple(elaborate(unparse(analysis.rewritten())) for analysis in analyses)


class _Dimensions:
    """The dimensions of several programs, those that functions override among them."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self.segments = Segments()
        self.infos: dict[str, DimInfo] = {}
        self.overrides: dict[str, dict[str, int]] = {}
        for program in programs:
            for dim in program.dims:
                self.infos.setdefault(dim.name, dim)
            for func in program.funcs:
                self.overrides.setdefault(func.name, {}).update(func.overrides)
        self.runs: dict[tuple[str, str | None], Run] = {}
        self.extents: dict[int, Run] = {}

    def run(self, dim: str, func: str | None = None) -> Run:
        """A dimension's size as a function sees it."""
        own = func if func is not None and dim in self.overrides[func] else None
        if (dim, own) not in self.runs:
            self.runs[dim, own] = self._made(self.infos[dim], own)
        return self.runs[dim, own]

    def counted(self, extent: int) -> Run:
        """The run of indices up to a number that a statement writes, one in all programs."""
        return self.extents.setdefault(extent, (Stretch(extent),))

    def _made(self, dim: DimInfo, func: str | None) -> Run:
        size = dim.size if func is None else self.overrides[func][dim.name]
        terms = [self._term(term, func) for term in dim.expression or ()]
        made = tuple(segment for term in terms for segment in term)
        return made if length(made) == size else (Stretch(size),)  # a function may give what follows elsewhere

    def _term(self, term: tuple[str | int, ...], func: str | None) -> Run:
        if len(term) == 1 and isinstance(term[0], str):
            return self.run(term[0], func)
        parts = [self.run(factor, func) if isinstance(factor, str) else _constant(factor) for factor in term]
        made = (Stretch(math.prod(map(length, parts))),)
        self.segments.product(made, parts)
        return made


def _constant(size: int) -> Run:
    return (Stretch(size, keeps=True),)


@dataclass(frozen=True)
class _Static:
    """The numbers of an operation that are places along a run."""

    run: Run
    places: tuple[int, ...]


class _Analysis:
    """The demands of one program on its dimensions, and the program at other sizes."""

    def __init__(self, program: Program, dimensions: _Dimensions) -> None:
        self.program = program
        self.dimensions = dimensions
        self.segments = dimensions.segments
        self.statics: dict[str, list[_Static | None]] = {}
        self.known: dict[str, Runs] = {}
        self.func = program.funcs[0]
        self.orders: dict[str, Order] = {}
        self.sizes: dict[str, int] = {}

    # ------------------------------------------------------------ what is asked

    def gather(self) -> None:
        for func in self.program.funcs:
            self.func, self.orders, self.sizes = func, orders_in(self.program, func), self.program.sizes(func)
            self.statics[func.name] = []
            for dim, order in self.orders.items():
                self.segments.divisible(self.declared(dim), order_size(order, self.program.mesh))
            env: dict[str, Runs] = {}
            for value in (*self.program.weights, *self.program.state, *func.params):
                env[value.name] = self.known[value.name] = self.edge(value.type)
            self.block(func.body, Scope.of(self.program, func), env)
            for name, kind in zip(func.returns, func.results, strict=True):
                _meet(env[name], self.edge(kind))
            for dim, name in sized_values(self.program, func):
                equate(self.known[name][dim], self.declared(dim))

    def numbered(self) -> Iterator[_Static]:
        for statics in self.statics.values():
            yield from filter(None, statics)

    def declared(self, dim: str) -> Run:
        return self.dimensions.run(dim, self.func.name)

    def edge(self, kind: ValueType) -> Runs:
        """The extents of what has declared sizes."""
        runs = {name: self.declared(name) for name in kind.names}
        self.typed(kind, runs)
        return runs

    def define(self, value: Value, runs: Runs, scope: Scope, env: dict[str, Runs]) -> None:
        env[value.name] = self.known[value.name] = runs
        self.typed(value.type, runs)
        scope.define(value)

    def typed(self, kind: ValueType, runs: Runs) -> None:
        """The chips that split a value divide its extents, and so do the digits that say how."""
        mesh = self.program.mesh
        for dim, axes in zip(kind.dims, kind.splits, strict=True):
            if axes:
                asked = math.lcm(mesh.product(axes), order_size(self.orders[dim.name], mesh))
                self.segments.divisible(runs[dim.name], asked)

    def block(self, body: tuple[Statement, ...], scope: Scope, env: dict[str, Runs]) -> None:
        for statement in body:
            match statement:
                case Let():
                    operands = [self.view(name, scope, env) for name in operand_names(statement.operands)]
                    for value, runs in zip(statement.results, self.let(statement, operands), strict=True):
                        self.define(value, runs, scope, env)
                case SetState():
                    _meet(self.view(statement.operand, scope, env), self.view(statement.state, scope, env))
                case Loop():
                    self.loop(statement, scope, env)
                case _:
                    pass

    def view(self, name: str, scope: Scope, env: Mapping[str, Runs]) -> Runs:
        """The extents of a value as seen here; a loop around takes as many slices as it makes trips."""
        kind, outside = scope.values[name]
        for loop in scope.loops[outside:]:
            if loop.dim in kind.names and loop.dim in env[name]:
                equate(env[name][loop.dim], self.declared(loop.dim))
        return {dim: env[name][dim] for dim in scope.type_of(name).names} if name in env else {}

    def loop(self, loop: Loop, scope: Scope, env: dict[str, Runs]) -> None:
        if any(isinstance(let, Let) and isinstance(let.operation, ops.Roll) for let in loop.body):
            self.segments.keep(self.declared(loop.dim))  # a trip less than there are chips in the ring
        inner = dict(env)
        carried = [self.view(carry.initial, scope, env) for carry in loop.carries]
        inside = scope.inside(loop)
        for carry, runs in zip(loop.carries, carried, strict=True):
            self.define(carry.value, runs, inside, inner)
        self.block(loop.body, inside, inner)
        for name, result, runs in zip(loop.following, loop.results, carried, strict=True):
            _meet(self.view(name, inside, inner), runs)
            self.define(result, runs, scope, env)

    # ------------------------------------------------------------ operations

    def let(self, statement: Let, operands: Sequence[Runs]) -> Sequence[Runs]:
        """The extents of the results."""
        operation = statement.operation
        static: _Static | None = None
        match operation:
            case ops.Take(dim=dim, start=start, stop=stop):
                run = operands[0][dim]
                taken = between(run, start, start + 1 if stop is None else stop)
                static = _Static(run, (start,) if stop is None else (start, stop))
                self.blocks(run, operation.by)
                results = [{**operands[0], dim: taken}]
            case ops.Concat(dim=dim):
                _meet(*({d: run for d, run in runs.items() if d != dim} for runs in operands))
                joined = tuple(segment for runs in operands for segment in runs[dim])
                self.blocks(joined, operation.by)
                results = [{**operands[0], dim: joined}]
            case ops.Topk(dim=dim, target=target, k=k):
                run = operands[0][dim]
                self.blocks(run, operation.by)
                greatest = _constant(k)
                self.segments.room(run, greatest)
                results = [{**operands[0], target: greatest}] * 2
            case ops.Iota(dim=dim, extent=extent):
                run = self.declared(dim) if extent is None else self.dimensions.counted(extent)
                static = None if extent is None else _Static(run, (extent,))
                results = [{dim: run}]
            case ops.Rename(pairs=pairs):
                names = dict(pairs)
                results = [{names.get(dim, dim): run for dim, run in operands[0].items()}]
            case ops.Split(source=source, parts=parts):
                made = {part: self.declared(part) for part in parts}
                self.segments.product(operands[0][source], list(made.values()))
                results = [{**operands[0], **made}]
            case ops.Merge(parts=parts, target=target):
                factors = [operands[0][part] for part in parts]
                run = (Stretch(math.prod(map(length, factors))),)
                self.segments.product(run, factors)
                results = [{**operands[0], target: run}]
            case ops.Update(dim=dim):
                self.cache(operation, operands)
                results = [operands[0]]
            case _:
                self.asked(statement, operands)
                _meet(*operands)
                known = {dim: run for runs in reversed(operands) for dim, run in runs.items()}
                results = [known for _ in statement.results]
        self.statics[self.func.name].append(static)
        return [self.of(value, runs) for value, runs in zip(statement.results, results, strict=True)]

    def of(self, value: Value, known: Runs) -> Runs:
        """The extents of a value that has some dimensions of its operands, and others that are declared."""
        return {dim: known[dim] if dim in known else self.declared(dim) for dim in value.type.names}

    def blocks(self, run: Run, by: Sequence[str]) -> None:
        self.segments.divisible(run, self.program.mesh.product(by))

    def cache(self, update: ops.Update, operands: Sequence[Runs]) -> None:
        """A cache has room for what is written twice; of pages a row has enough."""
        cache, new, *pos = operands
        if update.page is not None:
            table = {dim: run for dim, run in pos[-1].items() if dim not in new}
            for run in (cache[update.dim], *table.values()):
                self.segments.keep(run)
            _meet(new, *pos, {dim: run for dim, run in cache.items() if dim in new})
            return
        rest = {dim: run for dim, run in cache.items() if dim != update.dim}
        _meet(rest, {dim: run for dim, run in new.items() if dim in rest}, *pos)
        written = [run for dim, run in new.items() if dim not in rest]
        self.segments.room(cache[update.dim], written[0] if written else _constant(1))

    def asked(self, statement: Let, operands: Sequence[Runs]) -> None:
        """The demands of operations on extents beside their being equal."""
        match statement.operation:
            case ops.Rotary(dim=dim, rotated=rotated):
                self.segments.divisible(operands[0][dim], 2)
                given = len(statement.operands) > 2  # frequencies, one for each pair
                for run in (
                    *([operands[0][dim]] if rotated or given else []),
                    *(run for name, run in operands[-1].items() if given and name not in operands[0]),
                ):
                    self.segments.keep(run)
            case ops.Layernorm(dims=dims) | ops.Rmsnorm(dims=dims):
                for dim in dims:
                    run = operands[0][dim]
                    if len(dims) == 1 and length(run) == self.sizes[dim]:
                        equate(run, self.declared(dim))  # decomposed it divides by the declared size
                    else:
                        self.segments.keep(run)  # by a number
            case _:
                pass

    # ------------------------------------------------------------ the program at other sizes

    def rewritten(self) -> Program:
        """The program with the numbers of other sizes; its types are still those of its own."""
        dims = tuple(
            replace(dim, size=short(self.dimensions.run(dim.name)), expression=None) for dim in self.program.dims
        )
        return replace(self.program, dims=dims, funcs=tuple(map(self._func, self.program.funcs)))

    def _func(self, func: Func) -> Func:
        statics = iter(self.statics[func.name])
        overrides = tuple((name, short(self.dimensions.run(name, func.name))) for name, _ in func.overrides)
        return replace(func, overrides=overrides, body=_with_statics(func.body, statics))


def _meet(*values: Runs) -> None:
    """Values have equal extents along the dimensions that they share."""
    known: dict[str, Run] = {}
    for runs in values:
        for dim, run in runs.items():
            equate(known.setdefault(dim, run), run)


def _with_statics(body: tuple[Statement, ...], statics: Iterator[_Static | None]) -> tuple[Statement, ...]:
    """The statements with their numbers, which come in the order of operations."""

    def changed(statement: Statement) -> Statement:
        if not isinstance(statement, Let):
            return with_body(statement, lambda body: _with_statics(body, statics))
        static = next(statics)
        return statement if static is None else replace(statement, operation=_with_static(statement.operation, static))

    return tuple(map(changed, body))


def _with_static(operation: Operation, static: _Static) -> Operation:
    places = [short_place(static.run, place) for place in static.places]
    match operation:
        case ops.Take(stop=None):
            return replace(operation, start=places[0])
        case ops.Take():
            return replace(operation, start=places[0], stop=places[1])
        case ops.Iota():
            return replace(operation, extent=places[0])
        case _:
            raise AssertionError(operation)
