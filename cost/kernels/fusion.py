"""Which statements run as one kernel, and what each kernel reads from memory and writes to it.

The rule, a small part of what XLA does (`XLA: Operation Fusion`), the same on every chip:

- Views (renames, splits and merges of dimensions, collectives over axes of one chip) are no kernels.
- A pointwise operation is computed within the kernels that read its result, as often as there are such kernels,
  save where a loop, the state or the caller wants the result in memory, or where a contraction would read more bytes
  for it than the result has. Widening int8 weights is so part of the contraction.
- So are a slice at one index, as of a micro-batch's rows, and, if kernels alone read it, one over chips, of anything
  but a product and what is computed in its kernel.
- A contraction takes the pointwise operations after it into its own kernel as long as each result has one reader.
- A grouped product is a contraction that reads of its matrices those that it can expect of indices as likely as any:
  of X matrices and n indices X (1 - (1 - 1/X)^n).
- A reduction takes the pointwise operations before it; its result goes to memory. So does that of attention, and its
  scores do not; with a window it reads the keys and values that queries see.
- Everything else, movements among them, is a kernel of its own.

Which statements belong together is found with movements taken out and every value whole. So it does not depend on
layouts, and the price of a program is a sum over its statements and movements. A movement that is a kernel parts
another: what it moves is then written to memory, and the rest of the kernel is another one. What a kernel reads for a
value that it computes before its product counts for that value also where a movement has brought it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardwright.cost.kernels.drawn import Draws, PagesRead
from shardwright.ir.known_numbers import known_numbers
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import (
    Alias,
    Attend,
    Concat,
    Convert,
    Elementwise,
    Full,
    Grouped,
    Iota,
    Lookup,
    Max,
    Merge,
    Movement,
    Rename,
    Rotary,
    Slice,
    Split,
    Sum,
    Take,
    Uniform,
    Update,
    Wait,
)
from shardwright.ir.program import Let, Marking, Program, Scope, Statement
from shardwright.ir.types import ON_DEVICE, DType, TensorType, ValueType
from shardwright.ir.walk import names_read, operand_names

_VIEWS = (Alias, Rename, Split, Merge, Wait)
_POINTWISE = (Elementwise, Rotary, Iota, Full, Uniform, Take, Concat)
_PARTLY_READ = (Take, Lookup)


@dataclass(frozen=True, slots=True)
class KernelTraffic:
    """Bytes of the value `name` when it is whole, to be divided as `slot` of a statement is split: an operand by its
    number, the result where it is -1. Only splits of `dims` count, all where it is None; of matrices or pages that are
    `drawn` the expected share."""

    slot: int
    name: str
    nbytes: float
    dims: frozenset[str] | None
    drawn: Draws | PagesRead | None = None

    def local(self, kind: TensorType, mesh: Mesh) -> float:
        """The bytes on a chip, where that operand or result has this type."""
        axes = [
            own for dim, own in zip(kind.dims, kind.splits, strict=True) if self.dims is None or dim.name in self.dims
        ]
        pair = 1 + 32 / (kind.dtype.bits * kind.dims[-1].size) if kind.is_pair else 1
        return pair * self.nbytes / math.prod(map(mesh.product, axes))


@dataclass(frozen=True)
class Charge:
    """The bytes that a statement adds to its kernel's traffic with memory: `inside` goes on beside products, `behind`
    is of what is computed after a product in its kernel, of which the chip hides all but a share, `beside` is hidden by
    nothing. `widened` counts, as bytes are, integers that are made floats. Of each kernel one statement `starts` it."""

    inside: tuple[KernelTraffic, ...] = ()
    behind: tuple[KernelTraffic, ...] = ()
    beside: tuple[KernelTraffic, ...] = ()
    widened: tuple[KernelTraffic, ...] = ()
    starts: bool = False


def is_view(statement: Let, mesh: Mapping[str, int]) -> bool:
    """Tells whether the result is the operand's bytes under another type."""
    operation = statement.operation
    if isinstance(operation, _VIEWS):
        return True
    if (
        isinstance(operation, Take)
        and operation.stop is None
        and statement.result.type.placement not in (None, ON_DEVICE)
    ):
        return True  # a copy that follows reads it where it lies
    return isinstance(operation, Movement) and bool(operation.named_axes) and _chips(operation, mesh) == 1


def _chips(operation: Movement, mesh: Mapping[str, int]) -> int:
    return math.prod(mesh[axis] for axis in operation.named_axes)


def pointwise(statement: Let) -> bool:
    """Tells whether each element of the result comes from one element of each operand."""
    return isinstance(statement.operation, _POINTWISE)


def reads_within(statement: Let, number: int, mesh: Mapping[str, int]) -> bool:
    """Tells whether a statement may compute a slice that it reads as this operand: a kernel may, where it does not
    write into that operand, nor is attention's, which takes keys and values as they lie."""
    in_place = isinstance(statement.operation, Update) and number == 0
    lying = isinstance(statement.operation, Attend) and number in (1, 2)
    return not (isinstance(statement.operation, Movement) or is_view(statement, mesh) or in_place or lying)


def widens(statement: Let, types: Mapping[str, ValueType]) -> bool:
    """Tells whether it makes wider floats of numbers of a few bits, as of quantized weights."""
    if not isinstance(statement.operation, Convert):
        return False
    before, after = types[str(statement.operands[0])].dtype, types[statement.result.name].dtype
    return (before.is_f8 or before in (DType.INT8, DType.INT4)) and after.is_float and not after.is_f8


def windows_of(statement: Let, scope: Scope) -> tuple[int, ...]:
    """The windows of attention that has them for an operand, one for each layer, where they are known."""
    operation = statement.operation
    at = operation.at("window") if isinstance(operation, Attend) else None
    known = None if at is None else scope.numbers.get(str(statement.operands[at]))
    return () if known is None else tuple(max(1, int(window)) for window in known.array.flat)


@dataclass
class Fusion:
    """The kernels of a body as they are without movements.

    `charges` are what statements add to kernels, by the first value that they make; there is none for what is computed
    before a product, a reduction or other values (`parted`). `after` has the values that a product makes and those
    computed from them in its kernel, each with what its reader then adds that is hidden no more; views of these are
    among them. `moved` are the values that movements of the text read, those of `slices` aside. `within` has for each
    value the values whose kernels it is computed in.
    """

    body: Sequence[Statement]
    scope: Scope
    types: dict[str, ValueType] = field(default_factory=dict[str, ValueType])
    lets: dict[str, Let] = field(default_factory=dict[str, Let])
    sources: dict[str, str] = field(default_factory=dict[str, str])
    """Of views, what they show."""
    origins: dict[str, str] = field(default_factory=dict[str, str])
    """Of views and of what movements make, the value that was computed."""
    readers: dict[str, list[Let]] = field(default_factory=dict[str, list[Let]])
    demanded: set[str] = field(default_factory=set[str])
    moved: set[str] = field(default_factory=set[str])
    settled: list[str] = field(default_factory=list[str])
    """What movements make of a type that is demanded."""
    slices: set[str] = field(default_factory=set[str])
    """Slices over chips that are computed in the kernels that read them."""
    inline: set[str] = field(default_factory=set[str])
    charges: dict[str, Charge] = field(default_factory=dict[str, Charge])
    after: dict[str, Charge] = field(default_factory=dict[str, Charge])
    within: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    leaves: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    """The values `below` those that were asked for."""

    @staticmethod
    def of(program: Program, body: Sequence[Statement], scope: Scope, returned: Sequence[str]) -> Fusion:
        """The charge of a body, whose values `scope` has defined afterwards."""
        made = Fusion(body, scope)
        made.types.update((name, scope.type_of(name)) for name in scope.values)
        for statement in body:
            made._index(statement, program.mesh)
        made.demanded.update(made.origin(name) for name in returned)
        made._choose()
        made._slice(program.mesh, returned)
        made._charge()
        return made

    def _index(self, statement: Statement, mesh: Mesh) -> None:
        match statement:
            case Let():
                names = operand_names(statement.operands)
                result = statement.results[0].name
                if is_view(statement, mesh):
                    self.sources[result], self.origins[result] = self.source(names[0]), self.origin(names[0])
                elif isinstance(statement.operation, Movement):
                    self.origins[result] = self.origin(names[0])
                    if statement.result.marking is Marking.DEMANDED:
                        self.settled.append(result)
                else:
                    for name in dict.fromkeys(map(self.origin, names)):
                        self.readers.setdefault(name, []).append(statement)
                    self.lets.update((value.name, statement) for value in statement.results)
            case _:
                self.demanded.update(map(self.origin, names_read((statement,))))
        for value in statement.results:
            self.scope.define(value)
            self.types[value.name] = self.scope.type_of(value.name)
        if isinstance(statement, Let) and (numbers := known_numbers(statement, self.scope.numbers)) is not None:
            self.scope.numbers[statement.results[0].name] = numbers

    def source(self, name: str) -> str:
        return self.sources.get(name, name)

    def origin(self, name: str) -> str:
        return self.origins.get(name, name)

    def elements(self, name: str) -> int:
        return self.types[name].shape.elements

    # ------------------------------------------------------------ what stays in its kernel

    def _choose(self) -> None:
        ends: set[str] = set()
        for name, statement in reversed(self.lets.items()):
            if statement.operation.is_product:
                chain = self._epilogue(name, self.inline | ends)
                if len(chain) > 1:
                    self.inline.update(chain[:-1])
                    self.after.update((value, Charge()) for value in chain[:-1])
                    ends.add(chain[-1])
        for name, statement in self.lets.items():
            free = self._picks(statement) and name not in self.demanded and name not in ends and name in self.readers
            if free and name not in self.inline and self._worth_recomputing(name):
                self.inline.add(name)

    def _slice(self, mesh: Mesh, returned: Sequence[str]) -> None:
        wanted = set(returned)
        for statement in reversed(self.body):
            if not isinstance(statement, Let):
                wanted.update(names_read((statement,)))
                continue
            result, names = statement.results[0].name, operand_names(statement.operands)
            outside = result in wanted or result in self.settled or result in self.sources
            if isinstance(statement.operation, Slice) and not outside and self.origin(names[0]) not in self.after:
                self.slices.add(result)
            shown = result in self.sources and isinstance(statement.operation, Movement)  # between one chip and itself
            inside = result not in wanted if shown else result in self.slices
            wanted.update(
                operand
                for number, operand in enumerate(statement.operands)
                if isinstance(operand, str) and not inside and not reads_within(statement, number, mesh)
            )
            if isinstance(statement.operation, Movement) and result not in self.slices and result not in self.sources:
                self.moved.add(names[0])

    def _epilogue(self, name: str, taken: set[str]) -> list[str]:
        """The contraction and the pointwise results after it that have one reader each, the last one's aside."""
        chain = [name]
        while True:
            readers = self.readers.get(chain[-1], [])
            if chain[-1] in self.demanded or len(readers) != 1 or not pointwise(readers[0]):
                return chain
            following = readers[0].result.name
            if following in taken:
                return chain
            chain.append(following)

    def _picks(self, statement: Let) -> bool:
        """Tells whether each element of the result comes from one of each operand, as in a slice at one index too."""
        if not isinstance(statement.operation, Lookup):
            return pointwise(statement)
        table, index = (self.types[name].names if isinstance(name, str) else () for name in statement.operands)
        return set(index) <= set(table)

    def _worth_recomputing(self, name: str) -> bool:
        if not any(reader.operation.is_product for reader in self.readers[name]):
            return True
        kind = self.types[name]
        leaves = dict(self._leaves(self.lets[name]))
        read = sum(n * self.types[leaf].dtype.bits for leaf, n in leaves.items())
        return read <= kind.shape.elements * kind.dtype.bits

    def below(self, name: str) -> set[str]:
        """The values that lie in memory, without movements, of what a value is computed from."""
        name = self.origin(name)
        if name not in self.inline:
            return {name}
        if name not in self.leaves:
            self.leaves[name] = {leaf for leaf, _ in self._leaves(self.lets[name])}
        return self.leaves[name]

    # ------------------------------------------------------------ what is read and written

    def _leaves(self, statement: Let, limit: float = math.inf) -> Iterator[tuple[str, int]]:
        """The values that lie in memory of what a statement is computed from, and how many elements of it are read."""
        for position, operand in enumerate(statement.operands):
            if isinstance(operand, str):
                yield from self._leaves_of(statement, position, operand, limit)

    def _leaves_of(self, statement: Let, position: int, operand: str, limit: float) -> Iterator[tuple[str, int]]:
        operation = statement.operation
        if isinstance(operation, Update) and position == 0:
            return  # written in place, never read
        if not self._picks(statement):
            limit = math.inf  # of a product every element counts, whichever of its results are read
        if isinstance(operation, _PARTLY_READ) and position == 0:
            limit = min(limit, self.elements(statement.results[0].name))
        if isinstance(operation, Attend) and position in (1, 2):
            limit = self._positions_read(statement, operand)
        name = self.origin(operand)
        if name in self.inline:
            yield from self._leaves(self.lets[name], limit)
        else:
            yield name, int(min(limit, self.elements(name)))

    def _positions_read(self, statement: Let, operand: str) -> int:
        """Elements of keys or values of which attention reads the positions in a window."""
        operation = statement.operation
        assert isinstance(operation, Attend)
        q, k = (self.types[str(name)].shape for name in statement.operands[:2])
        at, pool = operation.at("pages"), self.types[operand].shape
        table = None if at is None else self.types[str(statement.operands[at])].shape
        held, entries = operation.held(pool, table)
        k, elements = operation.gathered(q, k, table), operation.gathered(q, pool, table).elements * held // entries
        read = operation.read(q, k, windows_of(statement, self.scope))
        return -(-elements * read // k.size(operation.along))

    def _charge(self) -> None:
        for name, statement in self.lets.items():
            if name == statement.results[0].name and name not in self.inline:
                self._charge_kernel(statement)
        for name in [*self.lets, *self.sources, *self.settled]:
            if self.origin(name) in self.after:
                reader, *others = self._following(self.origin(name))
                left = [each for each in self.charges[reader].behind if each.nbytes > 0]
                left += [each for other in others for each in self.charges[other].behind]
                beside = tuple(self._seen_from(name, each) for each in left)
                self.after[name] = Charge(beside=beside, starts=not self._reduced((reader, *others)[-1]))

    @property
    def parted(self) -> dict[str, Charge]:
        """The charge that a movement adds of each value that is computed in the kernels that read it."""
        names = [*self.lets, *self.sources, *self.settled]
        return {name: charge for name in names if (charge := self.parting(name)) is not None}

    def parting(self, name: str) -> Charge | None:
        """The charge that a movement of one value adds; None where it adds none, or what `after` has."""
        origin = self.origin(name)
        known = name in self.lets or name in self.sources or name in self.settled
        return self._standing(name) if known and origin in self.inline and origin not in self.after else None

    def _reduced(self, name: str) -> bool:
        """Tells whether a reduction's kernel reads a value: that can compute it, and write it as well."""
        roots = [root for reader in self.readers.get(name, ()) for root in self.within[reader.results[0].name]]
        return any(isinstance(self.lets[root].operation, Sum | Max) for root in roots)

    def _charge_kernel(self, root: Let) -> None:
        inlined = self.inlined(root, self.inline, self.origin)
        heavy = heavy_of(inlined, root)
        name = root.results[0].name
        for statement in (*inlined, root):
            own = statement.results[0].name
            self.within[own] = (*self.within.get(own, ()), name)
        following = {
            heavy.results[0].name,
            name,
            *(s.results[0].name for s in inlined if s.results[0].name in self.after),
        }
        counted: set[str] = set()
        for statement in (heavy, *(s for s in (*inlined, root) if s is not heavy)):
            if statement.results[0].name not in following:
                continue
            reads = [each for each in self._read(statement, following) if each.name not in counted]
            counted.update(each.name for each in reads)
            made = (*reads, *self._written(statement, reads), *self._kept(statement))
            widened = tuple(self._widened(statement, following))
            inside, behind = (made, ()) if statement is heavy else ((), made)
            self.charges[statement.results[0].name] = Charge(inside, behind, (), widened, statement is heavy)

    def _read(self, statement: Let, following: set[str]) -> list[KernelTraffic]:
        """The values that a statement reads and the kernel has not computed in the statements before it."""
        found: dict[str, KernelTraffic] = {}
        for position, operand in enumerate(statement.operands):
            if not isinstance(operand, str) or self.origin(operand) in following:
                continue
            slot = -1 if isinstance(statement.operation, _PARTLY_READ) and position == 0 else position
            for leaf, elements in self._leaves_of(statement, position, operand, math.inf):
                nbytes = elements * self.types[leaf].dtype.bits / 8
                if leaf not in found or found[leaf].nbytes < nbytes:
                    found[leaf] = self._traffic(statement, slot, leaf, nbytes)
        return list(found.values())

    def _written(self, statement: Let, reads: Sequence[KernelTraffic]) -> tuple[KernelTraffic, ...]:
        """An update writes its new rows, everything else its results."""
        if isinstance(statement.operation, Update):
            return tuple(KernelTraffic(each.slot, "", each.nbytes, each.dims) for each in reads[:1])
        return tuple(KernelTraffic(-1, "", self.bytes_of(value.name), None) for value in statement.results)

    def _kept(self, statement: Let) -> Iterator[KernelTraffic]:
        """Leaves unwritten what a statement reads that a product has just made."""
        for slot, operand in enumerate(statement.operands):
            if isinstance(operand, str) and self.origin(operand) in self.after:
                yield KernelTraffic(slot, "", -self.bytes_of(operand), None)

    def bytes_of(self, name: str) -> float:
        """The bytes of a value that is whole."""
        return self.types[name].shape.elements * self.types[name].dtype.bits / 8

    def _traffic(self, statement: Let, slot: int, name: str, nbytes: float) -> KernelTraffic:
        there = set(self.types[statement.results[0].name if slot < 0 else str(statement.operands[slot])].names)
        own = frozenset(self.types[name].names)
        # Renamed, split and merged dimensions lie as those that they were.
        drawn, dims = None, own if own <= there else None
        match statement.operation:
            case Grouped(dim=dim) if slot == 1:
                drawn = Draws(2, self.types[str(statement.operands[1])].shape.size(dim))
            case Attend() as attend if slot in (1, 2) and (table := attend.at("pages")) is not None:
                rows = self.types[str(statement.operands[table])]
                drawn = PagesRead(table, rows.shape.elements)
                dims = (dims or frozenset(there)).difference(rows.names)  # splits of rows count in the table
            case _:
                pass
        return KernelTraffic(slot, name, nbytes, dims, drawn)

    def _following(self, name: str) -> list[str]:
        """The statements computed after a value in its product's kernel, up to the root."""
        (reader,) = self.readers[name]
        result = reader.results[0].name
        return [result, *(self._following(result) if result in self.after else ())]

    def _seen_from(self, name: str, each: KernelTraffic) -> KernelTraffic:
        """Traffic of a statement that is computed elementwise of a value, divided as that is split."""
        own, there = each.dims, frozenset(self.types[name].names)
        return replace(each, slot=-1, dims=own if own is not None and own <= there else None)

    def _widened(self, statement: Let, following: set[str]) -> Iterator[KernelTraffic]:
        """The integers that are made floats on the way into a statement, and by itself."""

        def within(of: Let, slot: int) -> Iterator[KernelTraffic]:
            if widens(of, self.types):
                name = of.result.name
                yield self._traffic(statement, slot, name, self.elements(name))
            for position, operand in enumerate(of.operands):
                name = self.origin(operand) if isinstance(operand, str) else ""
                if name in self.inline and name not in following:
                    yield from within(self.lets[name], position if of is statement else slot)

        yield from within(statement, -1)

    def _standing(self, name: str) -> Charge:
        """The time that computing a value adds where it is written to memory, not computed in the kernels that read
        it."""
        statement = self.lets[self.origin(name)]
        there = set(self.types[name].names)
        leaves: dict[str, int] = {}
        for leaf, elements in self._leaves(statement):
            leaves[leaf] = max(elements, leaves.get(leaf, 0))
        made = [KernelTraffic(-1, "", self.bytes_of(name), None)]
        for leaf, elements in leaves.items():
            own = frozenset(self.types[leaf].names)
            nbytes = elements * self.types[leaf].dtype.bits / 8
            made.append(KernelTraffic(-1, leaf, nbytes, own if own <= there else None))
        return Charge(beside=tuple(made), starts=True)

    def inlined(self, root: Let, inline: set[str], source: Callable[[str], str]) -> list[Let]:
        """The statements that are computed in the kernel of a root; `source` says whose bytes an operand shows."""
        wanted: set[str] = set()
        stack = [root]
        while stack:
            for name in operand_names(stack.pop().operands):
                at = source(name)
                if at in inline and at not in wanted:
                    wanted.add(at)
                    stack.append(self.lets[at])
        return [statement for name, statement in self.lets.items() if name in wanted] if wanted else []


def heavy_of(inlined: Sequence[Let], root: Let) -> Let:
    """The statement that a kernel is named after: its contraction if it has one, else its root."""
    return next((s for s in reversed(inlined) if s.operation.is_product), root)
