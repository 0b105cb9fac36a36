"""The kernels of a compiled module: their products, bytes and instructions, and the time where the compiler says it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from shardwright.backends.hlo.convolutions import convolution_dims
from shardwright.backends.hlo.executed import Branches, executed
from shardwright.backends.hlo.module import Computation, HloModule, Instruction, SourceFrame, arrays_in, parts_of

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_STATED = re.compile(r'"cost_estimate":\{"flops":"(\d+)","transcendentals":"\d+","bytes_accessed":"(\d+)"')
_CUBLAS = 'custom_call_target="__cublas$'
_DIMS = re.compile(r'\b(lhs|rhs)_(batch|contracting)_dim(?:ension)?s"?[=:][{\[]([\d",]+)')
_FUSIONS = frozenset({"fusion", "fusion-start"})
"""Opcodes of kernels that are computations of their own; the second goes on beside what follows, until its end."""

_WORKS = _FUSIONS | {"dot", "convolution", "custom-call", "reduce", "copy", "scatter", "sort"}
"""Opcodes of kernels where the compiler says no cycles."""

_NOTHING = _FUSIONS | {"bitcast", "broadcast", "constant", "get-tuple-element", "parameter", "reshape", "tuple"}
"""Opcodes within a kernel that are no work: other names and other shapes."""

_MOVES = frozenset({
    "broadcast", "concatenate", "copy", "dynamic-slice", "iota", "pad", "reshape", "reverse", "slice", "transpose",
})  # fmt: skip
"""Opcodes that show an array otherwise, or a part of it."""

_WRITTEN = {"dynamic-update-slice": 1, "scatter": -1}
"""Opcodes that write rows into an array where it lies, with the place of the rows among their operands."""

_REDUCTIONS = ("reduce", "reduce-window")


@dataclass(frozen=True)
class CompiledProduct:
    """`count` products of [m, k] and [k, n], with operands of so many bits an element, the wider of the two. `widened`
    are the elements of the other where it is narrower."""

    count: int
    m: int
    n: int
    k: int
    bits: int
    widened: int = 0


@dataclass(frozen=True)
class ArrayTraffic:
    """An array that a kernel reads or writes: bytes, padded to the tiles that it lies in, elements, their bits, and
    whether it lies in memory on the chip (TPUs' VMEM and CMEM)."""

    nbytes: int
    elements: int
    bits: int
    on_chip: bool


@dataclass(frozen=True)
class StatedWork:
    """The work that a kernel of the module's own (Pallas) says it does, for the compiler knows nothing of it."""

    flops: int
    nbytes: int


@dataclass(frozen=True)
class CompiledKernel:
    """An instruction with the cycles of one trip; `trips` is None in a loop of unknown length. One of the module's own
    has no cycles, but `stated` work; those of a compiler that estimates none have neither.

    `alone` says that it is no fusion. `instructions` has for each opcode within it the elements that it works on.
    `stacks` are the places in the source that it and what it fuses come from, its products' first.
    """

    name: str
    trips: int | None
    cycles: int | None
    alone: bool
    products: tuple[CompiledProduct, ...]
    reads: tuple[ArrayTraffic, ...]
    writes: tuple[ArrayTraffic, ...]
    instructions: Mapping[str, int]
    stacks: tuple[tuple[SourceFrame, ...], ...]
    stated: StatedWork | None = None
    branches: Branches = ()
    """The branches that it runs in."""

    @property
    def moves_only(self) -> bool:
        """Tells whether it only lays an array otherwise, such as a copy into another tiling, or a slice."""
        return not self.products and self.instructions.keys() <= _MOVES

    @property
    def reduced(self) -> int:
        """The elements that it reduces."""
        return max(self.instructions.get(opcode, 0) for opcode in _REDUCTIONS)


def kernels_of(module: HloModule, *, untimed: bool = False) -> list[CompiledKernel]:
    """The kernels with cycles or stated work, as TPUs' modules have them, in the order of each computation's text;
    with `untimed` those without too, which GPUs' are."""
    found: list[CompiledKernel] = []
    for computation, _, trips, branches in executed(module, _entered):
        for instruction in computation.instructions.values():
            cycles = _CYCLES.search(instruction.attributes)
            stated = _STATED.search(instruction.attributes)
            if cycles or stated or (untimed and is_kernel(instruction, untimed=True)):
                kernel = _kernel(module, computation, instruction, trips, int(cycles[1]) if cycles else None)
                work = StatedWork(*map(int, stated.groups())) if stated else None
                found.append(replace(kernel, stated=work, branches=branches))
    return found


def _entered(instruction: Instruction) -> bool:
    return instruction.opcode in {"while", "call", "conditional"}


def is_kernel(instruction: Instruction, *, untimed: bool = False) -> bool:
    """Tells whether a compiler that estimates kernels says an instruction's cycles; with `untimed`, whether one that
    estimates none has a kernel for it."""
    return instruction.opcode in _WORKS if untimed else _CYCLES.search(instruction.attributes) is not None


def _kernel(
    module: HloModule, computation: Computation, root: Instruction, trips: int | None, cycles: int | None
) -> CompiledKernel:
    inside = list(_inside(module, computation, root))
    multiplied = [(around, each) for around, each in inside if _multiplies(each)]
    counted: Counter[str] = Counter()
    for around, each in inside:
        if each.opcode not in _NOTHING and not _multiplies(each):
            counted[each.opcode] += _worked_on(around, each)
    stacks = [module.stack(each) for _, each in (*multiplied, *inside)]
    return CompiledKernel(
        root.name,
        trips,
        cycles,
        root.opcode not in _FUSIONS,
        tuple((_product if each.opcode == "convolution" else _dot)(around, each) for around, each in multiplied),
        tuple(_reads(module, computation, root)),
        tuple(_writes(computation, inside, root)),
        dict(counted),
        tuple(tuple(stack) for stack in stacks if stack),
    )


def _inside(
    module: HloModule, computation: Computation, root: Instruction
) -> Iterator[tuple[Computation, Instruction]]:
    """A kernel's instruction, and those of the computations that it fuses."""
    yield computation, root
    for callee in root.called if root.opcode in _FUSIONS else ():
        fused = module.computations[callee]
        for instruction in fused.instructions.values():
            yield from _inside(module, fused, instruction)


def _elements(computation: Computation, name: str) -> int:
    made = computation.instructions.get(name)
    return max((array.elements for array in made.arrays), default=0) if made else 0


def _worked_on(around: Computation, instruction: Instruction) -> int:
    """The elements that an instruction makes, or those that it reduces."""
    made = _elements(around, instruction.name)
    if instruction.opcode in _REDUCTIONS:
        return max([made, *(_elements(around, name) for name in instruction.operands)])
    return made


# ---------------------------------------------------------------- what is read and written


def _reads(module: HloModule, computation: Computation, root: Instruction) -> Iterator[ArrayTraffic]:
    for number, name in enumerate(root.operands):
        source = computation.instructions.get(name)
        if source is not None and source.opcode != "constant":
            part = _part_read(module, root, number)
            for whole in traffic_of(source.type):
                yield _share(whole, part)


def _part_read(module: HloModule, root: Instruction, number: int) -> int | None:
    """The elements that an instruction reads of an operand that it takes slices of or writes into; None for all."""
    if number == 0 and root.opcode in {"dynamic-slice", "gather", "slice"}:
        return root.arrays[0].elements
    if number == 0 and root.opcode in _WRITTEN:
        return 0
    if root.opcode not in _FUSIONS or not root.called:
        return None
    fused = module.computations[root.called[0]]
    return _part_used(module, fused, fused.parameter(number))


def _part_used(module: HloModule, fused: Computation, value: Instruction) -> int | None:
    """The elements that a fused computation reads of a value, under other shapes too; None for all."""
    if value.is_root:
        return None
    parts = [
        _part_used(module, fused, user)
        if user.opcode == "bitcast"
        else _part_read(module, user, user.operands.index(value.name))
        for user in fused.users(value.name)
    ]
    return max((part for part in parts if part is not None), default=0) if None not in parts else None


def _writes(
    computation: Computation, inside: list[tuple[Computation, Instruction]], root: Instruction
) -> Iterator[ArrayTraffic]:
    """The results, but for those of several that nobody takes, such as the workspace of a library's product; of an
    array that it writes rows into, the rows."""
    rows = [
        _elements(around, each.operands[_WRITTEN[each.opcode]]) for around, each in inside if each.opcode in _WRITTEN
    ]
    users = computation.users(root.name)
    parted = root.type.startswith("(") and all(user.opcode == "get-tuple-element" for user in users)
    taken = [user.index for user in users if parted and user.index is not None]
    made = parts_of(root.type)[1] if root.opcode == "fusion-start" else root.type  # between what it reads and a token
    for number, whole in enumerate(traffic_of(made)):
        if not taken or number in taken:
            yield _share(whole, rows[-1] if rows else None)


def _share(whole: ArrayTraffic, elements: int | None) -> ArrayTraffic:
    if elements is None or elements >= whole.elements:
        return whole
    return replace(whole, nbytes=round(whole.nbytes * elements / whole.elements), elements=elements)


def traffic_of(type_text: str) -> Iterator[ArrayTraffic]:
    """The arrays in the text of a type; the innermost dimensions are padded to the tile."""
    for array in arrays_in(type_text):
        extents = [array.extents[dim] for dim in reversed(array.order)]
        tile = array.tiles[0][::-1] if array.tiles else ()
        extents[: len(tile)] = [-(-extent // side) * side for extent, side in zip(extents, tile, strict=False)]
        yield ArrayTraffic(prod(extents) * array.bits // 8, array.elements, array.bits, array.on_chip)


# ---------------------------------------------------------------- products


def _multiplies(instruction: Instruction) -> bool:
    """Tells whether it is a product: a convolution of TPUs' compilers, a dot in a kernel of Triton's, or cuBLAS's."""
    return instruction.opcode in {"convolution", "dot"} or _CUBLAS in instruction.attributes


def _dot(around: Computation, dot: Instruction) -> CompiledProduct:
    """A product that says which dimensions of each side are batched, and which are summed: GPUs' compilers' own, and
    the calls of cuBLAS, which say it in their configuration."""
    left, right = (around.instructions[name].arrays[0] for name in dot.operands[:2])
    extents = {"lhs": left.extents, "rhs": right.extents}
    sizes = {
        (side, role): prod(extents[side][int(number)] for number in re.findall(r"\d+", numbers))
        for side, role, numbers in _DIMS.findall(dot.attributes)
    }
    count, k = sizes.get(("lhs", "batch"), 1), sizes.get(("lhs", "contracting"), 1)
    m, n = left.elements // (count * k), right.elements // (count * k)
    return CompiledProduct(count, m, n, k, max(left.bits, right.bits))


def _product(around: Computation, convolution: Instruction) -> CompiledProduct:
    """The TPU's compiler writes products as convolutions; a window counts as a dimension of the left operand."""
    left, right = (around.instructions[name].arrays[0] for name in convolution.operands)
    dims = convolution_dims(around, convolution)
    made = dict(zip(dims.made, convolution.arrays[0].extents, strict=True))
    rows = dict(zip(dims.left, left.extents, strict=True))
    columns = dict(zip(dims.right, right.extents, strict=True))
    count, m, n, k = (
        prod(extents[label] for label in labels)
        for extents, labels in (
            (made, dims.batch), (made | {"b": rows["b"]}, "b" + dims.of_left + dims.windows),
            (made | {"o": columns["o"]}, "o" + dims.of_right), (columns, "i" + dims.summed),
        )
    )  # fmt: skip
    widened = sum(array.elements for array in (left, right) if array.bits < max(left.bits, right.bits))
    return CompiledProduct(count, m, n, k, max(left.bits, right.bits), widened)
