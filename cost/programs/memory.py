"""The bytes that one chip's memories hold while a function of an explicit program runs: weights, state, and values live
at once.

Values are those that kernels write to memory (`cost.kernels.fusion`), each in the memories of its placement. A value is
live from the kernel that writes it to the last one that reads it, or to its `free`; one in flight, from its start, in
the memory that it goes to. State is donated: an update of it, or of a value that nobody reads afterwards, is in place.
A pointwise kernel writes over an operand of the same size that it is the last to read. A loop counts as its body once,
with the carried values in place of what they are before the first trip, or beside it where the body reads that too.
Arguments stay to the end: they are the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shardwright.cost.kernels.body import BodyKernels, Kernel, function_kernels
from shardwright.cost.kernels.fusion import pointwise
from shardwright.ir.ops import AllGather, Attend, Contract, Store, Update
from shardwright.ir.program import Free, Func, Loop, Program, SetState, Value
from shardwright.ir.types import TensorType, Tier
from shardwright.ir.walk import names_freed, names_read, operand_names


@dataclass(frozen=True, slots=True)
class LiveValue:
    """A value among those live at the peak, with the bytes that one chip holds of it."""

    name: str
    type: TensorType
    bytes: int


@dataclass(frozen=True)
class MemoryUse:
    """Bytes in one memory of one chip while a function runs.

    `activations` is the most that is live at once beside weights and state, arguments and results among it; `live`
    are these values, the largest first, and `at` names the value whose kernel was running then, "" where none is.
    """

    weights: int
    state: int
    activations: int
    live: tuple[LiveValue, ...] = ()
    at: str = ""

    @property
    def peak(self) -> int:
        return self.weights + self.state + self.activations

    def fits_in_int8(self, room: float, wide: float | None = None) -> bool:
        """Tells whether it fits with the weights of 16 bits in 8: `wide` bytes of them, or all."""
        return self.peak - (self.weights if wide is None else wide) / 2 <= room


def memory_of(program: Program, func: Func, tier: Tier = Tier.DEVICE, *, copied_slices: bool = False) -> MemoryUse:
    """The bytes of one memory, the chip's own by default, that one call of a function of an explicit program needs for
    each chip.

    With `copied_slices` the loops' slices of what lies outside of them are copied before products and attention read
    them, those of all products of one operand at once, also where they are gathered before; those that are gathered
    along one axis, with what gathers make of them, at the beginning of a trip. Raises TypeError where a type still has
    holes.
    """
    weights = sum(bytes_on(value.concrete, program.mesh, tier) for value in program.weights)
    state = sum(bytes_on(value.concrete, program.mesh, tier) for value in program.state)
    block = function_kernels(program, func)
    arguments = [value.name for value in func.params]
    outside = {value.name for value in (*program.weights, *program.state)}
    walk = _Liveness(program, block, tier, outside, func.returns, copied_slices)
    peak = walk.peak(arguments, kept=arguments)
    live = tuple(sorted(peak.live, key=lambda value: -value.bytes))
    return MemoryUse(weights, state, peak.bytes, live, peak.at)


def device_bytes(value: Value, mesh: Mapping[str, int]) -> int:
    """Bytes of a weight or state value on one chip's own memory; shares in other memories left out."""
    return bytes_on(value.concrete, mesh, Tier.DEVICE)


def bytes_on(kind: TensorType, mesh: Mapping[str, int], tier: Tier) -> int:
    """Bytes that a chip has of a value in one memory."""
    share = sum(percent for held, percent in kind.placement.shares if held is tier)
    return round(kind.local_bytes(mesh) * share / 100)


@dataclass(frozen=True)
class _Peak:
    live: tuple[LiveValue, ...]
    at: str

    @property
    def bytes(self) -> int:
        return sum(value.bytes for value in self.live)


@dataclass(frozen=True, slots=True)
class _CopiedSlices:
    """The slices of a block that are copied: what is held for gathers along one axis when the block begins, `gathered`
    values among it; and for each value that products or attention read what copies they read beside it, gathered slices
    among them."""

    early: frozenset[str] = frozenset()
    gathered: frozenset[str] = frozenset()
    beside: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    @staticmethod
    def of(block: BodyKernels, mesh: Mapping[str, int]) -> _CopiedSlices:
        early, gathered, slices = set[str](), set[str](), set[str]()
        beside: dict[str, frozenset[str]] = {}
        for kernel in block.steps:
            if not isinstance(kernel, Kernel):
                continue
            reads = {block.source(read.name) for read in kernel.reads}
            slices |= {name for name in reads if block.scope.shows_slice(name)}
            copied, made = reads & slices, {result.name for result in kernel.root.results}
            match kernel.heavy.operation:
                case AllGather(axes=axes) if reads == copied:
                    slices |= made
                    early |= reads | made if len(axes) == 1 else set()
                    gathered |= made if len(axes) == 1 else set()
                case Contract():
                    beside |= {name: beside.get(name, frozenset()) | copied for name in reads - copied}
                case Attend() if copied:
                    largest = max(copied, key=lambda name: block.types[name].local_bytes(mesh))
                    beside |= {name: frozenset({largest}) for name in reads - copied}
                case _:
                    pass
        return _CopiedSlices(frozenset(early), frozenset(gathered), beside)

    def read_by(self, kernel: Kernel, block: BodyKernels) -> set[str]:
        """The copies that are there while a kernel runs."""
        if not isinstance(kernel.heavy.operation, Contract | Attend):
            return set()
        return {name for read in kernel.reads for name in self.beside.get(block.source(read.name), ())}


@dataclass
class _Liveness:
    """Walks one block. `outside` are names whose bytes the caller counts: weights, state, values captured by a loop."""

    program: Program
    block: BodyKernels
    tier: Tier
    outside: set[str]
    returned: Sequence[str]
    copied_slices: bool
    owners: dict[str, str] = field(default_factory=dict[str, str])
    """Where a value lies in the bytes of another: updates in place."""
    values: dict[str, LiveValue] = field(default_factory=dict[str, LiveValue])
    """Those asked for so far."""

    def peak(self, begin: Iterable[str], kept: Iterable[str] = ()) -> _Peak:
        """The most that is live at once. `begin` is live at the start, `kept` and what is returned at the end."""
        last = self._last_reads()
        steps = self.block.steps
        for name in (*kept, *self.returned):
            last[self._source(name)] = len(steps)
        live = {self._source(name): self._live(self._source(name)) for name in begin}
        live = {name: value for name, value in live.items() if name not in self.outside}
        copies = _CopiedSlices.of(self.block, self.program.mesh) if self.copied_slices else _CopiedSlices()
        best = _Peak(_held(live | self._all(copies.early)), "")
        live |= self._all(copies.gathered)
        for number, step in enumerate(steps):
            dying = {name for name in live if last.get(name, -1) <= number}
            match step:
                case Loop():
                    best = max(best, self._loop(step, live, dying), key=lambda peak: peak.bytes)
                    made = [value.name for value in step.results]
                case Kernel():
                    made = self._written(number, step, dying, last)
                    reused = self._overwritten(step, dying, made)
                    now = {name: value for name, value in live.items() if name not in reused}
                    now |= self._all([*made, *copies.read_by(step, self.block)])
                    here = _Peak(_held(now), step.heavy.results[0].name)
                    best = max(best, here, key=lambda peak: peak.bytes)
                case SetState() | Free():
                    made = []
            live |= self._all(made)
            live = {name: value for name, value in live.items() if last.get(name, -1) > number}
        return best

    def _loop(self, loop: Loop, live: Mapping[str, LiveValue], dying: set[str]) -> _Peak:
        """The values that live through the loop, and the body's own peak: an initial value that dies, and is
        not read in later trips, becomes the carried one."""
        read_inside = {self._source(name) for name in names_read(loop.body)}
        initial = {self._source(carry.initial) for carry in loop.carries} - read_inside
        through = _held({name: value for name, value in live.items() if name not in dying & initial})
        outside = set(self.block.scope.inside(loop).values) - {carry.value.name for carry in loop.carries}
        inside = self.block.inside(loop)
        body = _Liveness(self.program, inside, self.tier, outside, loop.following, self.copied_slices)
        inner = body.peak([carry.value.name for carry in loop.carries])
        return _Peak((*through, *inner.live), inner.at)

    def _written(self, number: int, kernel: Kernel, dying: set[str], last: dict[str, int]) -> list[str]:
        """The results that need bytes of their own: not those of an update in place."""
        root = kernel.root
        if isinstance(root.operation, Update):
            name, updated = root.results[0].name, self._source(operand_names(root.operands)[0])
            if updated in dying or self._sets(number, name, updated):
                last[updated] = max(last[updated], last.get(name, -1))
                self.owners[name] = updated
                return []
        if isinstance(root.operation, Store):
            name = root.results[0].name
            for state in {step.state for step in self.block.steps[number + 1 :] if isinstance(step, SetState)}:
                if self._sets(number, name, state):
                    self.owners[name] = state
                    return []
        return [value.name for value in root.results]

    def _sets(self, number: int, name: str, state: str) -> bool:
        """Tells whether `name` becomes the next version of the state, and nothing reads the old one in between."""
        for step in self.block.steps[number + 1 :]:
            match step:
                case SetState() if step.state == state:
                    return self._source(step.operand) == name
                case Kernel() if state in self._names(step):
                    return False
                case Loop() if state in names_read((step,)):
                    return False
                case _:
                    pass
        return False

    def _overwritten(self, kernel: Kernel, dying: set[str], made: Sequence[str]) -> set[str]:
        """The operand whose bytes a pointwise kernel's result takes."""
        if not pointwise(kernel.heavy) or len(made) != 1:
            return set()
        own = self._live(made[0]).bytes
        reads = [self._source(read.name) for read in kernel.reads]
        return set([name for name in reads if name in dying and self._live(name).bytes == own][:1])

    def _last_reads(self) -> dict[str, int]:
        """For each value that has bytes, the number of the last step that reads it."""
        last: dict[str, int] = {}
        for number, step in enumerate(self.block.steps):
            names = self._names(step) if isinstance(step, Kernel) else {*names_read((step,)), *names_freed((step,))}
            last.update((self._source(name), number) for name in names)
        return last

    def _names(self, kernel: Kernel) -> set[str]:
        """The values in memory that a kernel's statements read, an updated one among them, and one in two layouts as
        two, though the price has it once."""
        within = {value.name for statement in kernel.inlined for value in statement.results}
        names = {name for statement in kernel.statements for name in operand_names(statement.operands)}
        return {self._source(name) for name in names if self.block.source(name) not in within}

    def _source(self, name: str) -> str:
        name = self.block.source(name)
        while name in self.owners:
            name = self.block.source(self.owners[name])
        return name

    def _all(self, names: Iterable[str]) -> dict[str, LiveValue]:
        return {name: self._live(name) for name in names}

    def _live(self, name: str) -> LiveValue:
        if name not in self.values:
            kind = self.block.types[name]
            self.values[name] = LiveValue(name, kind, bytes_on(kind, self.program.mesh, self.tier))
        return self.values[name]


def _held(live: Mapping[str, LiveValue]) -> tuple[LiveValue, ...]:
    """The values that take any of the memory."""
    return tuple(value for value in live.values() if value.bytes)
