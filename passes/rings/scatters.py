"""Contractions that feed reduce-scatters as loops: sums go round, and each chip adds its own addend to them."""

from __future__ import annotations

from collections.abc import Sequence

from shardwright.ir.operation import Number
from shardwright.ir.ops import Contract, ReduceScatter
from shardwright.ir.program import Value
from shardwright.ir.types import axis_set
from shardwright.passes.rings.loops import Half, RingLoop
from shardwright.passes.rings.writer import RingFactor, RingTensor, RingWriter


class ScatterLoop(RingLoop):
    """In trip i the sum of chip s - 1 - i's block is at chip s, which adds its own addend of it; after K trips each is
    at home.
    """

    def body(self, original: Value) -> None:
        site, writer = self.site, self.writer
        operands = [(self.operand(product, 0), self.operand(product, 1)) for product in site.products]
        self.choose_cut(self.scatter_cuts(operands))
        operands = [
            (self.stored(product, 0, self.with_cut(a)), self.stored(product, 1, self.with_cut(b)))
            for product, (a, b) in zip(site.products, operands, strict=True)
        ]
        halves = [Half(way, number, None, tuple(operands)) for way, number in self.ways_round()]
        results = self.scattering(writer, 0, halves)
        value = self.joined(results)
        factors = {
            dim: [factor.name for factor in self.factors(dim, rings, own=True)] for dim, rings in self.targets().items()
        }
        operation = site.collective.operation
        assert isinstance(operation, ReduceScatter)
        rest = tuple(
            (axis_set(set(axes) - set(site.axes)), dim) for axes, dim in operation.targets if set(axes) - set(site.axes)
        )
        if not rest:
            self.finished(value, factors, original)
            return
        value = self.finished(value, factors, original, last=False)
        value = writer.let(ReduceScatter(rest), [value], original.name)
        self.finished(value, {}, original)

    def scatter_cuts(self, operands: Sequence[tuple[RingTensor, RingTensor]]) -> list[tuple[str, bool]]:
        """The dimensions that may be cut: a dimension of the result that is whole and, in each product, of one operand
        alone."""
        rings = {self.own(ring) for ring in self.site.rings} | {self.block(ring) for ring in self.site.rings}
        first = [f.name for dim, rows in self.targets().items() for f in self.factors(dim, rows, own=True)]
        names = [*first, *(n for n in self.site.operand_names if n not in self.targets())]
        made: list[tuple[str, bool]] = []
        for name in names:
            single = all((name in a.names) != (name in b.names) for a, b in operands)
            whole = not any(value.kind.split(name) for pair in operands for value in pair)
            if name not in rings and single and whole:
                made.append((name, False))
        return made

    def scattered_order(self) -> list[str]:
        """The dimensions of the result as it is scattered, factors in place of what is in factors."""
        kind = self.site.products[0].kind
        rings = self.targets()
        names = [
            part
            for name in kind.names
            for part in ([f.name for f in self.factors(name, rings[name], own=True)] if name in rings else [name])
        ]
        return self.cut_dims(names)

    def scattering(self, writer: RingWriter, level: int, halves: Sequence[Half]) -> list[RingTensor]:
        """The scattered sum of each half, from this ring inwards."""
        if level == len(self.site.rings):
            return [self.partial(writer, half) for half in halves]
        ring = self.site.rings[level]

        def trip(to: RingWriter, index: RingTensor | Number, more: int) -> list[RingTensor]:
            here = [self.selected(to, half, ring, index, more) for half in halves]
            return self.scattering(to, level + 1, here)

        first = trip(writer, Number("0"), 1)

        def body(to: RingWriter, index: RingTensor, carried: list[RingTensor]) -> list[RingTensor]:
            arrived = [self.rolled(to, ring, half.way, value) for half, value in zip(halves, carried, strict=True)]
            own = trip(to, index, 2)
            return [self.added(to, pair, pair[0].called()) for pair in zip(arrived, own, strict=True)]

        name = self.site.collective.result.name
        carried = [(f"{name}_{half.word}", value) for half, value in zip(halves, first, strict=True)]
        return writer.loop(self.trips(ring), carried, body)

    def partial(self, writer: RingWriter, half: Half) -> RingTensor:
        """The chip's addend of the block that is passing by."""
        own = {self.own(ring) for ring in self.site.rings}
        order = self.scattered_order()
        made: list[RingTensor] = []
        for product, (a, b) in zip(self.site.products, half.operands, strict=True):
            homes = self.homes(product)
            halved = (self.halved(writer, a, half), self.halved(writer, b, half))
            pair = [self.converted(writer, v, steps) for v, steps in zip(halved, product.through, strict=True)]
            summed = [
                f.name
                for dim in product.dims
                for f in (self.factors(dim, homes[dim], own=True) if dim in homes else [RingFactor(dim, 0, ())])
            ]
            dims = tuple(name for name in summed if name not in own)
            wish = product.let.result.name
            made.append(writer.let(Contract(dims), pair, wish, order=order, dtype=product.kind.dtype))
        return self.added(writer, made, self.site.collective.result.name)
