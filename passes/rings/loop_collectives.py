"""`loop-collectives`: gathers that feed contractions, and contractions that feed scatters, become loops of rolls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.programs.program_cost import cost_of
from shardwright.ir.diagnostics import NOWHERE, fault, nearest
from shardwright.ir.digit_orders import orders_in
from shardwright.ir.ops import AllGather, ReduceScatter
from shardwright.ir.program import Func, Let, Loop, Program, Scope, Statement
from shardwright.ir.rewriter import Rewriter
from shardwright.ir.types import Axes, TensorType
from shardwright.ir.verification.verifier import Level
from shardwright.ir.walk import lets, statements, use_counts, values_in, with_body
from shardwright.ir.weight_source import WeightSource
from shardwright.passes.base import Pass
from shardwright.passes.rings.gathers import GatherLoop
from shardwright.passes.rings.scatters import ScatterLoop
from shardwright.passes.rings.shuffling import ShuffledWeight, ShuffledWeights, Shuffling
from shardwright.passes.rings.sites import RingSite, Surroundings, find_sites
from shardwright.passes.rings.writer import Dims, RingWriter
from shardwright.passes.transformations.projections import axes_named, functions_named

SITES = ("all", "gathers", "scatters")

Stored = tuple[ShuffledWeight, TensorType]
"""How a weight is stored, and the type that it then has."""


@dataclass(frozen=True)
class LoopCollectives(Pass):
    """All-gathers into contractions, and contractions into reduce-scatters, become loops that a runtime can overlap.

        x_gathered :~ BLE = all_gather[yz](x)                    # x: BLE_yz, K chips along y and z
        h :~ BLF_yz = x_gathered @[E] w_in

    becomes, with E = S E1 and F = S F1, S the digits of y and z,

        x_last, h_last = loop[I as i](x_up = x_blocks, h_sum = 0) {      # K - 1 trips, and one after them
          x_next :~ BLS_yzE1 = roll[yz, over=S, shift=1](x_up)
          w_up :~ S_yzE1F1 = lookup[R, wrap=true](w_in_blocks, chip - i) # E's block s - i, which chip s has now
          h :~ BLS_yzF1 = x_up @[E1] w_up
          next x_next, h_sum + h
        }

    Wang et al. 2023, section 3, and Pope et al. 2022, section 3.5. A roll takes what the loop carries, and so waits for
    no product of its trip; each chip receives what it did for the collective, byte for byte. Where the gathered
    dimension stays in the result, the loop writes the result block by block; before a reduce-scatter, sums go round,
    and each chip adds its addend. Several axes whose digits follow each other make one ring, others loops in loops.
    A gather has to be read by contractions alone, perhaps through conversions; a scatter to read contractions, or sums
    of contractions.

    `ways=2` cuts what goes round into halves that go opposite ways. `sites` is `all`, `gathers` or `scatters`, `values`
    names results of collectives, joined by `+`, `axes` the axes that may become rings. `shuffle=true` stores weights by
    the trips in which they are read, where nothing else reads them (see `passes.rings.shuffling`).
    """

    name: ClassVar[str] = "loop-collectives"
    takes: ClassVar[Level] = Level.EXPLICIT
    leaves: ClassVar[Level] = Level.EXPLICIT
    axes: str = "all"
    ways: int = 1
    sites: str = "all"
    values: str = "all"
    shuffle: bool = False
    func: str = "all"
    chip: str = "none"

    def run(self, program: Program) -> Program:
        self.check(program)
        return self.rewritten(program)[0]

    def weights(self, program: Program, source: WeightSource) -> WeightSource:
        return ShuffledWeights(shuffling(program, self), source)

    def rewritten(self, program: Program) -> tuple[Program, Shuffling]:
        """The program with its loops, and how its weights are stored."""
        if not self.shuffle:
            return self.looped(program, frozenset())[0], ()
        _, found = self.looped(program, frozenset())
        uses = Counter(name for func in program.funcs for name in Counter(use_counts(func)).elements())
        alike = {name for name in found if len(found[name]) == uses[name] and len(set(found[name])) == 1}
        made, found = self.looped(program, frozenset(alike))
        recipe = tuple(found[value.name][0][0] for value in program.weights if value.name in alike)
        return made, recipe

    def looped(self, program: Program, shuffled: frozenset[str]) -> tuple[Program, dict[str, list[Stored]]]:
        """The program with its loops, and how each weight could be stored, once for each time that it is read so."""
        axes = axes_named("loop-collectives: axes", self.axes, program.mesh)
        chosen = {func.name for func in functions_named("loop-collectives: func", self.func, program)}
        dims = Dims(program.dims, program.mesh)
        found: dict[str, list[Stored]] = {}
        funcs = tuple(
            self.priced(program, f).looped_func(program, f, axes, dims, shuffled, found) if f.name in chosen else f
            for f in program.funcs
        )
        weights = tuple(
            replace(value, type=found[value.name][0][1]) if value.name in shuffled else value
            for value in program.weights
        )
        used = {dim for value in weights for dim in value.type.names} | {d for f in funcs for d in _dims_in(f)}
        added = tuple(dim for dim in dims.added if dim.name in used)
        return replace(program, dims=(*program.dims, *added), weights=weights, funcs=funcs), found

    def check(self, program: Program) -> None:
        """Raises a `DiagnosticError` for an option that means nothing."""
        if self.ways not in (1, 2):
            raise fault("bad-option", f"loop-collectives: ways is 1 or 2, not {self.ways}", NOWHERE)
        if self.sites not in SITES:
            raise fault(
                "bad-option",
                f"loop-collectives: sites is {SITES[0]}, {SITES[1]} or {SITES[2]}, not {self.sites}",
                NOWHERE,
            )
        known = _collectives(program)
        for name in () if self.values == "all" else self.values.split("+"):
            if name not in known:
                raise fault(
                    "bad-option",
                    f"loop-collectives: {name} is no result of an all_gather or a reduce_scatter",
                    NOWHERE,
                    nearest(name, known) or f"these are {', '.join(known) or 'none'}",
                )

    def priced(self, program: Program, func: Func) -> LoopCollectives:
        """These options with the sites of a function that pay on the chip; the same options where none is named.

        Sites are tried in the order of the program, and stay looped where that lowers the function's predicted time.
        """
        if self.chip == "none":
            return self
        chip = load_chip(self.chip)
        kept = self.paying(program, func, lambda made, looped: cost_of(made, looped, chip).time_s)
        return replace(self, chip="none", values="+".join(kept))

    def paying(self, program: Program, func: Func, price: Callable[[Program, Func], float]) -> list[str]:
        """The results of a function's collectives that, looped one after the other, each lower its price."""
        plain = replace(self, chip="none", func=func.name, shuffle=False)
        kept: list[str] = []
        best = price(program, func)
        for name in _collectives(program, func):
            if self.values != "all" and name not in self.values.split("+"):
                continue
            made = replace(plain, values="+".join([*kept, name])).looped(program, frozenset())[0]
            time = price(made, made.func(func.name))
            if time < best:
                best, kept = time, [*kept, name]
        return kept

    def wanted(self, site: RingSite) -> bool:
        """Tells whether the options ask for this site."""
        named = self.values == "all" or site.collective.result.name in self.values.split("+")
        return named and self.sites in ("all", "gathers" if site.is_gather else "scatters")

    def looped_func(
        self,
        program: Program,
        func: Func,
        axes: Axes,
        dims: Dims,
        shuffled: frozenset[str],
        found: dict[str, list[Stored]],
    ) -> Func:
        """The function with its sites as loops, inner blocks first."""
        counts = use_counts(func)
        orders = orders_in(program, func)
        rewriter = Rewriter.of(program, func)
        sizes = program.sizes(func)
        weights = {value.name: value.type for value in program.weights if isinstance(value.type, TensorType)}

        def visit(body: tuple[Statement, ...], scope: Scope) -> tuple[Statement, ...]:
            inner: list[Statement] = []
            seen = Scope(dict(scope.values), scope.loops)
            for statement in body:
                inside = seen.inside(statement) if isinstance(statement, Loop) else seen
                inner.append(with_body(statement, lambda body, at=inside: visit(body, at)))
                for value in statement.results:
                    seen.define(value)
            block = Surroundings(tuple(inner), seen, counts, orders, sizes, program.mesh, program.state_names)
            sites = chosen([site for site in find_sites(block, axes) if self.wanted(site)])
            writer = RingWriter(program.mesh, {**sizes}, rewriter)

            def loop(site: RingSite) -> list[Statement]:
                names = {name for product in site.products for name in product.sources}
                known = {name: kind for name in names if isinstance(kind := seen.type_of(name), TensorType)}
                out = writer.aside()
                out.rewriter.source = site.collective.result.name
                made = GatherLoop if site.is_gather else ScatterLoop
                ring = made(site, known, self.ways, dims, out, orders, weights, shuffled)
                ring.write(site.collective.result)
                for stored in ring.recipes:
                    found.setdefault(stored[0].weight, []).append(stored)
                return out.rewriter.out

            return _written(block.body, sites, loop)

        return replace(func, body=visit(func.body, Scope.of(program, func)))


def _collectives(program: Program, *funcs: Func) -> list[str]:
    """The results of gathers and scatters, in the order of the program."""
    return [let.result.name for let, _ in lets(program, *funcs) if isinstance(let.operation, AllGather | ReduceScatter)]


def chosen(sites: Sequence[RingSite]) -> list[RingSite]:
    """The sites to loop: each statement belongs to one at most, those that receive the most bytes come first.

    Where a contraction is fed by one collective and feeds another, one of them overlaps with it.
    """
    made: list[RingSite] = []
    taken: set[str] = set()
    for site in sorted(sites, key=lambda site: -site.bytes):
        if not taken & site.consumed:
            made.append(site)
            taken |= site.consumed
    return made


def _written(
    body: tuple[Statement, ...], sites: Sequence[RingSite], loop: Callable[[RingSite], list[Statement]]
) -> tuple[Statement, ...]:
    """A block with loops in place of the sites."""
    consumed = frozenset[str]().union(*(site.consumed for site in sites))
    made: list[Statement] = []
    for i, statement in enumerate(body):
        for site in sites:
            if site.place == i:
                made.extend(loop(site))
        if not (isinstance(statement, Let) and statement.result.name in consumed):
            made.append(statement)
    return tuple(made)


def _dims_in(func: Func) -> set[str]:
    """The dimensions that a function's values have, or its loops run along."""
    loops = {statement.dim for statement in statements(func.body) if isinstance(statement, Loop)}
    return loops | {dim for value in values_in(func.body) for dim in value.type.names}


def shuffling(program: Program, options: LoopCollectives) -> Shuffling:
    """How the pass with these options stores the weights of an explicit program (given as it is before the pass).

    A weight is shuffled where loops alone read it, all in the same way: `passes.rings.shuffling.shuffle` makes the
    arrays.
    """
    options.check(program)
    return options.rewritten(program)[1]
