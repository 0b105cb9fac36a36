"""Which statements run as one kernel, and what each kernel reads from memory and writes to it.

The rule, a small part of what XLA does (`XLA: Operation Fusion`), the same on every chip:

- Views (renames, splits and merges of dimensions, collectives over axes of one chip) are no kernels.
- A pointwise operation is computed within the kernels that read its result, as often as there are such kernels,
  save where a loop, the state or the caller wants the result in memory, or where a contraction would read more bytes
  for it than the result has. Widening int8 weights is so part of the contraction.
- A contraction takes the pointwise operations after it into its own kernel as long as each result has one reader.
- A reduction takes the pointwise operations before it; its result goes to memory. So does that of attention, and its
  scores do not; with a window it reads the keys and values that queries see.
- Everything else, movements among them, is a kernel of its own.

Which statements belong together is found with movements taken out and every value whole. So it does not depend on
layouts, and the price of a program is a sum over its statements and movements. A movement parts a kernel: what it moves
is then written to memory, and the rest of the kernel is another one. What a kernel reads for a value that it computes
before its product counts for that value also where a movement has brought it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import (
    Alias,
    Attend,
    Concat,
    Contract,
    Convert,
    Elementwise,
    Full,
    Iota,
    Lookup,
    Merge,
    Movement,
    Rename,
    Rotary,
    Split,
    Take,
    Uniform,
    Update,
    Wait,
)
from shardwright.ir.program import Free, Let, Loop, Marking, Program, Scope, SetState, Statement
from shardwright.ir.types import ON_DEVICE, DType, OpenType, TensorType, ValueType
from shardwright.ir.walk import names_read, operand_names

_VIEWS = (Alias, Rename, Split, Merge, Wait)
_POINTWISE = (Elementwise, Rotary, Iota, Full, Uniform, Take, Concat)
_PARTLY_READ = (Take, Lookup)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of the value `name` when it is whole, to be divided as `slot` of a statement is split: an operand by its
    number, the result where it is -1. Only splits of `dims` count, all where it is None."""

    slot: int
    name: str
    nbytes: float
    dims: frozenset[str] | None

    def local(self, kind: TensorType, mesh: Mesh) -> float:
        """The bytes on a chip, where that operand or result has this type."""
        axes = [
            own for dim, own in zip(kind.dims, kind.splits, strict=True) if self.dims is None or dim.name in self.dims
        ]
        pair = 1 + 32 / (kind.dtype.bits * kind.dims[-1].size) if kind.is_pair else 1
        return pair * self.nbytes / math.prod(map(mesh.product, axes))


@dataclass(frozen=True)
class Charge:
    """What a statement adds to its kernel's traffic with memory: `inside` goes on beside products, `behind` is of what
    is computed after a product in its kernel, of which the chip hides all but a share, `beside` is hidden by nothing.
    `widened` counts, as bytes are, integers that are made floats. Of each kernel one statement `starts` it."""

    inside: tuple[Traffic, ...] = ()
    behind: tuple[Traffic, ...] = ()
    beside: tuple[Traffic, ...] = ()
    widened: tuple[Traffic, ...] = ()
    starts: bool = False


@dataclass(frozen=True)
class Read:
    """A value in memory that a kernel reads, and how many bytes count for it on a chip."""

    name: str
    nbytes: float


@dataclass(frozen=True)
class Kernel:
    """Statements that run as one, in program order; `root` is the last, whose results go to memory.

    `heavy` is the statement that the kernel is named after: its contraction if it has one, else the root.
    `reads` are values in memory, each once; what an update writes into is not among them. Of the bytes that are read
    and written `behind` and `beside` are as in `Charge`.
    """

    root: Let
    heavy: Let
    inlined: tuple[Let, ...]
    reads: tuple[Read, ...]
    written: float
    behind: float
    beside: float
    widened: float
    starts: int = 1
    """How many kernels it counts as."""

    @property
    def statements(self) -> tuple[Let, ...]:
        return (*self.inlined, self.root)


Step = Kernel | SetState | Free | Loop


@dataclass(frozen=True)
class Block:
    """A body as steps in program order, with the types of all values visible in it.

    `sources` maps a view to the value whose bytes it shows; other names stand for themselves.
    """

    steps: tuple[Step, ...]
    types: Mapping[str, TensorType]
    sources: Mapping[str, str]
    scope: Scope

    def source(self, name: str) -> str:
        return self.sources.get(name, name)


def fused(program: Program, body: Sequence[Statement], scope: Scope, returned: Sequence[str]) -> Block:
    """The kernels of a body; `returned` are the names that must be in memory at its end.

    `scope` is that at the start of the body, and has the body's values defined afterwards. Raises TypeError
    where a type has holes.
    """
    return _Parted(Fusion.of(program, body, scope, returned), program.mesh).block()


def is_view(statement: Let, mesh: Mapping[str, int]) -> bool:
    """Whether the result is the operand's bytes under another type."""
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
    """Whether each element of the result comes from one element of each operand."""
    return isinstance(statement.operation, _POINTWISE)


def widens(statement: Let, types: Mapping[str, ValueType]) -> bool:
    """Whether it makes floats of integers of a few bits, as of quantized weights."""
    if not isinstance(statement.operation, Convert):
        return False
    before, after = types[str(statement.operands[0])].dtype, types[statement.result.name].dtype
    return before in (DType.INT8, DType.INT4) and after.is_float


# ---------------------------------------------------------------- without movements, every value whole


@dataclass
class Fusion:
    """The kernels of a body as they are without movements.

    `charges` are what statements add to kernels, by the first value that they make; there is none for what is computed
    before a product, a reduction or other values. `parted` has what a movement of such a value adds; `after` has the
    values that a product makes and those computed from them in its kernel, each with what its reader then adds that is
    hidden no more; views of these are among them. `moved` are
    the values that movements of the text read. `within` has for each value the values whose kernels it is computed in.
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
    inline: set[str] = field(default_factory=set[str])
    charges: dict[str, Charge] = field(default_factory=dict[str, Charge])
    parted: dict[str, Charge] = field(default_factory=dict[str, Charge])
    after: dict[str, Charge] = field(default_factory=dict[str, Charge])
    within: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @staticmethod
    def of(program: Program, body: Sequence[Statement], scope: Scope, returned: Sequence[str]) -> Fusion:
        """That of a body, whose values `scope` has defined afterwards."""
        made = Fusion(body, scope)
        made.types.update((name, scope.type_of(name)) for name in scope.values)
        for statement in body:
            made._index(statement, program.mesh)
        made.demanded.update(made.origin(name) for name in returned)
        made._choose()
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
                    self.moved.add(names[0])
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
            if isinstance(statement.operation, Contract):
                chain = self._epilogue(name, self.inline | ends)
                if len(chain) > 1:
                    self.inline.update(chain[:-1])
                    self.after.update((value, Charge()) for value in chain[:-1])
                    ends.add(chain[-1])
        for name, statement in self.lets.items():
            free = pointwise(statement) and name not in self.demanded and name not in ends and name in self.readers
            if free and name not in self.inline and self._worth_recomputing(name):
                self.inline.add(name)

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

    def _worth_recomputing(self, name: str) -> bool:
        if not any(isinstance(reader.operation, Contract) for reader in self.readers[name]):
            return True
        kind = self.types[name]
        leaves = dict(self._leaves(self.lets[name]))
        read = sum(n * self.types[leaf].dtype.bits for leaf, n in leaves.items())
        return read <= kind.shape.elements * kind.dtype.bits

    def below(self, name: str) -> set[str]:
        """What lies in memory, without movements, of what a value is computed from."""
        name = self.origin(name)
        return {leaf for leaf, _ in self._leaves(self.lets[name])} if name in self.inline else {name}

    # ------------------------------------------------------------ what is read and written

    def _leaves(self, statement: Let, limit: float = math.inf) -> Iterator[tuple[str, int]]:
        """What lies in memory of what a statement is computed from, and how many elements of it are read."""
        for position, operand in enumerate(statement.operands):
            if isinstance(operand, str):
                yield from self._leaves_of(statement, position, operand, limit)

    def _leaves_of(self, statement: Let, position: int, operand: str, limit: float) -> Iterator[tuple[str, int]]:
        operation = statement.operation
        if isinstance(operation, Update) and position == 0:
            return  # written in place, never read
        if not pointwise(statement):
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
        return -(-self.elements(operand) * operation.read(q, k) // k.size(operation.along))

    def _charge(self) -> None:
        for name, statement in self.lets.items():
            if name == statement.results[0].name and name not in self.inline:
                self._charge_kernel(statement)
        for name in [*self.lets, *self.sources, *self.settled]:
            if self.origin(name) in self.after:
                reader, *others = self._following(self.origin(name))
                left = [each for each in self.charges[reader].behind if each.nbytes > 0]
                left += [each for other in others for each in self.charges[other].behind]
                self.after[name] = Charge(beside=tuple(self._seen_from(name, each) for each in left))
            elif self.origin(name) in self.inline:
                self.parted[name] = self._standing(name)

    def _charge_kernel(self, root: Let) -> None:
        inlined = self.inlined(root, self.inline)
        heavy = _heavy(inlined, root)
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

    def _read(self, statement: Let, following: set[str]) -> list[Traffic]:
        """What a statement reads, that the kernel has not computed in the statements before it."""
        found: dict[str, Traffic] = {}
        for position, operand in enumerate(statement.operands):
            if not isinstance(operand, str) or self.origin(operand) in following:
                continue
            slot = -1 if isinstance(statement.operation, _PARTLY_READ) and position == 0 else position
            for leaf, elements in self._leaves_of(statement, position, operand, math.inf):
                nbytes = elements * self.types[leaf].dtype.bits / 8
                if leaf not in found or found[leaf].nbytes < nbytes:
                    found[leaf] = self._traffic(statement, slot, leaf, nbytes)
        return list(found.values())

    def _written(self, statement: Let, reads: Sequence[Traffic]) -> tuple[Traffic, ...]:
        """An update writes its new rows, everything else its results."""
        if isinstance(statement.operation, Update):
            return tuple(Traffic(each.slot, "", each.nbytes, each.dims) for each in reads[:1])
        return tuple(Traffic(-1, "", self.bytes_of(value.name), None) for value in statement.results)

    def _kept(self, statement: Let) -> Iterator[Traffic]:
        """What a statement reads that a product has just made is not written there."""
        for slot, operand in enumerate(statement.operands):
            if isinstance(operand, str) and self.origin(operand) in self.after:
                yield Traffic(slot, "", -self.bytes_of(operand), None)

    def bytes_of(self, name: str) -> float:
        """The bytes of a value that is whole."""
        return self.types[name].shape.elements * self.types[name].dtype.bits / 8

    def _traffic(self, statement: Let, slot: int, name: str, nbytes: float) -> Traffic:
        there = set(self.types[statement.results[0].name if slot < 0 else str(statement.operands[slot])].names)
        own = frozenset(self.types[name].names)
        # Renamed, split and merged dimensions lie as those that they were.
        return Traffic(slot, name, nbytes, own if own <= there else None)

    def _following(self, name: str) -> list[str]:
        """What is computed after a value in its product's kernel, up to the root."""
        (reader,) = self.readers[name]
        result = reader.results[0].name
        return [result, *(self._following(result) if result in self.after else ())]

    def _seen_from(self, name: str, each: Traffic) -> Traffic:
        """Traffic of a statement that is computed elementwise of a value, divided as that is split."""
        own, there = each.dims, frozenset(self.types[name].names)
        return replace(each, slot=-1, dims=own if own is not None and own <= there else None)

    def _widened(self, statement: Let, following: set[str]) -> Iterator[Traffic]:
        """The integers that are made floats on the way into a statement, and by itself."""

        def within(of: Let, slot: int) -> Iterator[Traffic]:
            if widens(of, self.types):
                name = of.result.name
                yield self._traffic(statement, slot, name, self.elements(name))
            for position, operand in enumerate(of.operands):
                name = self.origin(operand) if isinstance(operand, str) else ""
                if name in self.inline and name not in following:
                    yield from within(self.lets[name], position if of is statement else slot)

        yield from within(statement, -1)

    def _standing(self, name: str) -> Charge:
        """What computing a value adds where it is written to memory, not computed in the kernels that read it."""
        statement = self.lets[self.origin(name)]
        there = set(self.types[name].names)
        leaves: dict[str, int] = {}
        for leaf, elements in self._leaves(statement):
            leaves[leaf] = max(elements, leaves.get(leaf, 0))
        made = [Traffic(-1, "", self.bytes_of(name), None)]
        for leaf, elements in leaves.items():
            own = frozenset(self.types[leaf].names)
            nbytes = elements * self.types[leaf].dtype.bits / 8
            made.append(Traffic(-1, leaf, nbytes, own if own <= there else None))
        return Charge(beside=tuple(made), starts=True)

    def inlined(self, root: Let, inline: set[str]) -> list[Let]:
        """The statements that are computed in the kernel of a root."""
        wanted: set[str] = set()
        stack = [root]
        while stack:
            for name in operand_names(stack.pop().operands):
                at = self.origin(name) if inline is self.inline else self.source(name)
                if at in inline and at not in wanted:
                    wanted.add(at)
                    stack.append(self.lets[at])
        return [statement for name, statement in self.lets.items() if name in wanted] if wanted else []


def _heavy(inlined: Sequence[Let], root: Let) -> Let:
    return next((s for s in reversed(inlined) if isinstance(s.operation, Contract)), root)


# ---------------------------------------------------------------- with movements


@dataclass
class _Sum:
    """What the statements of a kernel come to."""

    reads: dict[str, float] = field(default_factory=dict[str, float])
    written: float = 0.0
    behind: float = 0.0
    beside: float = 0.0
    widened: float = 0.0
    starts: int = 1


class _Parted:
    """The kernels of a body whose movements part some of them."""

    def __init__(self, fusion: Fusion, mesh: Mesh) -> None:
        self.fusion = fusion
        self.mesh = mesh
        self.types: dict[str, TensorType] = {}
        for name, kind in fusion.types.items():
            if isinstance(kind, OpenType):
                raise TypeError(f"{name}: {kind} still has holes")
            self.types[name] = kind
        self.inline = fusion.inline - {fusion.source(name) for name in fusion.moved}

    def block(self) -> Block:
        steps: list[Step] = []
        for statement in self.fusion.body:
            match statement:
                case Let():
                    name = statement.results[0].name
                    if name not in self.fusion.sources and name not in self.inline:
                        steps.append(self.kernel(statement))
                case SetState() | Free() | Loop():
                    steps.append(statement)
                case _:
                    pass
        return Block(tuple(steps), self.types, self.fusion.sources, self.fusion.scope)

    def kernel(self, root: Let) -> Kernel:
        if isinstance(root.operation, Movement):
            return self.movement(root)
        inlined = self.fusion.inlined(root, self.inline)
        made = _Sum()
        for statement in (*inlined, root):
            charge = self.fusion.charges.get(statement.results[0].name, Charge())
            for each in charge.inside:
                self.add(made, statement, each, self.slot_type(statement, each.slot))
            moved, cuts = self.moved_product(statement), self.cuts(statement)
            behind = sum(each.local(self.slot_type(statement, each.slot), self.mesh) for each in charge.behind)
            if moved is None:
                made.behind += sum(
                    self.add(made, statement, each, self.slot_type(statement, each.slot)) for each in charge.behind
                )
            else:
                made.beside += self.add_moved(made, statement, moved)
                cuts -= 1
            made.behind, made.beside = made.behind - cuts * behind, made.beside + cuts * behind
            if statement is root:
                self.part(made, root)
            for each in charge.widened:
                made.widened += each.local(self.slot_type(statement, each.slot), self.mesh)
        reads = tuple(Read(*item) for item in made.reads.items())
        return Kernel(
            root, _heavy(inlined, root), tuple(inlined), reads, made.written, made.behind, made.beside, made.widened,
            made.starts,
        )  # fmt: skip

    def movement(self, root: Let) -> Kernel:
        """One of its own, whatever is computed around it. It reads as much as it makes, a collective its operand."""
        name, operation = self.fusion.source(str(root.operands[0])), root.operation
        made = float(self.types[root.result.name].local_bytes(self.mesh))
        whole = isinstance(operation, Movement) and operation.communicates
        read = float(self.types[name].local_bytes(self.mesh)) if whole else made
        return Kernel(root, root, (), (Read(name, read),), made, 0.0, read + made, 0.0)

    def add(self, made: _Sum, statement: Let, each: Traffic, kind: TensorType) -> float:
        """Adds what is read or written, and returns its bytes."""
        nbytes = each.local(kind, self.mesh)
        if each.name:
            at = self.lies(statement, each)
            made.reads[at] = made.reads.get(at, 0.0) + nbytes
        else:
            made.written += nbytes
        return nbytes

    def slot_type(self, statement: Let, slot: int) -> TensorType:
        return self.types[statement.results[0].name if slot < 0 else str(statement.operands[slot])]

    def moved_product(self, statement: Let) -> int | None:
        """The operand that a movement took out of its product's kernel, by its number."""
        for slot, operand in enumerate(statement.operands):
            parted = isinstance(operand, str) and self.fusion.source(operand) not in self.inline
            if parted and self.fusion.origin(str(operand)) in self.fusion.after:
                return slot
        return None

    def cuts(self, statement: Let) -> int:
        """How many movements there are between a product and what is computed after it."""
        for operand in statement.operands:
            if isinstance(operand, str) and (origin := self.fusion.origin(operand)) in self.fusion.after:
                own = self.fusion.source(operand) not in self.inline
                return own + self.cuts(self.fusion.lets[origin])
        return 0

    def add_moved(self, made: _Sum, statement: Let, slot: int) -> float:
        """What a statement reads and writes that hides behind no product, since a movement brings what it works on."""
        operand, kind = str(statement.operands[slot]), self.slot_type(statement, slot)
        origin = self.fusion.origin(operand)
        read = Traffic(slot, origin, self.fusion.bytes_of(operand), None)
        own = [each for each in self.fusion.charges[statement.results[0].name].behind if each.nbytes > 0]
        rest = sum(self.add(made, statement, each, self.slot_type(statement, each.slot)) for each in own)
        return self.add(made, statement, read, kind) + rest

    def part(self, made: _Sum, root: Let) -> None:
        """What movements of a result add that would have stayed in a kernel."""
        name = root.results[0].name
        nodes = [node for node in self.fusion.moved if self.fusion.origin(node) == name]
        for number, node in enumerate(node for node in nodes if node in self.fusion.parted):
            made.starts += number > 0
            made.beside += sum(self.add(made, root, each, self.types[node]) for each in self.fusion.parted[node].beside)
        for node in (node for node in nodes if node in self.fusion.after and node in self.fusion.settled):
            # It is read in between, what follows comes from there, and another kernel is started.
            again = Traffic(-1, "", self.fusion.bytes_of(node), None)
            rest = sum(each.local(self.types[node], self.mesh) for each in self.fusion.after[node].beside)
            nbytes = self.add(made, root, again, self.types[node])
            made.starts += 1
            made.behind += nbytes - rest
            made.beside += nbytes + rest

    def lies(self, statement: Let, each: Traffic) -> str:
        """Where the bytes lie that a statement counts as read: the value in memory on the way to them."""
        slots = [each.slot] if each.slot >= 0 else range(len(statement.operands))
        stack = [str(statement.operands[slot]) for slot in slots if isinstance(statement.operands[slot], str)]
        while stack:
            name = self.fusion.source(stack.pop(0))
            if name in self.inline:
                stack.extend(operand_names(self.fusion.lets[name].operands))
            elif each.name in self.fusion.below(name) | {self.fusion.origin(name)}:
                return name
        return each.name
