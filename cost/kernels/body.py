"""The kernels of a body of an explicit program: those of `cost.kernels.fusion`, some of which movements part."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardwright.cost.kernels.fusion import Charge, Fusion, KernelTraffic, heavy_of
from shardwright.ir.ops import Movement
from shardwright.ir.program import Free, Func, Let, Loop, Program, Scope, SetState, Statement
from shardwright.ir.types import OpenType, TensorType
from shardwright.ir.walk import operand_names


@dataclass(frozen=True)
class KernelRead:
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
    reads: tuple[KernelRead, ...]
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
class BodyKernels:
    """A body as steps in program order, with the types of all values visible in it.

    `sources` maps a view to the value whose bytes it shows; other names stand for themselves.
    """

    steps: tuple[Step, ...]
    types: Mapping[str, TensorType]
    sources: Mapping[str, str]
    scope: Scope
    program: Program
    known: list[tuple[Loop, BodyKernels]] = field(default_factory=list[tuple[Loop, "BodyKernels"]])
    """The bodies of loops that were asked for."""

    def source(self, name: str) -> str:
        return self.sources.get(name, name)

    def inside(self, loop: Loop) -> BodyKernels:
        """The kernels of the body of a loop of this one."""
        made = next((body for each, body in self.known if each is loop), None)
        if made is None:
            made = fused(self.program, loop.body, self.scope.inside(loop), loop.following)
            self.known.append((loop, made))
        return made


_RECENT: deque[tuple[Program, Func, BodyKernels]] = deque(maxlen=8)
"""Functions whose kernels were asked for lately: their time and their memory are asked for one after the other."""


def function_kernels(program: Program, func: Func) -> BodyKernels:
    """The kernels of a function's body. Raises TypeError where a type has holes."""
    made = next((body for whole, each, body in tuple(_RECENT) if whole is program and each is func), None)
    if made is None:
        made = fused(program, func.body, Scope.of(program, func), func.returns)
        _RECENT.append((program, func, made))
    return made


def fused(program: Program, body: Sequence[Statement], scope: Scope, returned: Sequence[str]) -> BodyKernels:
    """The kernels of a body; `returned` are the names that must be in memory at its end.

    `scope` is that at the start of the body, and has the body's values defined afterwards. Raises TypeError
    where a type has holes.
    """
    return _Parted(Fusion.of(program, body, scope, returned), program).block()


@dataclass
class _Sum:
    """The sum of the statements of a kernel."""

    reads: dict[str, float] = field(default_factory=dict[str, float])
    written: float = 0.0
    behind: float = 0.0
    beside: float = 0.0
    widened: float = 0.0
    starts: int = 1


class _Parted:
    """The kernels of a body whose movements part some of them."""

    def __init__(self, fusion: Fusion, program: Program) -> None:
        self.fusion, self.program, self.mesh = fusion, program, program.mesh
        self.types: dict[str, TensorType] = {}
        for name, kind in fusion.types.items():
            if isinstance(kind, OpenType):
                raise TypeError(f"{name}: {kind} still has holes")
            self.types[name] = kind
        self.sources = dict(fusion.sources)
        for statement in fusion.body:
            if isinstance(statement, Let) and isinstance(statement.operation, Movement):
                name, operand = statement.results[0].name, str(statement.operands[0])
                if name in fusion.slices or name in self.sources:
                    self.sources[name] = self.source(operand)
        self.inline = fusion.inline - {fusion.source(name) for name in fusion.moved}

    def source(self, name: str) -> str:
        """The value whose bytes a view or a slice within kernels shows."""
        return self.sources.get(name, name)

    def block(self) -> BodyKernels:
        steps: list[Step] = []
        for statement in self.fusion.body:
            match statement:
                case Let():
                    name = statement.results[0].name
                    if name not in self.sources and name not in self.inline:
                        steps.append(self.kernel(statement))
                case SetState() | Free() | Loop():
                    steps.append(statement)
                case _:
                    pass
        return BodyKernels(tuple(steps), self.types, self.sources, self.fusion.scope, self.program)

    def kernel(self, root: Let) -> Kernel:
        if isinstance(root.operation, Movement):
            return self.movement(root)
        inlined = self.fusion.inlined(root, self.inline, self.source)
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
                made.starts -= not self.fusion.after[self.fusion.origin(str(statement.operands[moved]))].starts
                cuts -= 1
            made.behind, made.beside = made.behind - cuts * behind, made.beside + cuts * behind
            if statement is root:
                self.part(made, root)
            for each in charge.widened:
                made.widened += self.local(statement, each, self.slot_type(statement, each.slot))
        reads = tuple(KernelRead(*item) for item in made.reads.items())
        return Kernel(
            root, heavy_of(inlined, root), tuple(inlined), reads, made.written, made.behind, made.beside, made.widened,
            made.starts,
        )  # fmt: skip

    def movement(self, root: Let) -> Kernel:
        """One of its own, whatever is computed around it. It reads as much as it makes, a collective its operand."""
        name, operation = self.source(str(root.operands[0])), root.operation
        made = float(self.types[root.result.name].local_bytes(self.mesh))
        whole = isinstance(operation, Movement) and operation.communicates
        read = float(self.types[name].local_bytes(self.mesh)) if whole else made
        return Kernel(root, root, (), (KernelRead(name, read),), made, 0.0, read + made, 0.0)

    def add(self, made: _Sum, statement: Let, each: KernelTraffic, kind: TensorType) -> float:
        """Adds what is read or written, and returns its bytes."""
        nbytes = self.local(statement, each, kind)
        if each.name:
            at = self.lies(statement, each)
            made.reads[at] = made.reads.get(at, 0.0) + nbytes
        else:
            made.written += nbytes
        return nbytes

    def local(self, statement: Let, each: KernelTraffic, kind: TensorType) -> float:
        """The bytes on a chip, where the operand or result that they go with has this type."""
        nbytes = each.local(kind, self.mesh)
        if each.drawn is None:
            return nbytes
        indices = self.slot_type(statement, each.drawn.slot).local_elements(self.mesh)
        return nbytes * each.drawn.share(indices)

    def slot_type(self, statement: Let, slot: int) -> TensorType:
        return self.types[statement.results[0].name if slot < 0 else str(statement.operands[slot])]

    def moved_product(self, statement: Let) -> int | None:
        """The operand that a movement took out of its product's kernel, by its number."""
        for slot, operand in enumerate(statement.operands):
            parted = isinstance(operand, str) and self.source(operand) not in self.inline
            if parted and self.fusion.origin(str(operand)) in self.fusion.after:
                return slot
        return None

    def cuts(self, statement: Let) -> int:
        """How many movements there are between a product and what is computed after it."""
        for operand in statement.operands:
            if isinstance(operand, str) and (origin := self.fusion.origin(operand)) in self.fusion.after:
                own = self.source(operand) not in self.inline
                return own + self.cuts(self.fusion.lets[origin])
        return 0

    def add_moved(self, made: _Sum, statement: Let, slot: int) -> float:
        """Adds what a statement reads and writes that hides behind no product, since a movement brings what it works
        on."""
        operand, kind = str(statement.operands[slot]), self.slot_type(statement, slot)
        origin = self.fusion.origin(operand)
        read = KernelTraffic(slot, origin, self.fusion.bytes_of(operand), None)
        own = [each for each in self.fusion.charges[statement.results[0].name].behind if each.nbytes > 0]
        rest = sum(self.add(made, statement, each, self.slot_type(statement, each.slot)) for each in own)
        return self.add(made, statement, read, kind) + rest

    def part(self, made: _Sum, root: Let) -> None:
        """The charge that movements of a result add that would have stayed in a kernel."""
        name = root.results[0].name
        nodes = [node for node in self.fusion.moved if self.fusion.origin(node) == name]
        parting = [(node, charge) for node in nodes if (charge := self.fusion.parting(node)) is not None]
        for number, (node, charge) in enumerate(parting):
            made.starts += number > 0
            made.beside += sum(self.add(made, root, each, self.types[node]) for each in charge.beside)
        for node in (node for node in nodes if node in self.fusion.after and node in self.fusion.settled):
            # It is read in between, what follows comes from there, and another kernel is started.
            again = KernelTraffic(-1, "", self.fusion.bytes_of(node), None)
            rest = sum(each.local(self.types[node], self.mesh) for each in self.fusion.after[node].beside)
            nbytes = self.add(made, root, again, self.types[node])
            made.starts += self.fusion.after[node].starts
            made.behind += nbytes - rest
            made.beside += nbytes + rest

    def lies(self, statement: Let, each: KernelTraffic) -> str:
        """Where the bytes lie that a statement counts as read: the value in memory on the way to them."""
        slots = [each.slot] if each.slot >= 0 else range(len(statement.operands))
        stack = [str(statement.operands[slot]) for slot in slots if isinstance(statement.operands[slot], str)]
        while stack:
            name = self.source(stack.pop(0))
            if name in self.inline:
                stack.extend(operand_names(self.fusion.lets[name].operands))
            elif each.name in self.fusion.below(name) | {self.fusion.origin(name)}:
                return name
        return each.name
