"""All-gathers that feed contractions as loops: parts go round, and each chip multiplies what has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from shardwright.ir.operation import Number
from shardwright.ir.ops import AllGather, Contract, Update
from shardwright.ir.program import Value
from shardwright.ir.types import Dim, DType, TensorType, axis_set
from shardwright.passes.rings.loops import Half, RingLoop
from shardwright.passes.rings.sites import Ring, RingProduct
from shardwright.passes.rings.writer import RingFactor, RingTensor, RingWriter


class GatherLoop(RingLoop):
    """In trip i chip s has the part of chip s - i. It contracts it with the blocks of the other operand that belong to
    it, where the gathered dimension is summed over, and adds; else it writes the block of the result that it makes.
    """

    def body(self, original: Value) -> None:
        site, writer = self.site, self.writer
        operation = site.collective.operation
        rest = axis_set(set(operation.named_axes) - set(site.axes))
        moving = RingTensor(str(site.collective.operands[0]), site.operand)
        if rest:
            moving = writer.let(AllGather(rest), [moving], f"{site.collective.result.name}_part")
        for dim, rings in self.targets().items():
            moving = writer.split(moving, dim, self.factors(dim, rings, own=True))
        operands = [(moving, self.operand(product, 1 - product.at)) for product in site.products]
        self.choose_cut(self.gather_cuts(moving, operands))
        moving = self.with_cut(moving)
        others = [self.with_cut(other) for _, other in operands]
        others = [self.stored(p, 1 - p.at, other) for p, other in zip(site.products, others, strict=True)]
        operands = [(moving, other) for other in others]
        halves: list[Half] = []
        for way, number in self.ways_round():
            half = Half(way, number, None, tuple(operands))
            halves.append(replace(half, moving=self.halved(writer, moving, half)))
        results = self.gathering(writer, 0, halves)
        for i, product in enumerate(site.products):
            factors = self.result_factors(product)
            value = self.joined([made[i] for made in results])
            self.finished(value, factors, product.let.result)

    def gather_cuts(
        self, moving: RingTensor, operands: Sequence[tuple[RingTensor, RingTensor]]
    ) -> list[tuple[str, bool]]:
        """The dimensions that may be cut: a dimension that is whole, and summed over with every operand, or of the
        traveller alone."""
        others = [other for _, other in operands]
        summed = [n for n in moving.names if all(n in other.names for other in others)]
        free = [n for n in moving.names if not any(n in other.names for other in others)]
        own = {self.own(ring) for ring in self.site.rings}
        values = [moving, *others]
        alike = all(ring.summed for ring in self.site.rings)  # else both halves belong to different blocks
        made = [(n, True) for n in reversed(summed) if alike and n not in own and self.is_summed(n)]
        made += [(n, False) for n in free if n not in own]
        return [(n, s) for n, s in made if not any(value.kind.split(n) for value in values)]

    def is_summed(self, name: str) -> bool:
        """Tells whether a dimension, or a factor of one, is summed over in every product."""
        for product in self.site.products:
            parts = {f.name for dim in product.dims for f in self.parts(dim)}
            if name not in parts:
                return False
        return True

    def parts(self, dim: str) -> list[RingFactor]:
        """The factors of a dimension of what travels, the dimension itself where no ring splits it."""
        rings = self.targets().get(dim)
        return self.factors(dim, rings, own=False) if rings else [RingFactor(dim, self.sizes[dim], self.orders[dim])]

    def result_factors(self, product: RingProduct) -> dict[str, list[str]]:
        """For each dimension of a result that is in factors, their names."""
        made: dict[str, list[str]] = {}
        for dim, rings in self.homes(product).items():
            made[dim] = [factor.name for factor in self.factors(dim, rings, own=True)]
        for dim, rings in self.targets().items():
            if dim in product.kind.names:
                made[dim] = [factor.name for factor in self.factors(dim, rings, own=False)]
        return made

    def expanded(self, product: RingProduct) -> list[str]:
        """The dimensions of a result, factors in place of what is in factors."""
        factors = self.result_factors(product)
        return self.cut_dims([part for name in product.kind.names for part in factors.get(name, [name])])

    def contracted(self, writer: RingWriter, half: Half) -> list[RingTensor]:
        """Each product of what has arrived with the operand's blocks that belong to it."""
        made: list[RingTensor] = []
        own = {self.own(ring) for ring in self.site.rings}
        accumulates = any(ring.summed for ring in self.site.rings)
        for product, (_, other) in zip(self.site.products, half.operands, strict=True):
            assert half.moving is not None
            here = self.converted(writer, half.moving, product.through[product.at])
            there = self.halved(writer, other, half)
            there = self.converted(writer, there, product.through[1 - product.at])
            summed = [f.name for dim in product.dims for f in self.parts(dim)]
            dims = tuple(name for name in self.cut_dims(summed) if name in here.names and name not in own)
            dtype = product.kind.dtype
            if accumulates and dtype.is_float:
                dtype = DType.F32
            pair = (here, there) if product.at == 0 else (there, here)
            order = self.expanded(product)
            made.append(writer.let(Contract(dims), pair, product.let.result.name, order=order, dtype=dtype))
        return made

    def gathering(self, writer: RingWriter, level: int, halves: Sequence[Half]) -> list[list[RingTensor]]:
        """The results of each half (of both, where they are added), from this ring inwards."""
        if level == len(self.site.rings):
            found = [self.contracted(writer, half) for half in halves]
            if self.cut is not None and self.cut.summed:
                return [[self.added(writer, values, values[0].name) for values in zip(*found, strict=True)]]
            return found
        ring = self.site.rings[level]
        K = self.mesh.product(ring.axes)

        def trip(to: RingWriter, index: RingTensor | Number, here: Sequence[Half]) -> list[list[RingTensor]]:
            if ring.summed:
                here = [self.selected(to, half, ring, index, 0) for half in here]
            return self.gathering(to, level + 1, here)

        def put(
            to: RingWriter, index: RingTensor | Number, before: Sequence[RingTensor], after: Sequence[list[RingTensor]]
        ) -> list[RingTensor]:
            made: list[RingTensor] = []
            rest = iter(before)
            for number, values in enumerate(after):
                for value in values:
                    total = next(rest)
                    if ring.summed:
                        made.append(self.added(to, [total, value], total.called()))
                    else:
                        at = self.offset(to, ring, halves[number].way, index, 0)
                        made.append(
                            to.let(
                                Update(self.block(ring), wrap=True),
                                [total, value, at],
                                total.called(),
                                stem=total.called(),
                            )
                        )
            return made

        def flat(values: Sequence[Sequence[RingTensor]]) -> list[RingTensor]:
            return [value for row in values for value in row]

        rows = 1 if self.cut is not None and self.cut.summed else len(halves)
        kinds = writer.trial(lambda w: flat(trip(w, Number("0"), halves)))
        orders = [self.expanded(product) for product in self.site.products] * rows
        names = [product.let.result.name for product in self.site.products] * rows
        starts = [
            writer.zeros(kind if ring.summed else self.opened(kind, ring, order), f"{name}_zero")
            for kind, order, name in zip(kinds, orders, names, strict=True)
        ]
        moving = [half.moving for half in halves if half.moving is not None]

        def body(to: RingWriter, index: RingTensor, carried: list[RingTensor]) -> list[RingTensor]:
            arrived, totals = carried[: len(moving)], carried[len(moving) :]
            here = [replace(half, moving=value) for half, value in zip(halves, arrived, strict=True)]
            following = [self.rolled(to, ring, half.way, value) for half, value in zip(halves, arrived, strict=True)]
            return [*following, *put(to, index, totals, trip(to, index, here))]

        words = [half.word if self.cut is None and level == 0 else "" for half in halves]
        carried = [(value.called(word), value) for value, word in zip(moving, words, strict=True)]
        word = "sum" if ring.summed else "all"
        carried += [(f"{name}_{word}", start) for name, start in zip(names, starts, strict=True)]
        last = writer.loop(self.trips(ring), carried, body)
        arrived, totals = last[: len(moving)], last[len(moving) :]
        here = [replace(half, moving=value) for half, value in zip(halves, arrived, strict=True)]
        index = Number(str(K - 1))
        ends = put(writer, index, totals, trip(writer, index, here))
        n = len(self.site.products)
        return [ends[row * n : (row + 1) * n] for row in range(rows)]

    def opened(self, kind: TensorType, ring: Ring, order: Sequence[str]) -> TensorType:
        """The type of all blocks of a result, each chip's whole along the ring."""
        block = self.block(ring)
        rows = [*zip(kind.dims, kind.splits, strict=True), (Dim(block, self.sizes[block]), ())]
        rows.sort(key=lambda row: order.index(row[0].name))
        return replace(kind, dims=tuple(dim for dim, _ in rows), splits=tuple(axes for _, axes in rows))
