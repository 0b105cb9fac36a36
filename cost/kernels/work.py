"""The work that one chip does for a function of an explicit program: kernel by kernel its operations, bytes and
messages."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from shardwright.cost.kernels.body import BodyKernels, Kernel, function_kernels
from shardwright.cost.kernels.fusion import windows_of
from shardwright.cost.movements.copies import MemoryCopy, copied_bytes
from shardwright.cost.movements.movement import Collective, collective_of
from shardwright.ir.digit_orders import orders_in
from shardwright.ir.ops import Attend, Contract, Foreign, Grouped, Movement, Roll, Start, Update
from shardwright.ir.ops.indexing import page_of_row
from shardwright.ir.program import Func, Let, Loop, Program
from shardwright.ir.types import ON_HOST, DType, Shape, TensorType
from shardwright.ir.walk import operand_names


@dataclass(frozen=True, slots=True)
class Matmul:
    """A contraction on one chip: `count` products of [m, k] and [k, n], operands in `dtype`.

    `flops` of a function that is not ours are `given`, and it has no m, n and k.
    """

    count: int
    m: int
    n: int
    k: int
    dtype: DType
    given: float = 0

    @property
    def flops(self) -> int:
        """A multiplication and an addition each: 2 m n k."""
        return round(self.count * self.given) if self.given else 2 * self.count * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Work:
    """One kernel: what it computes, reads, writes and sends in one execution, and how often it is executed.

    `name` is the value that it makes, `operation` the keyword of the operation that it is named after. `reads` are
    what it reads of each value, in bytes; of all its bytes `behind` and `beside` are as in `cost.kernels.fusion`.
    `collective` is None but for movements between chips, `copied` but for copies between memories. `products` are
    the one of a contraction, the two of attention. `starts` is how many kernels it counts as. `widened` are the
    elements of integers of a few bits that it makes floats. `loops` are the dimensions of the loops around it. What
    is `in_flight` goes on beside what follows, until its result is read. `late` are the values that a kernel reads
    after its contraction alone, and can wait for until that is done.
    """

    name: str
    operation: str
    statement: Let
    loops: tuple[str, ...]
    trips: int
    products: tuple[Matmul, ...]
    collective: Collective | None
    copied: MemoryCopy | None
    reads: tuple[tuple[str, int], ...]
    bytes_written: int
    result: TensorType
    widened: int = 0
    in_flight: bool = False
    late: frozenset[str] = frozenset()
    behind: int = 0
    beside: int = 0
    starts: int = 1

    @property
    def on_host(self) -> bool:
        """True if the host does it, where what it reads lies: attention, or rows written."""
        return isinstance(self.statement.operation, Attend | Update) and self.result.placement == ON_HOST

    @property
    def bytes_read(self) -> int:
        return sum(nbytes for _, nbytes in self.reads)

    @property
    def flops(self) -> int:
        return sum(product.flops for product in self.products)

    @property
    def matmul(self) -> Matmul | None:
        """The first product."""
        return next((product for product in self.products if not product.given), None)


@dataclass(frozen=True, slots=True)
class CarriedValue:
    """A value that a loop carries, by its names before the loop, in its body, at the body's end, and after the loop."""

    initial: str
    value: str
    following: str
    result: str


@dataclass(frozen=True, slots=True)
class Repeat:
    """A loop: its steps, how often they are run, and what is handed on from trip to trip."""

    trips: int
    steps: tuple[Work | Repeat, ...]
    carried: tuple[CarriedValue, ...]


Steps = tuple[Work | Repeat, ...]


def work_of(program: Program, func: Func) -> tuple[Work, ...]:
    """The kernels of a function in program order, those of loops once, with their trips.

    Raises TypeError where a type still has holes.
    """
    return tuple(works_in(steps_of(program, func)))


def works_in(steps: Steps) -> Iterator[Work]:
    """The kernels of a body, those of its loops included, in program order."""
    for step in steps:
        if isinstance(step, Work):
            yield step
        else:
            yield from works_in(step.steps)


def steps_of(program: Program, func: Func) -> Steps:
    """The kernels and loops of a function in program order. Raises TypeError where a type still has holes."""
    return _Reader(program, func).steps(function_kernels(program, func), ())


class _Reader:
    """Reads the bodies of one function."""

    def __init__(self, program: Program, func: Func) -> None:
        self.program = program
        self.mesh = program.mesh
        self.sizes = program.sizes(func)
        self.orders = orders_in(program, func)

    def steps(self, block: BodyKernels, loops: tuple[Loop, ...]) -> Steps:
        made: list[Work | Repeat] = []
        for step in block.steps:
            match step:
                case Kernel():
                    made.append(self.work(step, block, loops))
                case Loop():
                    inner = block.inside(step)
                    carried = tuple(
                        CarriedValue(
                            block.source(carry.initial), carry.value.name, inner.source(following), result.name
                        )
                        for carry, following, result in zip(step.carries, step.following, step.results, strict=True)
                    )
                    made.append(Repeat(self.sizes[step.dim], self.steps(inner, (*loops, step)), carried))
                case _:
                    pass
        return tuple(made)

    def work(self, kernel: Kernel, block: BodyKernels, loops: tuple[Loop, ...]) -> Work:
        mesh, root, types = self.mesh, kernel.root, block.types
        operation = root.operation
        collective: Collective | None = None
        copied: MemoryCopy | None = None
        if isinstance(operation, Movement):
            operand = types[str(root.operands[0])]
            if operation.communicates:
                collective = collective_of(operation, operand, mesh, self.orders)
            elif operand.placement != types[root.result.name].placement:
                copied = copied_bytes(operand.local_bytes(mesh), operand.placement, types[root.result.name].placement)
        heavy = kernel.heavy
        kinds = [types[operand] if isinstance(operand, str) else None for operand in heavy.operands]
        extents = [dict(zip(k.names, k.local_shape(mesh), strict=True)) if k is not None else {} for k in kinds]
        shapes = [kind and kind.shape for kind in kinds]
        products = products_of(heavy, shapes, windows_of(heavy, block.scope))
        return Work(
            root.results[0].name,
            heavy.operation.keyword,
            heavy,
            tuple(loop.dim for loop in loops),
            math.prod(self.sizes[loop.dim] for loop in loops),
            tuple(product.on_a_chip(extents) for product in products),
            collective,
            copied,
            tuple((read.name, round(read.nbytes)) for read in kernel.reads),
            round(kernel.written),
            types[root.results[0].name],
            round(kernel.widened),
            in_flight=isinstance(operation, Start | Roll)
            or (isinstance(operation, Attend | Update) and types[root.results[0].name].placement == ON_HOST),
            late=_late(kernel, block),
            behind=round(kernel.behind),
            beside=round(kernel.beside),
            starts=kernel.starts,
        )


def _late(kernel: Kernel, block: BodyKernels) -> frozenset[str]:
    inlined = {value.name: statement for statement in kernel.inlined for value in statement.results}
    early: set[str] = set()
    left = [kernel.heavy]
    while left:
        for name in operand_names(left.pop().operands):
            source = block.source(name)
            if source in inlined:
                left.append(inlined[source])
            else:
                early.add(source)
    return frozenset(read.name for read in kernel.reads) - early


Side = tuple[tuple[int, tuple[str, ...]], ...]
"""A side of a product: operands by their numbers, each with dimensions of it."""


@dataclass(frozen=True, slots=True)
class Product:
    """`count` products of [m, k] and [k, n]. `seen` is the share of positions that attention computes with, of what are
    `positions` here, the n or the k. `given` are the operations of each of `count`, where they are no product. Of a
    grouped product m are the rows of all matrices; those of this `share`, of so many, are a chip's, as likely as any.
    """

    count: Side
    m: Side
    n: Side
    k: Side
    dtype: DType
    positions: Literal["", "n", "k"] = ""
    seen: tuple[int, int] = (1, 1)
    given: float = 0
    share: tuple[Side, int] | None = None

    def on_a_chip(self, sizes: Sequence[Mapping[str, int]]) -> Matmul:
        """With these extents of the operands."""
        count, m, n, k = (_extent(side, sizes) for side in (self.count, self.m, self.n, self.k))
        if self.share is not None:
            side, whole = self.share
            m = -(-m * _extent(side, sizes) // whole)
        share, whole = self.seen
        n, k = (-(-side * share // whole) if self.positions == name else side for name, side in (("n", n), ("k", k)))
        return Matmul(count, m, n, k, self.dtype, self.given)


def _extent(side: Side, sizes: Sequence[Mapping[str, int]]) -> int:
    return math.prod(sizes[slot][name] for slot, names in side for name in names)


def products_of(statement: Let, shapes: Sequence[Shape | None], windows: Sequence[int] = ()) -> tuple[Product, ...]:
    """The products of a contraction, grouped or not, or of attention, whose operands have these shapes; `windows` are
    as in `windows_of`. m is what the left side has alone, n the right, k what is summed; shared dimensions that stay
    are batched."""
    operation = statement.operation
    if isinstance(operation, Contract):
        left, right = _shape(shapes[0]), _shape(shapes[1])
        m, n = (tuple(x for x in a.names if x not in b) for a, b in ((left, right), (right, left)))
        count = tuple(name for name in left.names if name in right and name not in operation.dims)
        return (Product(((0, count),), ((0, m),), ((1, n),), ((0, operation.dims),), left.dtype),)
    if isinstance(operation, Grouped):
        x, w, expert = map(_shape, shapes)
        X, E = operation.dim, operation.dims
        count = tuple(name for name in x.names if name not in expert and name not in E)
        n = tuple(name for name in w.names if name not in (X, *E))
        share = ((1, (X,)),), w.size(X)
        return (Product(((0, count),), ((2, expert.names),), ((1, n),), ((0, E),), x.dtype, share=share),)
    if isinstance(operation, Attend):
        return _products_of_attention(operation, shapes, windows)
    if isinstance(operation, Foreign) and operation.flops:
        first = _shape(shapes[0])
        over = tuple(name for name in operation.splits if name in first)
        each = operation.flops / math.prod(first.size(name) for name in over)
        return (Product(((0, over),), (), (), (), first.dtype, given=each),)
    return ()


def _products_of_attention(
    operation: Attend, shapes: Sequence[Shape | None], windows: Sequence[int]
) -> tuple[Product, ...]:
    """The scores and the mean. Of pages that chips have apart each computes with its part of a row's positions; no two
    rows have the same."""
    (q, k, v), table = map(_shape, shapes[:3]), operation.at("pages")
    pages = None if table is None else shapes[table]
    gathered = [operation.gathered(q, pool, pages) for pool in (k, v)]
    rows, (share, whole) = operation.rows(q).names, operation.seen(q, gathered[0], windows)
    held, entries = operation.held(k, pages)
    share, whole = share * held, whole * entries
    positions: list[Side] = [((slot, operation.pool),) for slot in (1, 2)]
    if table is not None:
        of_row = (page_of_row(_shape(shapes[table]).names, q),)
        positions = [(*side, (table, of_row)) for side in positions]
        whole *= k.size(str(operation.page))
    width = tuple(name for name in v.names if name not in operation.pool and name not in rows)
    shared = [tuple(name for name in rows if name in of) for of in gathered]
    own = [tuple(name for name in rows if name not in of) for of in gathered]
    depth, seen = ((0, (operation.contracted,)),), (share, whole)
    return (
        Product(((0, shared[0]),), ((0, own[0]),), positions[0], depth, q.dtype, "n", seen),
        Product(((0, shared[1]),), ((0, own[1]),), ((2, width),), positions[1], q.dtype, "k", seen),
    )


def _shape(shape: Shape | None) -> Shape:
    assert shape is not None
    return shape
