"""`split-collectives`: gathers and reduce-scatters over many axes, as several over few."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

from shardwright.cost.movements.movement import type_after
from shardwright.ir.digit_orders import orders_in, strided_dims
from shardwright.ir.digits import Order, blocks_order, common_order
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import AllGather, ReduceScatter
from shardwright.ir.program import Func, Let, Program, Statement
from shardwright.ir.rewriter import Rewriter
from shardwright.ir.types import TensorType, axis_set
from shardwright.ir.verification.verifier import Level
from shardwright.ir.walk import Site, map_sites
from shardwright.passes.base import Pass
from shardwright.passes.compiling.place import change_word


@dataclass(frozen=True)
class SplitCollectives(Pass):
    """Writes gathers and reduce-scatters over more axes than a compiler takes at once as several.

        dim E=64 order x y z
        g: BE = all_gather[xyz](a)
        y: BE_xyz = reduce_scatter[xyz -> E](h)

    becomes with `split-collectives{gathers=2,scatters=2}`

        g_gathered :~ BE_x = all_gather[yz](a)
        g: BE = all_gather[x](g_gathered)
        y_scattered :~ BE_x(partialsum-yz) = reduce_scatter[x -> E](h)
        y: BE_xyz = reduce_scatter[yz -> E](y_scattered)

    Each is on one dimension, and none over all chips, if the mesh has several axes. A gather begins with the least
    significant digits, a scatter with the most significant, so that what lies between is contiguous blocks too. What a
    chip receives in all is the same. A dimension that is strided, or has no digits for what would lie between, is one
    step, and axes of a single chip count for nothing; 0 leaves all as they are. Takes explicit programs, after
    everything else; `--target` runs it where the target's compiler makes something dearer of such collectives
    (docs/reference/targets.md).
    """

    name: ClassVar[str] = "split-collectives"
    takes: ClassVar[Level] = Level.EXPLICIT
    leaves: ClassVar[Level] = Level.EXPLICIT

    gathers: int = 2
    scatters: int = 2

    def run(self, program: Program) -> Program:
        return replace(program, funcs=tuple(self._split(program, func) for func in program.funcs))

    def _split(self, program: Program, func: Func) -> Func:
        orders = orders_in(program, func)
        writer = Rewriter.of(program, func)

        def rewrite(site: Site) -> tuple[Statement, ...]:
            statement, scope = site.statement, site.scope
            if not isinstance(statement, Let) or not isinstance(statement.operation, AllGather | ReduceScatter):
                return (statement,)
            (name,) = statement.operands
            assert isinstance(name, str)
            kind, result = scope.type_of(name), statement.result.concrete
            assert isinstance(kind, TensorType)
            steps = self._steps(statement.operation, kind, result, orders, program.mesh)
            writer.at(statement)
            for step in steps[:-1]:
                after = type_after(step, kind)
                wish = f"{statement.result.name}_{change_word(kind, after)}"
                name, kind = writer.let(step, (name,), wish, after), after
            return (*writer.written(), replace(statement, operation=steps[-1], operands=(name,)))

        return map_sites(program, func, rewrite)

    def _steps(
        self,
        operation: AllGather | ReduceScatter,
        before: TensorType,
        after: TensorType,
        orders: Mapping[str, Order],
        mesh: Mesh,
    ) -> list[AllGather | ReduceScatter]:
        """The movement as those that come one after the other; itself alone where it is over few axes and not over all
        chips, or strided."""
        gathers = isinstance(operation, AllGather)
        most, split = (self.gathers, before) if gathers else (self.scatters, after)
        named = {axis for axis in operation.named_axes if mesh[axis] > 1}
        if most and mesh.product(named) == mesh.n_chips:
            most = min(most, len(named) - 1)
        if len(named) <= (most if most > 0 else len(named)):
            return [operation]
        groups: list[set[str]] = []
        strided = strided_dims(split, orders, mesh)
        for dim, own in reversed(list(zip(split.dims, split.splits, strict=True))):
            order = orders.get(dim.name, ())
            axes = [axis for axis in blocks_order(order, own, mesh) if axis in named]
            step = len(axes) or 1 if dim.name in strided else most
            cuts = [max(0, end - step) for end in range(len(axes), 0, -step)]
            held = [set(own), *(set(own).difference(axes[cut:]) for cut in cuts)]
            if any(common_order(order, *pair, dim.size, mesh) is None for pair in pairwise(held)):
                held = [held[0], held[-1]]
            groups += [more - fewer for more, fewer in pairwise(held)]
        groups[0].update(axis for axis in operation.named_axes if mesh[axis] == 1)
        if isinstance(operation, AllGather):
            first, *others = groups
            return [replace(operation, axes=axis_set(first)), *(AllGather(axis_set(group)) for group in others)]
        return [
            ReduceScatter(tuple((axis_set(own), dim) for axes, dim in operation.targets if (own := group & set(axes))))
            for group in reversed(groups)
        ]
