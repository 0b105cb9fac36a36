"""What the kernel of each statement reads and writes, as shares of what its operands and results have on a chip.

Which statements run as one kernel does not depend on layouts, as long as no movement parts them (`cost.fusion`). So
the kernels of a program are found once, with every value whole, and a kernel's bytes under any layout follow from the
layouts that its main statement takes: values computed elementwise lie as what they are computed from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.cost.fusion import Block, Kernel, fused
from shardwright.cost.layout_problem import Location
from shardwright.cost.work import widens
from shardwright.ir.ops import Lookup, Slice, Take, Update
from shardwright.ir.program import Let, Loop, Program, Scope, Statement
from shardwright.ir.types import ON_DEVICE, TensorType, ValueType
from shardwright.ir.walk import map_program_values, operand_names


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of a value that is whole, to be divided as `slot` of the main statement is split: an operand by its
    number, the result where it is -1. Only splits of `dims` count, all where it is None."""

    slot: int
    nbytes: float
    dims: frozenset[str] | None


@dataclass(frozen=True)
class Shares:
    """The kernel of a statement: the bytes that it reads and writes, and, counted as bytes are, the integers that it
    makes floats."""

    traffic: tuple[Traffic, ...]
    widened: tuple[Traffic, ...] = ()


@dataclass(frozen=True)
class Structure:
    """The kernels of a program, by where their main statements stand.

    `before` and `after` are values, by function and name, that are not written to memory unless a movement parts their
    kernel: computed before its main statement, or by it and after it.
    `within` has for each statement the statements whose kernels it is computed in; itself, where its result goes to
    memory.
    """

    kernels: Mapping[Location, Shares]
    before: frozenset[tuple[str, str]]
    after: frozenset[tuple[str, str]]
    within: Mapping[Location, tuple[Location, ...]]


def structure_of(program: Program) -> Structure:
    """The kernels of a surface program without norms and softmax (`decompose`)."""
    whole = map_program_values(program, lambda _func, value: replace(value, type=_whole_type(value.type)))
    gathering = _Gathering(whole)
    for func in whole.funcs:
        gathering.block(func.body, Scope.of(whole, func), func.returns, (func.name, ()))
    return Structure(gathering.kernels, frozenset(gathering.before), frozenset(gathering.after), gathering.within)


class _Gathering:
    """Gathers the kernels of a program whose values are whole."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.kernels: dict[Location, Shares] = {}
        self.before: set[tuple[str, str]] = set()
        self.after: set[tuple[str, str]] = set()
        self.within: dict[Location, tuple[Location, ...]] = {}

    def block(self, body: Sequence[Statement], scope: Scope, returned: Sequence[str], of: Location) -> None:
        func, position = of
        block = fused(self.program, body, scope, returned)
        places = [(func, (*position, number)) for number in range(len(body))]
        lets = {value.name: s for s in body if isinstance(s, Let) for value in s.results}
        at = {value.name: place for place, s in zip(places, body, strict=True) for value in s.results}
        loops = iter([place for place, s in zip(places, body, strict=True) if isinstance(s, Loop)])
        for step in block.steps:
            match step:
                case Kernel():
                    self.kernels[at[step.heavy.result.name]] = _shares(step, block, lets)
                    following = _following(step)
                    root = at[step.root.result.name]
                    for statement in step.statements:
                        own = at[statement.result.name]
                        self.within[own] = (*self.within.get(own, ()), root)
                    for statement in step.inlined:
                        name = statement.result.name
                        (self.after if name in following else self.before).add((func, name))
                case Loop():
                    self.block(step.body, scope.inside(step), step.following, next(loops))
                case _:
                    pass


def _following(kernel: Kernel) -> set[str]:
    """The values that the main statement makes, and those computed from them, in a kernel."""
    found = {value.name for value in kernel.heavy.results}
    for statement in kernel.inlined:
        if found & set(operand_names(statement.operands)):
            found.update(value.name for value in statement.results)
    return found


def _shares(kernel: Kernel, block: Block, lets: Mapping[str, Let]) -> Shares:
    heavy = kernel.heavy
    inlined = {value.name for s in kernel.inlined for value in s.results} - {heavy.results[0].name}
    made: list[Traffic] = []
    widened: list[Traffic] = []
    counted: set[str] = set()
    sizes = {read.name: read for read in kernel.reads}

    def widen(statement: Let, slot: int) -> None:
        if widens(statement, block.types):
            kind = block.types[statement.result.name]
            widened.append(_traffic(slot, kind.shape.elements, kind, heavy, block))

    def reach(statement: Let, slot: int) -> None:
        for position, operand in enumerate(statement.operands):
            if not isinstance(operand, str):
                continue
            own = position if statement is heavy else slot
            if isinstance(statement.operation, Take | Slice | Lookup) and position == 0:
                own = -1 if statement is heavy else slot
            name = block.source(operand)
            if name in inlined:
                inlined.discard(name)
                widen(lets[name], own)
                reach(lets[name], own)
            elif name in sizes and name not in counted:
                counted.add(name)
                read = sizes[name]
                made.append(_traffic(own, read.elements * read.type.dtype.bits / 8, read.type, heavy, block))

    reach(heavy, -1)
    for statement in kernel.statements:
        if statement is not heavy:
            reach(statement, -1)
    root = kernel.root
    widen(root, -1)
    if isinstance(root.operation, Update):
        first = kernel.reads[:1]
        made.extend(_traffic(1, r.elements * r.type.dtype.bits / 8, r.type, heavy, block) for r in first)
    else:
        for value in root.results:
            kind = block.types[value.name]
            made.append(_traffic(-1, kind.shape.elements * kind.dtype.bits / 8, kind, heavy, block))
    return Shares(tuple(made), tuple(widened))


def _traffic(slot: int, nbytes: float, kind: TensorType, heavy: Let, block: Block) -> Traffic:
    name = heavy.results[0].name if slot < 0 else operand_names([heavy.operands[slot]])[0]
    there = set(block.types[name].names)
    own = frozenset(kind.names)
    # Renamed, split and merged dimensions lie as those that they were.
    return Traffic(slot, nbytes, own & there if own <= there else None)


# ---------------------------------------------------------------- every value whole


def _whole_type(kind: ValueType) -> TensorType:
    return TensorType.of_states(kind.shape, {}, kind.placement or ON_DEVICE)
