"""What the kernel of each statement reads and writes, as shares of what its operands and results have on a chip.

Which statements run as one kernel does not depend on layouts, as long as no movement parts them (`cost.fusion`). So
the kernels of a program are found once, with every value whole, and a kernel's bytes under any layout follow from the
layouts that its main statement takes: values computed elementwise lie as what they are computed from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shardwright.cost.fusion import Block, Kernel, fused
from shardwright.cost.work import widens
from shardwright.ir.ops import Lookup, Slice, Take, Update
from shardwright.ir.program import Free, Let, Loop, Program, Scope, SetState, Statement
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
    """The kernels of a program: of the main statements, by the identity of the statement.

    `before` and `after` are values, by function and name, that are not written to memory unless a movement parts their
    kernel: computed before its main statement, or by it and after it.
    `bodies` has for each statement the number of the innermost loop's body that it is in, 0 outside loops.
    `within` has for each statement the statements, by identity, whose kernels it is computed in; itself, where its
    result goes to memory.
    """

    kernels: Mapping[int, Shares]
    before: frozenset[tuple[str, str]]
    after: frozenset[tuple[str, str]]
    bodies: Mapping[int, int]
    within: Mapping[int, tuple[int, ...]]


def structure_of(program: Program) -> Structure:
    """The kernels of a surface program without norms and softmax (`decompose`)."""
    whole = map_program_values(program, lambda _func, value: replace(value, type=_whole_type(value.type)))
    kernels: dict[int, Shares] = {}
    before: set[tuple[str, str]] = set()
    after: set[tuple[str, str]] = set()
    bodies: dict[int, int] = {}
    within: dict[int, tuple[int, ...]] = {}
    for func, copy in zip(program.funcs, whole.funcs, strict=True):
        originals = {id(b): a for (a, _), (b, _) in zip(func.walk(), copy.walk(), strict=True)}
        inside = (before, after)
        _gather(whole, copy.body, Scope.of(whole, copy), copy.returns, originals, kernels, inside, within, copy.name)
        _number(func.body, 0, bodies)
    return Structure(kernels, frozenset(before), frozenset(after), bodies, within)


def _number(body: Sequence[Statement], at: int, bodies: dict[int, int]) -> None:
    for statement in body:
        if isinstance(statement, Loop):
            _number(statement.body, id(statement), bodies)
        else:
            bodies[id(statement)] = at


def _gather(
    program: Program,
    body: Sequence[Statement],
    scope: Scope,
    returned: Sequence[str],
    originals: Mapping[int, Statement],
    kernels: dict[int, Shares],
    inside: tuple[set[tuple[str, str]], set[tuple[str, str]]],
    within: dict[int, tuple[int, ...]],
    func: str,
) -> None:
    block = fused(program, body, scope, returned)
    lets = {value.name: s for s in body if isinstance(s, Let) for value in s.results}
    for step in block.steps:
        match step:
            case Kernel():
                kernels[id(originals[id(step.heavy)])] = _shares(step, block, lets)
                following = _following(step)
                root = id(originals[id(step.root)])
                for statement in step.statements:
                    own = id(originals[id(statement)])
                    within[own] = (*within.get(own, ()), root)
                for statement in step.inlined:
                    name = statement.results[0].name
                    inside[name in following].add((func, name))
            case Loop():
                inner = scope.inside(step)
                _gather(program, step.body, inner, step.following, originals, kernels, inside, within, func)
            case SetState() | Free():
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
