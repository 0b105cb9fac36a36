"""Looped collectives as statements: loops of rolls and partial contractions, for the sites that were found."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardwright.ir.digits import Order, order_size
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Arg, Context, Number, Operation
from shardwright.ir.ops import (
    Add,
    AllGather,
    Concat,
    Contract,
    Convert,
    Full,
    Iota,
    Lookup,
    Merge,
    ReduceScatter,
    Rename,
    Roll,
    Split,
    Sub,
    Take,
    Update,
)
from shardwright.ir.program import Carry, DimInfo, Let, Loop, Marking, Namer, Statement, Value, index_value
from shardwright.ir.strategies import result_types
from shardwright.ir.types import Dim, DType, Shape, TensorType, axis_set, is_compact_dim
from shardwright.passes.ring_sites import Product, Ring, Site
from shardwright.passes.shuffling import Shuffled


@dataclass(frozen=True)
class Tensor:
    """A value by name, with the type that the block sees; `stem` is what names of what is made of it begin with."""

    name: str
    kind: TensorType
    stem: str = ""

    def called(self, suffix: str = "") -> str:
        """A name for what is made of it."""
        stem = self.stem or self.name
        return f"{stem}_{suffix}" if suffix else stem

    @property
    def names(self) -> tuple[str, ...]:
        return self.kind.names


@dataclass(frozen=True)
class Factor:
    """A factor of a dimension's index: a dimension of its own, with its digits; a ring's, or what stands between."""

    name: str
    size: int
    order: Order
    ring: Ring | None = None


class Dims:
    """Dimensions that loops need, each made once: the digits of rings, what is left between them, and trips."""

    def __init__(self, declared: Sequence[DimInfo], mesh: Mesh) -> None:
        self.mesh = mesh
        self.taken = {dim.name for dim in declared}
        self.known: dict[tuple[object, ...], str] = {}
        self.added: list[DimInfo] = []

    def of(self, what: str, key: tuple[object, ...], size: int, order: Order = ()) -> str:
        """The dimension for this purpose; `what` is the letter, or the dimension, that its name begins with."""
        full = (what, *key, size, order)
        if full not in self.known:
            name, count = what, 0
            while name in self.taken:
                count += 1
                name = f"{what}{count}"
            self.taken.add(name)
            self.known[full] = name
            self.added.append(DimInfo(name, size, None, order or None))
        return self.known[full]

    def stem(self, dim: str) -> str:
        """What names of parts of a dimension begin with: its letter, or its whole name where that is a word."""
        return dim[0] if is_compact_dim(dim) else dim


@dataclass
class Writer:
    """Emits typed statements into a list."""

    mesh: Mesh
    sizes: dict[str, int]
    namer: Namer
    out: list[Statement] = field(default_factory=list[Statement])

    def let(
        self,
        operation: Operation,
        operands: Sequence[Tensor | Number],
        wish: str,
        *,
        order: Sequence[str] | None = None,
        dtype: DType | None = None,
        kind: TensorType | None = None,
        stem: str = "",
    ) -> Tensor:
        """The operation's result under a fresh name; `order` and `dtype` as a contraction or a sum may choose them."""
        args = [Arg(str(o), None, o) if isinstance(o, Number) else Arg(o.name, o.kind.shape) for o in operands]
        (shape,) = operation.infer(args, Context(self.sizes))
        if order is not None:
            shape = Shape(dtype or shape.dtype, tuple(sorted(shape.dims, key=lambda dim: order.index(dim.name))))
        names = [o if isinstance(o, Number) else o.name for o in operands]
        kinds = [None if isinstance(o, Number) else o.kind for o in operands]
        made = kind or result_types(operation, names, kinds, [shape], self.mesh)[0]
        value = Value(self.namer.fresh(wish), made, Marking.FOUND)
        self.out.append(Let((value,), operation, tuple(names)))
        return Tensor(value.name, made, stem)

    def aside(self) -> Writer:
        """A writer of statements that stand elsewhere: in a loop's body."""
        return replace(self, out=[])

    def trial(self, write: Callable[[Writer], Sequence[Tensor]]) -> list[TensorType]:
        """The types of what would be written; nothing is."""
        scratch = replace(self, namer=Namer(set(self.namer.taken)), out=[])
        return [made.kind for made in write(scratch)]

    def split(self, value: Tensor, dim: str, factors: Sequence[Factor]) -> Tensor:
        """The dimension as its factors, each split as its digits were."""
        if dim not in value.names:
            return value
        at = value.names.index(dim)
        dims = [Dim(factor.name, factor.size) for factor in factors]
        axes = value.kind.split(dim)
        splits = [axis_set(axis for axis in axes if axis in factor.order) for factor in factors]
        kind = replace(
            value.kind,
            dims=(*value.kind.dims[:at], *dims, *value.kind.dims[at + 1 :]),
            splits=(*value.kind.splits[:at], *splits, *value.kind.splits[at + 1 :]),
        )
        names = tuple(factor.name for factor in factors)
        operation = Split(dim, names) if len(names) > 1 else Rename(((dim, names[0]),))
        return self.let(operation, [value], value.called("blocks"), kind=kind, stem=value.called())

    def merge(self, value: Tensor, names: Sequence[str], dim: str, wish: str) -> Tensor:
        operation = Merge(tuple(names), dim) if len(names) > 1 else Rename(((names[0], dim),))
        return self.let(operation, [value], wish)

    def zeros(self, kind: TensorType, wish: str) -> Tensor:
        return self.let(Full(kind.names, kind.dtype), [Number("0")], wish, kind=kind)

    def loop(
        self,
        dim: str,
        carried: Sequence[tuple[str, Tensor]],
        body: Callable[[Writer, Tensor, list[Tensor]], Sequence[Tensor]],
    ) -> list[Tensor]:
        """A loop whose body is written by `body(writer, index, what is carried)`, which gives what follows."""
        index = self.namer.fresh("i")
        inner = [Tensor(self.namer.fresh(wish), start.kind, wish) for wish, start in carried]
        writer = self.aside()
        place = Loop((), dim, index, (), (), ())
        following = body(writer, Tensor(index, index_value(place).type), inner)  # type: ignore[arg-type]
        results = [Tensor(self.namer.fresh(f"{wish}_last"), start.kind, wish) for wish, start in carried]
        self.out.append(
            replace(
                place,
                results=tuple(Value(made.name, made.kind, Marking.FOUND) for made in results),
                carries=tuple(
                    Carry(Value(made.name, made.kind, Marking.FOUND), start.name)
                    for made, (_, start) in zip(inner, carried, strict=True)
                ),
                body=tuple(writer.out),
                following=tuple(made.name for made in following),
            )
        )
        return results


@dataclass(frozen=True)
class Half:
    """What goes one way round: its direction, which half it is, what travels, and the operands of each product."""

    way: int
    number: int
    moving: Tensor | None
    operands: tuple[tuple[Tensor, Tensor], ...]

    @property
    def word(self) -> str:
        """What its values are called."""
        return "up" if self.way > 0 else "down"


@dataclass(frozen=True)
class Cut:
    """A dimension cut in two: the halves go opposite ways. `summed` where both halves are added in the end."""

    dim: str
    halves: str
    rest: str
    summed: bool


class RingLoop:
    """Writes the loop of one site."""

    def __init__(
        self,
        site: Site,
        seen: Mapping[str, TensorType],
        ways: int,
        dims: Dims,
        writer: Writer,
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
        self.cut: Cut | None = None
        self.chip: dict[Ring, Tensor] = {}
        self.recipes: list[tuple[Shuffled, TensorType]] = []
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

    def factors(self, dim: str, rings: Sequence[Ring], own: bool) -> list[Factor]:
        """A dimension as digits of rings and what stands between them, most significant first."""
        order = self.orders[dim]
        made: list[Factor] = []
        between: list[str | int] = []

        def close(rest: int = 1) -> None:
            size = order_size(tuple(between), self.mesh) * rest
            if size > 1 or any(isinstance(digit, str) for digit in between):
                digits = tuple(between)
                name = self.dims.of(self.dims.stem(dim), ("part", dim, digits), size, digits)
                self.sizes[name] = size
                made.append(Factor(name, size, digits))
            between.clear()

        for digit in order:
            ring = next((ring for ring in rings if digit in ring.axes), None)
            if ring is None:
                between.append(digit)
            elif digit == ring.axes[0]:
                close()
                name = self.own(ring) if own else self.block(ring)
                made.append(Factor(name, self.mesh.product(ring.axes), ring.axes, ring))
        close(self.sizes[dim] // order_size(order, self.mesh))
        return made

    def homes(self, product: Product) -> dict[str, list[Ring]]:
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
        if self.site.is_gather:
            self.gather()
        else:
            self.scatter(original)

    def offset(self, writer: Writer, ring: Ring, way: int, trip: Tensor | Number, more: int) -> Tensor:
        """Which block a chip is at in a trip: its own number less (going up) or plus the trip's and `more`."""
        at = self.chip[ring]
        step = Sub() if way > 0 else Add()
        if more:
            at = writer.let(step, [at, Number(str(more))], "block")
        if not isinstance(trip, Number):
            at = writer.let(step, [at, trip], "block")
        elif trip.value:
            at = writer.let(step, [at, trip], "block")
        return at

    def selected(self, writer: Writer, half: Half, ring: Ring, index: Tensor | Number, more: int) -> Half:
        """The half with only this trip's blocks of the operands that hold all blocks of a ring.

        `more` is how many blocks the first trip is on from a chip's own. A shuffled weight has them by trips.
        """
        block, trip = self.block(ring), self.trip(ring)
        found: dict[str, Tensor] = {}
        late = 0 if self.site.is_gather else 1

        def place(of: str) -> Tensor:
            if of not in found:
                if of == block:
                    found[of] = self.offset(writer, ring, half.way, index, more)
                else:
                    assert isinstance(index, Tensor)
                    later = Number(str(more - late))
                    found[of] = writer.let(Add(), [index, later], "trip") if more > late else index
            return found[of]

        def selected(operand: Tensor) -> Tensor:
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

    def operand(self, product: Product, at: int) -> Tensor:
        """An operand with its dimensions in factors: those of the ring's chips, and of blocks that it holds all of."""
        value = Tensor(product.sources[at], self.seen[product.sources[at]])
        writer = self.writer_of(value)
        for dim, factors in self.unfolding(product, value).items():
            value = writer.split(value, dim, factors)
        return value

    def unfolding(self, product: Product, value: Tensor) -> dict[str, list[Factor]]:
        """The factors of an operand's dimensions."""
        made = {dim: self.factors(dim, rings, own=True) for dim, rings in self.homes(product).items()}
        made |= {dim: self.factors(dim, rings, own=False) for dim, rings in self.targets().items()}
        return {dim: factors for dim, factors in made.items() if dim in value.names}

    def writer_of(self, value: Tensor) -> Writer:
        """Where what is made of an operand is written: nowhere, of a weight that is stored so."""
        return self.writer.aside() if value.called() in self.shuffled else self.writer

    def stored(self, product: Product, at: int, value: Tensor) -> Tensor:
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
        unfolded = self.unfolding(product, Tensor(name, seen))
        rows: list[tuple[tuple[str, int], ...]] = []
        for dim in whole.dims:
            parts = [(f.name, f.size) for f in unfolded[dim.name]] if dim.name in unfolded else [(dim.name, dim.size)]
            if cut:
                halved = [(cut.halves, 2), (cut.rest, self.sizes[cut.rest])]
                parts = [new for part in parts for new in (halved if part[0] == cut.dim else [part])]
            rows.append(tuple(parts))
        late = 0 if self.site.is_gather else 1
        entry = Shuffled(
            name, tuple(rows), self.block(ring), self.own(ring), trip.name, cut.halves if cut else None, late, names
        )
        self.recipes.append((entry, kind))
        if name not in self.shuffled:
            return value
        for dim in leading:
            kind = kind.without_dim(dim)
        return Tensor(name, kind, name)

    def halved(self, writer: Writer, value: Tensor, half: Half) -> Tensor:
        """The half's part of a value that has the cut dimension whole."""
        if self.cut is None or self.cut.halves not in value.names:
            return value
        operation = Take(self.cut.halves, half.number)
        return writer.let(operation, [value], value.called(half.word), stem=value.called(half.word))

    def converted(self, writer: Writer, value: Tensor, steps: Sequence[Let]) -> Tensor:
        """The value after conversions, and functions, of one operand."""
        for let in steps:
            value = writer.let(let.operation, [value], let.result.name)
        return value

    def cut_dims(self, names: Sequence[str]) -> list[str]:
        """The names with the cut dimension's remainder in its place."""
        cut = self.cut
        return [cut.rest if cut is not None and name == cut.dim else name for name in names]

    def with_cut(self, value: Tensor) -> Tensor:
        cut = self.cut
        if cut is None or cut.dim not in value.names:
            return value
        factors = [Factor(cut.halves, 2, ()), Factor(cut.rest, self.sizes[cut.rest], ())]
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
                self.cut = Cut(dim, halves, rest, summed)
                return

    def ways_round(self) -> list[tuple[int, int]]:
        """Direction and number of each half."""
        return [(1, 0), (-1, 1)] if self.cut is not None else [(1, 0)]

    def joined(self, halves: Sequence[Tensor]) -> Tensor:
        """Both halves of a result as one value."""
        if len(halves) == 1:
            return halves[0]
        cut = self.cut
        assert cut is not None
        renamed = [self.writer.let(Rename(((cut.rest, cut.dim),)), [half], half.called("half")) for half in halves]
        return self.writer.let(Concat(cut.dim), renamed, halves[0].called("joined"))

    def finished(self, value: Tensor, factors: dict[str, list[str]], original: Value, *, last: bool = True) -> Tensor:
        """The value in the format and the dimensions of the original, under its name if this is the last step."""
        writer = self.writer
        if value.kind.dtype != original.concrete.dtype:
            value = writer.let(Convert(original.concrete.dtype), [value], f"{original.name}_rounded")
        for dim, names in factors.items():
            value = writer.merge(value, names, dim, f"{original.name}_merged")
        if last:
            let = writer.out[-1]
            assert isinstance(let, Let)
            assert value.kind == original.type, f"{value.kind} for {original.type}"
            writer.out[-1] = replace(let, results=(original,))
        return value

    def added(self, writer: Writer, values: Sequence[Tensor], wish: str) -> Tensor:
        total = values[0]
        for value in values[1:]:
            total = writer.let(Add(), [total, value], wish, order=total.names, stem=wish)
        return total

    # ------------------------------------------------------------ gathers

    def gather(self) -> None:
        site, writer = self.site, self.writer
        operation = site.collective.operation
        rest = axis_set(set(operation.named_axes) - set(site.axes))
        moving = Tensor(str(site.collective.operands[0]), site.operand)
        if rest:
            moving = writer.let(AllGather(rest), [moving], f"{site.collective.result.name}_part")
        for dim, rings in self.targets().items():
            moving = writer.split(moving, dim, self.factors(dim, rings, own=True))
        operands: list[tuple[Tensor, Tensor]] = []
        for product in site.products:
            operands.append((moving, self.operand(product, 1 - product.at)))
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

    def gather_cuts(self, moving: Tensor, operands: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[str, bool]]:
        """What may be cut: a dimension that is whole, and summed over with every operand, or of the traveller alone."""
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
        """Whether a dimension, or a factor of one, is summed over in every product."""
        for product in self.site.products:
            parts = {f.name for dim in product.dims for f in self.parts(dim)}
            if name not in parts:
                return False
        return True

    def parts(self, dim: str) -> list[Factor]:
        """The factors of a dimension of what travels, the dimension itself where no ring splits it."""
        rings = self.targets().get(dim)
        return self.factors(dim, rings, own=False) if rings else [Factor(dim, self.sizes[dim], self.orders[dim])]

    def result_factors(self, product: Product) -> dict[str, list[str]]:
        """For each dimension of a result that is in factors, their names."""
        made: dict[str, list[str]] = {}
        for dim, rings in self.homes(product).items():
            made[dim] = [factor.name for factor in self.factors(dim, rings, own=True)]
        for dim, rings in self.targets().items():
            if dim in product.kind.names:
                made[dim] = [factor.name for factor in self.factors(dim, rings, own=False)]
        return made

    def expanded(self, product: Product) -> list[str]:
        """The dimensions of a result, factors in place of what is in factors."""
        factors = self.result_factors(product)
        return self.cut_dims([part for name in product.kind.names for part in factors.get(name, [name])])

    def contracted(self, writer: Writer, half: Half) -> list[Tensor]:
        """Each product of what has arrived with the operand's blocks that belong to it."""
        made: list[Tensor] = []
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

    def gathering(self, writer: Writer, level: int, halves: Sequence[Half]) -> list[list[Tensor]]:
        """The results of each half (of both, where they are added), from this ring inwards."""
        if level == len(self.site.rings):
            found = [self.contracted(writer, half) for half in halves]
            if self.cut is not None and self.cut.summed:
                return [[self.added(writer, values, values[0].name) for values in zip(*found, strict=True)]]
            return found
        ring = self.site.rings[level]
        K = self.mesh.product(ring.axes)

        def trip(to: Writer, index: Tensor | Number, here: Sequence[Half]) -> list[list[Tensor]]:
            if ring.summed:
                here = [self.selected(to, half, ring, index, 0) for half in here]
            return self.gathering(to, level + 1, here)

        def put(
            to: Writer, index: Tensor | Number, before: Sequence[Tensor], after: Sequence[list[Tensor]]
        ) -> list[Tensor]:
            made: list[Tensor] = []
            rest = iter(before)
            for number, values in enumerate(after):
                for value in values:
                    total = next(rest)
                    if ring.summed:
                        made.append(self.added(to, [total, value], total.called()))
                    else:
                        at = self.offset(to, ring, halves[number].way, index, 0)
                        made.append(to.let(Update(self.block(ring), wrap=True), [total, value, at], total.called(), stem=total.called()))
            return made

        def flat(values: Sequence[Sequence[Tensor]]) -> list[Tensor]:
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

        def body(to: Writer, index: Tensor, carried: list[Tensor]) -> list[Tensor]:
            arrived, totals = carried[: len(moving)], carried[len(moving) :]
            here = [replace(half, moving=value) for half, value in zip(halves, arrived, strict=True)]
            following = [self.rolled(to, ring, half.way, value) for half, value in zip(halves, arrived, strict=True)]
            return [*following, *put(to, index, totals, trip(to, index, here))]

        words = [half.word if self.cut is None and level == 0 else "" for half in halves]
        carried = [(value.called(word), value) for value, word in zip(moving, words, strict=True)]
        carried += [(f"{name}_sum" if ring.summed else f"{name}_all", start) for name, start in zip(names, starts)]
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

    def rolled(self, writer: Writer, ring: Ring, way: int, value: Tensor) -> Tensor:
        return writer.let(Roll(axis_set(ring.axes), self.own(ring), way), [value], value.called("next"), stem=value.called())

    # ------------------------------------------------------------ scatters

    def scatter(self, original: Value) -> None:
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

    def scatter_cuts(self, operands: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[str, bool]]:
        """What may be cut: a dimension of the result that is whole and, in each product, of one operand alone."""
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

    def scattering(self, writer: Writer, level: int, halves: Sequence[Half]) -> list[Tensor]:
        """The scattered sum of each half, from this ring inwards."""
        if level == len(self.site.rings):
            return [self.partial(writer, half) for half in halves]
        ring = self.site.rings[level]

        def trip(to: Writer, index: Tensor | Number, more: int) -> list[Tensor]:
            here = [self.selected(to, half, ring, index, more) for half in halves]
            return self.scattering(to, level + 1, here)

        first = trip(writer, Number("0"), 1)

        def body(to: Writer, index: Tensor, carried: list[Tensor]) -> list[Tensor]:
            arrived = [self.rolled(to, ring, half.way, value) for half, value in zip(halves, carried, strict=True)]
            own = trip(to, index, 2)
            return [self.added(to, pair, pair[0].called()) for pair in zip(arrived, own, strict=True)]

        name = self.site.collective.result.name
        carried = [(f"{name}_{half.word}", value) for half, value in zip(halves, first, strict=True)]
        return writer.loop(self.trips(ring), carried, body)

    def partial(self, writer: Writer, half: Half) -> Tensor:
        """The chip's addend of the block that is passing by."""
        own = {self.own(ring) for ring in self.site.rings}
        order = self.scattered_order()
        made: list[Tensor] = []
        for product, (a, b) in zip(self.site.products, half.operands, strict=True):
            homes = self.homes(product)
            halved = (self.halved(writer, a, half), self.halved(writer, b, half))
            pair = [self.converted(writer, v, steps) for v, steps in zip(halved, product.through, strict=True)]
            summed = [
                f.name
                for dim in product.dims
                for f in (self.factors(dim, homes[dim], own=True) if dim in homes else [Factor(dim, 0, ())])
            ]
            dims = tuple(name for name in summed if name not in own)
            wish = product.let.result.name
            made.append(writer.let(Contract(dims), pair, wish, order=order, dtype=product.kind.dtype))
        return self.added(writer, made, self.site.collective.result.name)
