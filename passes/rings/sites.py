"""Sites of looped collectives: gathers that only contractions read, and contractions that only a scatter reads."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.cost.movements.movement import received_bytes
from shardwright.ir.digits import Order, order_size
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Add, Alias, AllGather, Contract, Convert, Function, ReduceScatter
from shardwright.ir.program import Let, Scope, Statement
from shardwright.ir.types import Axes, Reduction, TensorType, axis_set

Homes = Mapping[str, str]
"""For each axis of a ring the dimension that it splits."""


@dataclass(frozen=True)
class Ring:
    """Chips in a ring: axes read as one number, most significant first, and the dimension whose blocks they hold.

    `summed` tells a gathered dimension that the contractions sum over from one that stays.
    """

    axes: tuple[str, ...]
    dim: str
    summed: bool


@dataclass(frozen=True)
class RingProduct:
    """A contraction of a site. `at` is the operand that travels (of a gather), and `homes` say where the ring's axes
    split the other operand, or what is summed over (of a scatter).

    `sources` are what its operands are made of, by the conversions `through`, which are done block by block.
    """

    let: Let
    at: int
    homes: Homes
    sources: tuple[str, str]
    through: tuple[tuple[Let, ...], tuple[Let, ...]]

    @property
    def dims(self) -> tuple[str, ...]:
        assert isinstance(self.let.operation, Contract)
        return self.let.operation.dims

    @property
    def kind(self) -> TensorType:
        return self.let.result.concrete

    @property
    def other(self) -> str:
        """The origin of the operand that stays."""
        return self.sources[1 - self.at]


@dataclass(frozen=True)
class RingSite:
    """A collective and the contractions that it feeds, or that feed it; `rings` are the axes that become loops.

    `place` is where in its block the loop will stand, `consumed` the statements that it replaces, and `bytes` what a
    chip receives for the collective.
    """

    collective: Let
    operand: TensorType
    products: tuple[RingProduct, ...]
    rings: tuple[Ring, ...]
    place: int
    consumed: frozenset[str]
    bytes: int

    @property
    def is_gather(self) -> bool:
        return isinstance(self.collective.operation, AllGather)

    @property
    def operand_names(self) -> tuple[str, ...]:
        return self.operand.names

    @property
    def axes(self) -> Axes:
        return axis_set(axis for ring in self.rings for axis in ring.axes)


@dataclass(frozen=True)
class Surroundings:
    """A block of a function: its statements, the types that it sees, and how often names are used in the function."""

    body: tuple[Statement, ...]
    scope: Scope
    counts: Mapping[str, int]
    orders: Mapping[str, Order]
    sizes: Mapping[str, int]
    mesh: Mesh
    states: Collection[str]

    def __post_init__(self) -> None:
        for statement in self.body:
            self.scope.define(*statement.results)

    def kind(self, name: object) -> TensorType | None:
        """The type of a value as the block sees it, None for numbers and state."""
        if not isinstance(name, str) or name in self.states:
            return None
        found = self.scope.type_of(name)
        return found if isinstance(found, TensorType) else None

    def declared(self, kind: TensorType) -> bool:
        """Tells whether every dimension has its declared extent."""
        return all(self.sizes[dim.name] == dim.size for dim in kind.dims)

    def has_room(self, dim: str) -> bool:
        """Tells whether all digits of the dimension's order fit into it: others are those of some types alone."""
        return self.sizes[dim] % order_size(self.orders[dim], self.mesh) == 0


def find_sites(block: Surroundings, axes: Axes) -> Iterator[RingSite]:
    """Every collective of a block that can be looped over some of these axes, in the order of the program."""
    for i, statement in enumerate(block.body):
        match statement:
            case Let(operation=AllGather(), operands=(str() as name,)):
                kind = block.kind(name)
                made = None if kind is None else _gather(block, statement, kind, i, axes)
            case Let(operation=ReduceScatter(), operands=(str() as name,)):
                made = _scatter(block, statement, name, i, axes)
            case _:
                made = None
        if made is not None:
            yield made


def _gather(block: Surroundings, collective: Let, operand: TensorType, at: int, axes: Axes) -> RingSite | None:
    found = _consumers(block, collective, at)
    if found is None or not block.declared(operand):
        return None
    products, place, consumed = found
    home = {axis: str(operand.state(axis)) for axis in collective.operation.named_axes}
    ring: list[str] = []
    for axis, dim in home.items():
        if axis not in axes or block.mesh[axis] == 1 or dim not in operand.names or not block.has_room(dim):
            continue
        others = [block.kind(p.other) for p in products]
        splits = [None if kind is None else kind.state(axis) for kind in others]
        free = all(
            kind is not None
            and isinstance(split, str)
            and split in kind.names
            and split not in operand.names
            and block.has_room(split)
            for kind, split in zip(others, splits, strict=True)
        )
        roles = {dim in p.dims for p in products}
        batched = any(
            dim not in p.dims and kind is not None and dim in kind.names
            for p, kind in zip(products, others, strict=True)
        )  # then the other operand's part, too, is another one in each trip
        if free and len(roles) == 1 and not batched:
            ring.append(axis)
    if not ring:
        return None
    products = tuple(
        replace(p, homes={axis: str(_known(block, p.other).state(axis)) for axis in ring}) for p in products
    )
    rings = [
        Ring(group, dim, dim in products[0].dims)
        for group, dim in _groups(ring, home, [p.homes for p in products], block)
    ]
    rings.sort(key=lambda r: r.summed)  # what stays is written block by block, around what is summed
    cost = received_bytes(AllGather(axis_set(ring)), operand, block.mesh)
    return RingSite(collective, operand, products, tuple(rings), place, consumed, cost)


def _known(block: Surroundings, name: str) -> TensorType:
    kind = block.kind(name)
    assert kind is not None
    return kind


def _consumers(
    block: Surroundings, collective: Let, at: int
) -> tuple[tuple[RingProduct, ...], int, frozenset[str]] | None:
    """The contractions that alone read a gathered value, directly or through functions of one operand.

    None where something else reads it, or where what they need besides is not there before the first of them.
    """
    lets = {s.result.name: s for s in block.body if isinstance(s, Let)}
    through: dict[str, tuple[Let, ...]] = {collective.result.name: ()}
    reads = dict.fromkeys(through, 0)
    products: list[RingProduct] = []
    places: dict[str, int] = {}
    for i, statement in enumerate(block.body):
        if isinstance(statement, Let):
            places[statement.result.name] = i
        if i <= at or not isinstance(statement, Let):
            continue
        read = [o for o in statement.operands if isinstance(o, str) and o in through]
        for name in read:
            reads[name] += 1
        if len(read) != 1:
            if read:
                return None
            continue
        match statement:
            case Let(operation=Convert() | Function() | Alias(), operands=(str() as name,)):
                through[statement.result.name] = (*through[name], statement)
                reads[statement.result.name] = 0
            case Let(operation=Contract()):
                side = 0 if statement.operands[0] == read[0] else 1
                other, made = _source(str(statement.operands[1 - side]), lets, block.counts)
                sources = (read[0], other) if side == 0 else (other, read[0])
                chains = (through[read[0]], made) if side == 0 else (made, through[read[0]])
                products.append(RingProduct(statement, side, {}, sources, chains))
            case _:
                return None
    if not products or any(block.counts.get(name, 0) != n for name, n in reads.items()):
        return None
    place = min(places[p.let.result.name] for p in products)
    for product in products:
        other = block.kind(product.other)
        late = places.get(product.other, -1) >= place
        if other is None or late or not block.declared(other) or not block.declared(product.kind):
            return None
    converted = (let.result.name for p in products for let in p.through[1 - p.at])
    consumed = frozenset((*through, *converted, *(p.let.result.name for p in products)))
    return tuple(products), place, consumed


def _source(name: str, lets: Mapping[str, Let], counts: Mapping[str, int]) -> tuple[str, tuple[Let, ...]]:
    """The value that another is converted from, and the conversions, where nothing else reads them."""
    made: tuple[Let, ...] = ()
    while counts.get(name, 0) == 1:
        match lets.get(name):
            case Let(operation=Convert(), operands=(str() as source,)) as let:
                name, made = source, (let, *made)
            case _:
                break
    return name, made


def _scatter(block: Surroundings, collective: Let, name: str, at: int, axes: Axes) -> RingSite | None:
    lets = {s.result.name: s for s in block.body if isinstance(s, Let)}
    consumed: set[str] = {collective.result.name}
    leaves = _addends(name, lets, block.counts, consumed)
    if not leaves or not isinstance(collective.operation, ReduceScatter):
        return None
    operand = leaves[0].result.concrete
    if operand.partial is None or operand.partial.kind is not Reduction.SUM:
        return None
    made: list[RingProduct] = []
    for let in leaves:
        (a, from_a), (b, from_b) = (_source(str(o), lets, block.counts) for o in let.operands)
        made.append(RingProduct(let, 0, {}, (a, b), (from_a, from_b)))
        consumed.update(step.result.name for step in (*from_a, *from_b))
        kinds = (block.kind(a), block.kind(b), let.result.concrete)
        if any(kind is None or not block.declared(kind) for kind in kinds):
            return None
    home: dict[str, str] = {}
    for targets, dim in collective.operation.targets:
        for axis in targets:
            asked = axis in axes and block.mesh[axis] > 1 and block.has_room(dim)
            if asked and all(_made_here(block, product, axis, dim) for product in made):
                home[axis] = dim
    if not home:
        return None
    products = tuple(
        replace(p, homes={axis: str(_known(block, p.sources[0]).state(axis)) for axis in home}) for p in made
    )
    groups = _groups(list(home), home, [p.homes for p in products], block)
    rings = tuple(Ring(group, dim, summed=False) for group, dim in groups)
    targets = tuple((axis_set(ring.axes), ring.dim) for ring in rings)
    cost = received_bytes(ReduceScatter(targets), operand, block.mesh)
    return RingSite(collective, operand, products, rings, at, frozenset(consumed), cost)


def _addends(name: str, lets: Mapping[str, Let], counts: Mapping[str, int], consumed: set[str]) -> list[Let]:
    """The contractions that a value is the sum of, read by nothing else; none where it is something else."""
    let = lets.get(name)
    if let is None or counts.get(name, 0) != 1:
        return []
    consumed.add(name)
    match let:
        case Let(operation=Contract()):
            return [let]
        case Let(operation=Add(), operands=(str() as a, str() as b)):
            left, right = _addends(a, lets, counts, consumed), _addends(b, lets, counts, consumed)
            return [*left, *right] if left and right else []
        case _:
            return []


def _made_here(block: Surroundings, product: RingProduct, axis: str, dim: str) -> bool:
    """Tells whether the sum over the axis begins in this contraction, and one operand alone has the dimension,
    whole."""
    a, b = (_known(block, name) for name in product.sources)
    summed = a.state(axis)
    return summed in product.dims and block.has_room(str(summed)) and (dim in a.names) != (dim in b.names)


def _groups(
    axes: Sequence[str], home: Homes, partners: Sequence[Homes], block: Surroundings
) -> list[tuple[tuple[str, ...], str]]:
    """Axes whose digits follow each other in their dimension and in all partners' make one ring; with the dimension."""

    def follows(a: str, b: str) -> bool:
        for homes in (home, *partners):
            order = block.orders[homes[b]]
            if homes[a] != homes[b] or order.index(b) != order.index(a) + 1:
                return False
        return True

    made: list[tuple[list[str], str]] = []
    for axis in sorted(axes, key=lambda axis: (home[axis], block.orders[home[axis]].index(axis))):
        if made and follows(made[-1][0][-1], axis):
            made[-1][0].append(axis)
        else:
            made.append(([axis], home[axis]))
    return [(tuple(group), dim) for group, dim in made]
