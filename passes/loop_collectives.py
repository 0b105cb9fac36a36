"""`loop-collectives`: gathers that feed contractions, and contractions that feed scatters, become loops of rolls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from shardwright.ir.diagnostics import NOWHERE, did_you_mean, fault
from shardwright.ir.digit_orders import orders_in
from shardwright.ir.ops import AllGather, ReduceScatter
from shardwright.ir.program import Func, Let, Loop, Namer, Program, Scope, Statement, names_of
from shardwright.ir.types import Axes, TensorType
from shardwright.ir.verifier import Level
from shardwright.passes.base import Pass
from shardwright.passes.patterns import use_counts
from shardwright.passes.projections import axes_named, functions_named
from shardwright.passes.ring_loops import Dims, RingLoop, Writer
from shardwright.passes.ring_sites import Site, Surroundings, find_sites

SITES = ("all", "gathers", "scatters")


@dataclass(frozen=True)
class LoopCollectives(Pass):
    """All-gathers into contractions, and contractions into reduce-scatters, become loops that a runtime can overlap.

    TODO
    """

    name: ClassVar[str] = "loop-collectives"
    takes: ClassVar[Level] = Level.EXPLICIT
    leaves: ClassVar[Level] = Level.EXPLICIT
    axes: str = "all"
    ways: int = 1
    sites: str = "all"
    values: str = "all"
    func: str = "all"

    def run(self, program: Program) -> Program:
        axes = axes_named("loop-collectives: axes", self.axes, program.mesh)
        chosen = {func.name for func in functions_named("loop-collectives: func", self.func, program)}
        self.check(program)
        dims = Dims(program.dims, program.mesh)
        funcs = tuple(self.looped(program, f, axes, dims) if f.name in chosen else f for f in program.funcs)
        return replace(program, dims=(*program.dims, *dims.added), funcs=funcs)

    def check(self, program: Program) -> None:
        """Raises a `DiagnosticError` for an option that means nothing."""
        if self.ways not in (1, 2):
            raise fault("bad-option", f"loop-collectives: ways is 1 or 2, not {self.ways}", NOWHERE)
        if self.sites not in SITES:
            raise fault("bad-option", f"loop-collectives: sites is {', '.join(SITES)}, not {self.sites}", NOWHERE)
        known = [
            s.result.name
            for func in program.funcs
            for s, _ in func.walk()
            if isinstance(s, Let) and isinstance(s.operation, AllGather | ReduceScatter)
        ]
        for name in () if self.values == "all" else self.values.split("+"):
            if name not in known:
                near = did_you_mean(name, known)
                raise fault(
                    "bad-option",
                    f"loop-collectives: {name} is no result of an all_gather or a reduce_scatter",
                    NOWHERE,
                    f"did you mean {near}?" if near else f"these are {', '.join(known) or 'none'}",
                )

    def wanted(self, site: Site) -> bool:
        """Whether the options ask for this site."""
        named = self.values == "all" or site.collective.result.name in self.values.split("+")
        return named and self.sites in ("all", "gathers" if site.is_gather else "scatters")

    def looped(self, program: Program, func: Func, axes: Axes, dims: Dims) -> Func:
        """The function with its sites as loops, inner blocks first."""
        counts = use_counts(func)
        orders = orders_in(program, func)
        namer = Namer(names_of(func) | set(program.globals))
        sizes = program.sizes(func)

        def visit(body: tuple[Statement, ...], scope: Scope) -> tuple[Statement, ...]:
            inner: list[Statement] = []
            seen = Scope(dict(scope.values), scope.loops)
            for statement in body:
                made = statement
                if isinstance(statement, Loop):
                    made = replace(statement, body=visit(statement.body, seen.inside(statement)))
                if isinstance(statement, Let | Loop):
                    for value in statement.results:
                        seen.define(value)
                inner.append(made)
            block = Surroundings(tuple(inner), seen, counts, orders, sizes, program.mesh, program.state_names)
            sites = chosen([site for site in find_sites(block, axes) if self.wanted(site)])
            return _written(block, sites, self.ways, dims, Writer(program.mesh, {**sizes}, namer), {**orders})

        return replace(func, body=visit(func.body, Scope.of(program, func)))


def chosen(sites: Sequence[Site]) -> list[Site]:
    """The sites to loop: each statement belongs to one at most, those that receive the most bytes come first.

    Where a contraction is fed by one collective and feeds another, one of them overlaps with it.
    """
    made: list[Site] = []
    taken: set[str] = set()
    for site in sorted(sites, key=lambda site: -site.bytes):
        if not taken & site.consumed:
            made.append(site)
            taken |= site.consumed
    return made


def _written(
    block: Surroundings,
    sites: Sequence[Site],
    ways: int,
    dims: Dims,
    writer: Writer,
    orders: dict[str, tuple[str | int, ...]],
) -> tuple[Statement, ...]:
    """The block with loops in place of the sites."""
    consumed = frozenset[str]().union(*(site.consumed for site in sites))
    made: list[Statement] = []
    for i, statement in enumerate(block.body):
        for site in sites:
            if site.place == i:
                out = replace(writer, out=[])
                names = {o for p in site.products for o in p.let.operands if isinstance(o, str)}
                seen = {name: kind for name in names if isinstance(kind := block.scope.type_of(name), TensorType)}
                RingLoop(site, seen, ways, dims, out, orders).write(site.collective.result)
                made.extend(out.out)
        if not (isinstance(statement, Let) and statement.result.name in consumed):
            made.append(statement)
    return tuple(made)
