"""Which statements of an explicit program run as one kernel, and what each kernel reads from and writes to memory.

The rule, a small part of what XLA does (`XLA: Operation Fusion`), the same on every chip:

- Views (renames, splits and merges of dimensions, collectives over axes of one chip) are no kernels.
- A pointwise operation is computed within the kernels that read its result, as often as there are such kernels,
  save where a collective, a loop, the state or the caller wants the result in memory, or where a contraction
  would read more bytes for it than the result has. Widening int8 weights is so part of the contraction.
- A contraction takes the pointwise operations after it into its own kernel as long as each result has one reader, up to
  a slice over chips: a chip writes what it has multiplied, and reads its slice of it.
- A reduction takes the pointwise operations before it; its result goes to memory. So does that of attention, and its
  scores do not; with a window it reads the keys and values that queries see.
- Everything else, collectives among them, is a kernel of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardwright.ir.ops import (
    Alias,
    AsPartial,
    Attend,
    Concat,
    Contract,
    Elementwise,
    Full,
    Iota,
    Lookup,
    Merge,
    Movement,
    Rename,
    Rotary,
    Slice,
    Split,
    Take,
    Uniform,
    Update,
    Wait,
)
from shardwright.ir.program import Free, Let, Loop, Program, Scope, SetState, Statement
from shardwright.ir.types import ON_DEVICE, OpenType, TensorType
from shardwright.ir.walk import names_read, operand_names

_VIEWS = (Alias, Rename, Split, Merge, Wait)
_POINTWISE = (Elementwise, Rotary, Iota, Full, Uniform, Take, Concat, Slice, AsPartial)
_PARTLY_READ = (Take, Slice, Lookup)


@dataclass(frozen=True)
class Read:
    """A value in memory that a kernel reads, and how many of its elements on a chip; `type` as the kernel sees it."""

    name: str
    type: TensorType
    elements: int


@dataclass(frozen=True)
class Kernel:
    """Statements that run as one, in program order; `root` is the last, whose results go to memory.

    `heavy` is the statement that the kernel is named after: its contraction if it has one, else the root.
    `reads` are values in memory, each once; what an update writes into is not among them.
    """

    root: Let
    heavy: Let
    inlined: tuple[Let, ...]
    reads: tuple[Read, ...]

    @property
    def statements(self) -> tuple[Let, ...]:
        return (*self.inlined, self.root)

    @property
    def in_place(self) -> bool:
        """Whether the root writes rows into its first operand."""
        return isinstance(self.root.operation, Update)


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
    return _Fuser(program, body, scope, returned).block()


def is_view(statement: Let, mesh: Mapping[str, int]) -> bool:
    """Whether the result is the operand's bytes under another type."""
    operation = statement.operation
    if isinstance(operation, _VIEWS):
        return True
    if isinstance(operation, Take) and operation.stop is None and statement.result.type.placement != ON_DEVICE:
        return True  # a copy that follows reads it where it lies
    return isinstance(operation, Movement) and bool(operation.named_axes) and _chips(operation, mesh) == 1


def _chips(operation: Movement, mesh: Mapping[str, int]) -> int:
    return math.prod(mesh[axis] for axis in operation.named_axes)


class _Fuser:
    def __init__(self, program: Program, body: Sequence[Statement], scope: Scope, returned: Sequence[str]) -> None:
        self.mesh = program.mesh
        self.body = body
        self.lets: dict[str, Let] = {}
        self.sources: dict[str, str] = {}
        self.types: dict[str, TensorType] = {}
        self.elements: dict[str, int] = {}
        """What a chip has of each value."""
        self.readers: dict[str, list[Let]] = {}
        self.demanded: set[str] = set()
        self.scope = scope
        for name in list(scope.values):
            self._see(name)
        for statement in body:
            self._index(statement)
        self.demanded.update(self.sources.get(name, name) for name in returned)
        self.inline = self._chosen()

    # ------------------------------------------------------------ reading the body

    def _see(self, name: str) -> None:
        kind = self.scope.type_of(name)
        if isinstance(kind, OpenType):
            raise TypeError(f"{name}: {kind} still has holes")
        self.types[name] = kind
        self.elements[name] = kind.local_elements(self.mesh)

    def _index(self, statement: Statement) -> None:
        match statement:
            case Let():
                names = [self.source(name) for name in operand_names(statement.operands)]
                if is_view(statement, self.mesh):
                    self.sources[statement.result.name] = names[0]
                else:
                    for name in dict.fromkeys(names):
                        self.readers.setdefault(name, []).append(statement)
                    if not pointwise(statement) and isinstance(statement.operation, Movement):
                        self.demanded.update(names)
                    for value in statement.results:
                        self.lets[value.name] = statement
            case _:
                self.demanded.update(self.source(name) for name in names_read((statement,)))
        for value in statement.results:
            self.scope.define(value)
            self._see(value.name)

    def source(self, name: str) -> str:
        return self.sources.get(name, name)

    # ------------------------------------------------------------ choosing

    def _chosen(self) -> set[str]:
        """The results that stay within the kernels that read them."""
        inline: set[str] = set()
        ends: set[str] = set()
        for name, statement in reversed(self.lets.items()):
            if isinstance(statement.operation, Contract):
                chain = self._epilogue(name, inline | ends)
                if len(chain) > 1:
                    inline.update(chain[:-1])
                    ends.add(chain[-1])
        for name, statement in self.lets.items():
            free = pointwise(statement) and name not in self.demanded and name not in ends and name in self.readers
            if free and name not in inline and self._worth_recomputing(name, inline):
                inline.add(name)
        return inline

    def _epilogue(self, name: str, taken: set[str]) -> list[str]:
        """The contraction and the pointwise results after it that have one reader each, the last one's aside."""
        chain = [name]
        while True:
            readers = self.readers.get(chain[-1], [])
            if chain[-1] in self.demanded or len(readers) != 1 or not pointwise(readers[0]):
                return chain
            if isinstance(readers[0].operation, Slice):  # of the product: written whole
                return chain
            following = readers[0].result.name
            if following in taken:
                return chain
            chain.append(following)

    def _worth_recomputing(self, name: str, inline: set[str]) -> bool:
        if not any(isinstance(reader.operation, Contract) for reader in self.readers[name]):
            return True
        own = self.types[name].local_bytes(self.mesh)
        return sum(_bytes(read) for read in self._reads(self.lets[name], inline)) <= own

    # ------------------------------------------------------------ the result

    def block(self) -> Block:
        steps: list[Step] = []
        for statement in self.body:
            match statement:
                case Let():
                    name = statement.results[0].name
                    if name not in self.sources and name not in self.inline:
                        steps.append(self._kernel(statement))
                case SetState() | Free() | Loop():
                    steps.append(statement)
                case _:
                    pass
        return Block(tuple(steps), self.types, self.sources, self.scope)

    def _kernel(self, root: Let) -> Kernel:
        inlined = self._inlined(root)
        heavy = next((s for s in reversed(inlined) if isinstance(s.operation, Contract)), root)
        return Kernel(root, heavy, tuple(inlined), tuple(self._reads(root, self.inline)))

    def _inlined(self, root: Let) -> list[Let]:
        wanted: set[str] = set()
        stack = [root]
        while stack:
            for name in operand_names(stack.pop().operands):
                at = self.source(name)
                if at in self.inline and at not in wanted:
                    wanted.add(at)
                    stack.append(self.lets[at])
        return [statement for name, statement in self.lets.items() if name in wanted] if wanted else []

    def _reads(self, root: Let, inline: set[str]) -> list[Read]:
        """Leaves of the expression, each once, with the most elements that any use reads of it."""
        found: dict[str, Read] = {}
        for name, elements in self._leaves(root, inline):
            most = min(elements, self.elements[name])
            if name not in found or found[name].elements < most:
                found[name] = Read(name, self.types[name], most)
        return list(found.values())

    def _positions_read(self, statement: Let, operand: str) -> int:
        """Elements of keys or values of which attention reads the positions in a window."""
        operation = statement.operation
        assert isinstance(operation, Attend)
        q, k = (self.types[str(name)].shape for name in statement.operands[:2])
        return -(-self.elements[operand] * operation.read(q, k) // k.size(operation.along))

    def _leaves(self, statement: Let, inline: set[str], limit: float = math.inf) -> Iterator[tuple[str, int]]:
        own = self.elements[statement.results[0].name]
        if not pointwise(statement):
            limit = math.inf  # of a product every element counts, whichever of its results are read
        for position, operand in enumerate(statement.operands):
            if not isinstance(operand, str):
                continue
            if isinstance(statement.operation, Update) and position == 0:
                continue  # written in place, never read
            partly = isinstance(statement.operation, _PARTLY_READ) and position == 0
            most = min(limit, own) if partly else limit
            if isinstance(statement.operation, Attend) and position in (1, 2):
                most = self._positions_read(statement, operand)
            name = self.source(operand)
            if name in inline:
                yield from self._leaves(self.lets[name], inline, most)
            else:
                size = self.elements[name]
                yield name, size if most > size else int(most)


def pointwise(statement: Let) -> bool:
    """Whether each element of the result comes from one element of each operand."""
    return isinstance(statement.operation, _POINTWISE)


def _bytes(read: Read) -> int:
    return read.type.bytes_of(read.elements)
