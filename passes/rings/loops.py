"""Looped collectives as statements: what loops round a ring of chips have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.ir.digits import Order, order_size
from shardwright.ir.operation import Number
from shardwright.ir.ops import Add, Concat, Convert, Iota, Lookup, Rename, Roll, Sub, Take
from shardwright.ir.program import Let, Value
from shardwright.ir.types import Dim, DType, TensorType, axis_set
from shardwright.passes.rings.shuffling import ShuffledWeight
from shardwright.passes.rings.sites import Ring, RingProduct, RingSite
from shardwright.passes.rings.writer import Dims, RingFactor, RingTensor, RingWriter


@dataclass(frozen=True)
class Half:
    """The half that goes one way round: its direction, which half it is, what travels, and the operands of each
    product."""

    way: int
    number: int
    moving: RingTensor | None
    operands: tuple[tuple[RingTensor, RingTensor], ...]

    @property
    def word(self) -> str:
        """The word that its values are called by."""
        return "up" if self.way > 0 else "down"


@dataclass(frozen=True)
class HalvedDimension:
    """A dimension cut in two: the halves go opposite ways. `summed` where both halves are added in the end."""

    dim: str
    halves: str
    rest: str
    summed: bool


class RingLoop(ABC):
    """Writes the loop of one site: what gathers and scatters share."""

    def __init__(
        self,
        site: RingSite,
        seen: Mapping[str, TensorType],
        ways: int,
        dims: Dims,
        writer: RingWriter,
        orders: Mapping[str, Order],
        weights: Mapping[str, TensorType],
        shuffled: Collection[str],
    ) -> None:
        self.site = site
        self.weights = weights
        self.shuffled = shuffled
        self.seen = seen
        self.dims = dims
        self.mesh = writer.mesh
        self.sizes = writer.sizes
        self.orders = orders
        self.writer = writer
        self.ways = ways
        self.cut: HalvedDimension | None = None
        self.chip: dict[Ring, RingTensor] = {}
        self.recipes: list[tuple[ShuffledWeight, TensorType]] = []
        """How each weight whose blocks one ring reads could be stored, once for each time that it is read."""

    # ------------------------------------------------------------ dimensions

    def own(self, ring: Ring) -> str:
        """The digit that a chip's coordinates along a ring fix."""
        return self.made("S", ("ring",), ring)

    def block(self, ring: Ring) -> str:
        """The digit of the same values where a chip holds all of them."""
        return self.made("R", ("ring",), ring)

    def made(self, letter: str, key: tuple[object, ...], ring: Ring) -> str:
        name = self.dims.of(letter, key, self.mesh.product(ring.axes), ring.axes)
        self.sizes[name] = self.mesh.product(ring.axes)
        return name

    def trips(self, ring: Ring) -> str:
        """The dimension that the loop of a ring runs along; loops within each other have one each."""
        size = self.mesh.product(ring.axes) - 1
        name = self.dims.of("I", (self.site.rings.index(ring),), size)
        self.sizes[name] = size
        return name

    def trip(self, ring: Ring) -> str:
        """The digit that says in which trip a block of a shuffled weight is read."""
        return self.made("J", ("trip",), ring)

    def factors(self, dim: str, rings: Sequence[Ring], own: bool) -> list[RingFactor]:
        """A dimension as digits of rings and what stands between them, most significant first."""
        order = self.orders[dim]
        made: list[RingFactor] = []
        between: list[str | int] = []

        def close(rest: int = 1) -> None:
            size = order_size(tuple(between), self.mesh) * rest
            if size > 1 or any(isinstance(digit, str) for digit in between):
                digits = tuple(between)
                name = self.dims.of(self.dims.stem(dim), ("part", dim, digits), size, digits)
                self.sizes[name] = size
                made.append(RingFactor(name, size, digits))
            between.clear()

        for digit in order:
            ring = next((ring for ring in rings if digit in ring.axes), None)
            if ring is None:
                between.append(digit)
            elif digit == ring.axes[0]:
                close()
                name = self.own(ring) if own else self.block(ring)
                made.append(RingFactor(name, self.mesh.product(ring.axes), ring.axes))
        close(self.sizes[dim] // order_size(order, self.mesh))
        return made

    def homes(self, product: RingProduct) -> dict[str, list[Ring]]:
        """The dimensions of a product that rings split elsewhere, with these rings."""
        made: dict[str, list[Ring]] = {}
        for ring in self.site.rings:
            made.setdefault(product.homes[ring.axes[0]], []).append(ring)
        return made

    def targets(self) -> dict[str, list[Ring]]:
        """The dimensions that are gathered, or scattered into, with their rings."""
        made: dict[str, list[Ring]] = {}
        for ring in self.site.rings:
            made.setdefault(ring.dim, []).append(ring)
        return made

    # ------------------------------------------------------------ both kinds

    def write(self, original: Value) -> None:
        """Writes the loop; its results bear the names and types of what it replaces."""
        for ring in self.site.rings:
            name = self.own(ring)
            kind = TensorType(DType.INT32, (Dim(name, self.sizes[name]),), (axis_set(ring.axes),))
            self.chip[ring] = self.writer.let(Iota(name), [], "chip", kind=kind)
        self.body(original)

    @abstractmethod
    def body(self, original: Value) -> None:
        """Writes what comes after the numbers of the chips."""

    def offset(self, writer: RingWriter, ring: Ring, way: int, trip: RingTensor | Number, more: int) -> RingTensor:
        """Which block a chip is at in a trip: its own number less (going up) or plus the trip's and `more`."""
        at = self.chip[ring]
        step = Sub() if way > 0 else Add()
        if more:
            at = writer.let(step, [at, Number(str(more))], "block")
        if isinstance(trip, Number) and trip.value == 0:
            return at
        return writer.let(step, [at, trip], "block")

    def selected(self, writer: RingWriter, half: Half, ring: Ring, index: RingTensor | Number, more: int) -> Half:
        """The half with only this trip's blocks of the operands that hold all blocks of a ring.

        `more` is how many blocks the first trip is on from a chip's own. A shuffled weight has them by trips.
        """
        block, trip = self.block(ring), self.trip(ring)
        found: dict[str, RingTensor] = {}
        late = 0 if self.site.is_gather else 1

        def place(of: str) -> RingTensor:
            if of not in found:
                if of == block:
                    found[of] = self.offset(writer, ring, half.way, index, more)
                else:
                    assert isinstance(index, RingTensor)
                    later = Number(str(more - late))
                    found[of] = writer.let(Add(), [index, later], "trip") if more > late else index
            return found[of]

        def selected(operand: RingTensor) -> RingTensor:
            dim = next((name for name in (block, trip) if name in operand.names), None)
            if dim is None:
                return operand
            wish, stem = operand.called(half.word), operand.called()
            if dim == trip and isinstance(index, Number):
                operation = Take(dim, int(index.value) + more - late)
                return writer.let(operation, [operand], wish, stem=stem)
            return writer.let(Lookup(dim, wrap=True), [operand, place(dim)], wish, stem=stem)

        operands = tuple((selected(a), selected(b)) for a, b in half.operands)
        return replace(half, operands=operands)

    def operand(self, product: RingProduct, at: int) -> RingTensor:
        """An operand with its dimensions in factors: those of the ring's chips, and of blocks that it holds all of."""
        value = RingTensor(product.sources[at], self.seen[product.sources[at]])
        writer = self.writer_of(value)
        for dim, factors in self.unfolding(product, value).items():
            value = writer.split(value, dim, factors)
        return value

    def unfolding(self, product: RingProduct, value: RingTensor) -> dict[str, list[RingFactor]]:
        """The factors of an operand's dimensions."""
        made = {dim: self.factors(dim, rings, own=True) for dim, rings in self.homes(product).items()}
        made |= {dim: self.factors(dim, rings, own=False) for dim, rings in self.targets().items()}
        return {dim: factors for dim, factors in made.items() if dim in value.names}

    def writer_of(self, value: RingTensor) -> RingWriter:
        """Where what is made of an operand is written: nowhere, of a weight that is stored so."""
        return self.writer.aside() if value.called() in self.shuffled else self.writer

    def stored(self, product: RingProduct, at: int, value: RingTensor) -> RingTensor:
        """The operand in factors, or, of a shuffled weight, as it is stored; what that is goes into `recipes`."""
        name = product.sources[at]
        (ring, *others) = self.site.rings
        if name not in self.weights or others or self.block(ring) not in value.names:
            return value
        cut = self.cut if self.cut is not None and self.cut.halves in value.names else None
        whole, seen = self.weights[name], self.seen[name]
        leading = [dim for dim in whole.names if dim not in seen.names]
        front = [*([cut.halves] if cut else [])]
        rest = [dim for dim in value.names if dim not in (*front, self.block(ring))]
        trip = Dim(self.trip(ring), self.sizes[self.block(ring)])
        sizes = {dim.name: dim for dim in (*whole.dims, *value.kind.dims, trip)}
        names = (*leading, trip.name, *front, *rest)
        splits = tuple(whole.split(n) if n in leading else value.kind.split(n) for n in names)
        kind = replace(whole, dims=tuple(sizes[n] for n in names), splits=splits)
        unfolded = self.unfolding(product, RingTensor(name, seen))
        rows: list[tuple[tuple[str, int], ...]] = []
        for dim in whole.dims:
            parts = [(f.name, f.size) for f in unfolded[dim.name]] if dim.name in unfolded else [(dim.name, dim.size)]
            if cut:
                halved = [(cut.halves, 2), (cut.rest, self.sizes[cut.rest])]
                parts = [new for part in parts for new in (halved if part[0] == cut.dim else [part])]
            rows.append(tuple(parts))
        late = 0 if self.site.is_gather else 1
        entry = ShuffledWeight(
            name, tuple(rows), self.block(ring), self.own(ring), trip.name, cut.halves if cut else None, late, names
        )
        self.recipes.append((entry, kind))
        if name not in self.shuffled:
            return value
        for dim in leading:
            kind = kind.without_dim(dim)
        return RingTensor(name, kind, name)

    def halved(self, writer: RingWriter, value: RingTensor, half: Half) -> RingTensor:
        """The half's part of a value that has the cut dimension whole."""
        if self.cut is None or self.cut.halves not in value.names:
            return value
        operation = Take(self.cut.halves, half.number)
        return writer.let(operation, [value], value.called(half.word), stem=value.called(half.word))

    def converted(self, writer: RingWriter, value: RingTensor, steps: Sequence[Let]) -> RingTensor:
        """The value after conversions, and functions, of one operand."""
        for let in steps:
            value = writer.let(let.operation, [value], let.result.name)
        return value

    def cut_dims(self, names: Sequence[str]) -> list[str]:
        """The names with the cut dimension's remainder in its place."""
        cut = self.cut
        return [cut.rest if cut is not None and name == cut.dim else name for name in names]

    def with_cut(self, value: RingTensor) -> RingTensor:
        cut = self.cut
        if cut is None or cut.dim not in value.names:
            return value
        factors = [RingFactor(cut.halves, 2, ()), RingFactor(cut.rest, self.sizes[cut.rest], ())]
        return self.writer_of(value).split(value, cut.dim, factors)

    def choose_cut(self, candidates: Sequence[tuple[str, bool]]) -> None:
        """Cuts the first of these dimensions that is even."""
        if self.ways == 1:
            return
        for dim, summed in candidates:
            size = self.sizes[dim]
            if size % 2 == 0:
                halves = self.dims.of("H", ("halves",), 2)
                rest = self.dims.of(self.dims.stem(dim), ("part", dim, "half"), size // 2)
                self.sizes[halves], self.sizes[rest] = 2, size // 2
                self.cut = HalvedDimension(dim, halves, rest, summed)
                return

    def ways_round(self) -> list[tuple[int, int]]:
        """Direction and number of each half."""
        return [(1, 0), (-1, 1)] if self.cut is not None else [(1, 0)]

    def joined(self, halves: Sequence[RingTensor]) -> RingTensor:
        """Both halves of a result as one value."""
        if len(halves) == 1:
            return halves[0]
        cut = self.cut
        assert cut is not None
        renamed = [self.writer.let(Rename(((cut.rest, cut.dim),)), [half], half.called("half")) for half in halves]
        return self.writer.let(Concat(cut.dim), renamed, halves[0].called("joined"))

    def finished(
        self, value: RingTensor, factors: dict[str, list[str]], original: Value, *, last: bool = True
    ) -> RingTensor:
        """The value in the format and the dimensions of the original, under its name if this is the last step."""
        writer = self.writer
        if value.kind.dtype != original.concrete.dtype:
            value = writer.let(Convert(original.concrete.dtype), [value], f"{original.name}_rounded")
        for dim, names in factors.items():
            value = writer.merge(value, names, dim, f"{original.name}_merged")
        if last:
            let = writer.rewriter.out[-1]
            assert isinstance(let, Let)
            assert value.kind == original.type, f"{value.kind} for {original.type}"
            writer.rewriter.out[-1] = replace(let, results=(original,))
        return value

    def added(self, writer: RingWriter, values: Sequence[RingTensor], wish: str) -> RingTensor:
        total = values[0]
        for value in values[1:]:
            total = writer.let(Add(), [total, value], wish, order=total.names, stem=wish)
        return total

    def rolled(self, writer: RingWriter, ring: Ring, way: int, value: RingTensor) -> RingTensor:
        return writer.let(
            Roll(axis_set(ring.axes), self.own(ring), way), [value], value.called("next"), stem=value.called()
        )
