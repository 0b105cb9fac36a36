"""Checks of the text of a module before it is explained: that it is whole, partitioned, of the devices it names, and
that each instruction has the operands and dimensions that it speaks of."""

from __future__ import annotations

import re

from shardwright.backends.hlo.collectives import word_of
from shardwright.backends.hlo.groups import groups_of, pairs_of
from shardwright.backends.hlo.module import Computation, HloError, HloModule, Instruction, parts_of
from shardwright.ir.text.table import counted

_TO_BE_PARTITIONED = re.compile(
    r"^HloModule .*xla\.sdy\.meshes=|custom_call_target=\"(?:Sharding|SPMDFullToShardShape|xla\.sdy\.)", re.MULTILINE
)
"""Marks of a module before its compiler makes collectives of shardings: Shardy's meshes, and GSPMD's marks."""

_SPLIT = re.compile(r"(?:\bsharding=\{.*?(?:devices|mesh)=?\[|#sdy\.mesh<\[)[^\]]*?(?<=[\[=,])(?:[2-9]|1\d)")
"""A sharding, or a mesh of Shardy's, of several devices."""

_SCHEDULED = re.compile(r"^HloModule .*\bis_scheduled=true", re.MULTILINE)
"""The end of optimizations. For one device nothing is partitioned, and Shardy's meshes stay."""

_PARTITIONED = "_spmd"
"""The ending that XLA's partitioner gives to the names of computations."""

_LEAST_OPERANDS = {
    "bitcast": 1, "broadcast": 1, "concatenate": 1, "conditional": 1, "convolution": 2, "copy": 1, "dot": 2,
    "dynamic-slice": 1, "dynamic-update-slice": 2, "gather": 2, "get-tuple-element": 1, "pad": 2, "reduce": 2,
    "reshape": 1, "reverse": 1, "scatter": 3, "slice": 1, "transpose": 1, "while": 1,
}  # fmt: skip
"""How many values an instruction reads at least, of those that are asked for theirs."""

_WITHOUT_ARRAYS = ("(", "token", "opaque")
"""Beginnings of types that need not hold an array."""

_ARRANGED = re.compile(r"<=\[([^\]]*)\]")
_EXTENTS = re.compile(r"[1-9]\d*(?:,[1-9]\d*)*")
_OF_SIDES = re.compile(r"\b([lr])hs_(?:batch|contracting)_dims=\{([\d,]*)\}")
_DIMENSIONS = re.compile(r"\bdimensions=\{([\d,]*)\}")
_ALONG = ("all-gather", "all-to-all", "reduce-scatter", "transpose")
"""Opcodes whose `dimensions` are those of what they read."""

_GATHERED = re.compile(r"\boffset_dims=\{([\d,]*)\}.*\bindex_vector_dim=(\d+)")

_OWN_WORDS = ("constant", "parameter")
"""Opcodes whose arguments are words and numbers, and no operands."""


def check_whole(module: HloModule, text: str) -> None:
    """Raises `HloError` where the module of a text is not partitioned yet, lacks computations or values that it names,
    has a computation that calls itself, or collectives of other devices than its own."""
    if not _SCHEDULED.search(text) and _is_to_be_partitioned(module, text):
        raise HloError(f"{module.name} is not partitioned yet; the text that is ends in after_optimizations.txt")
    _check_computation(module, module.entry, (), set())


def _is_to_be_partitioned(module: HloModule, text: str) -> bool:
    """Tells whether collectives are still to be made of shardings. A partitioned module keeps those of its arguments;
    without collectives only its entry's name tells it from one that is not."""
    split = _SPLIT.search(text) is not None
    if _TO_BE_PARTITIONED.search(text):
        return split or module.devices > 1
    if not split or _PARTITIONED in module.entry:
        return False
    return not any(word_of(each) for inside in module.computations.values() for each in inside.instructions.values())


def _check_computation(module: HloModule, name: str, callers: tuple[str, ...], done: set[str]) -> None:
    """Checks a computation that these call, the outermost first, and those that it calls."""
    if name in callers:
        raise HloError(f"the computation {name} calls itself")
    if name in done:
        return
    computation = module.computations.get(name)
    if computation is None or not computation.instructions:
        raise HloError(f"the computation {name} is missing" + (f", which {callers[-1]} calls" if callers else ""))
    _check_parameters(computation)
    for instruction in computation.instructions.values():
        _check_operands(computation, instruction)
        _check_type(instruction)
        _check_numbers(computation, instruction)
        if word_of(instruction):
            _check_devices(instruction, module.devices)
            continue  # what it applies to each pair of elements is not read
        for callee in instruction.called:
            _check_computation(module, callee, (*callers, name), done)
        if instruction.opcode == "fusion":
            _check_call(module, instruction)
    done.add(name)


def _check_parameters(computation: Computation) -> None:
    numbers = sorted(i.arguments.strip() for i in computation.instructions.values() if i.opcode == "parameter")
    if numbers != sorted(map(str, range(len(numbers)))):
        raise HloError(f"the computation {computation.name} lacks parameters")


def _check_operands(computation: Computation, instruction: Instruction) -> None:
    if instruction.opcode in _OWN_WORDS:
        return
    for operand in instruction.operands:
        if operand not in computation.instructions:
            raise HloError(f"{instruction.name} reads {operand}, which the text does not have")
    least = _LEAST_OPERANDS.get(instruction.opcode, int(word_of(instruction) is not None))
    if len(instruction.operands) < least:
        read = counted(len(instruction.operands), "value")
        raise HloError(f"{instruction.name} reads {read}, and {instruction.opcode} takes {least}")


def _check_type(instruction: Instruction) -> None:
    """Checks that a result is an array, or need not be one, and that arrays lie in an order of their dimensions."""
    if not instruction.arrays and not instruction.type.startswith(_WITHOUT_ARRAYS):
        raise HloError(f"{instruction.name} makes {instruction.type or 'nothing'}, which is no array")
    for array in instruction.arrays:
        if sorted(array.order) != list(range(len(array.extents))):
            raise HloError(f"{instruction.name} lies in an order that is not of its {len(array.extents)} dimensions")


def _check_numbers(computation: Computation, instruction: Instruction) -> None:
    """Checks the numbers by which an instruction speaks of devices, dimensions of what it reads, members of tuples."""
    if not all(_EXTENTS.fullmatch(extents) for extents in _ARRANGED.findall(instruction.attributes)):
        raise HloError(f"{instruction.name} has devices in an arrangement without extents")
    read = [computation.instructions[name] for name in instruction.operands if name in computation.instructions]
    said: list[tuple[int, str]] = []
    if instruction.opcode == "dot":
        said = [("lr".index(side), numbers) for side, numbers in _OF_SIDES.findall(instruction.attributes)]
    elif instruction.opcode.removesuffix("-start") in _ALONG:
        said = [(0, numbers) for numbers in _DIMENSIONS.findall(instruction.attributes)]
    for at, numbers in said:
        if any(int(number) >= _rank(read[at]) for number in numbers.split(",") if number):
            raise HloError(f"{instruction.name} speaks of dimensions that {read[at].name} does not have")
    if instruction.opcode == "gather" and (looked_up := _GATHERED.search(instruction.attributes)):
        rank, made = _rank(read[1]), range(_rank(instruction))
        rank += len({n for n in looked_up[1].split(",") if n and int(n) in made}) - (int(looked_up[2]) < rank)
        if rank != len(made):
            raise HloError(f"{instruction.name} has {len(made)} dimensions, and gathers {rank}")
    index = instruction.index if instruction.opcode == "get-tuple-element" else None
    if index is not None and index >= len(parts_of(read[0].type)):
        raise HloError(f"{instruction.name} takes member {index} of {read[0].name}, which has fewer")


def _rank(instruction: Instruction) -> int:
    return len(instruction.arrays[0].extents) if instruction.arrays else 0


def _check_call(module: HloModule, instruction: Instruction) -> None:
    if not instruction.called:
        raise HloError(f"{instruction.name} does not say which computation it is a kernel of")
    inner = module.computations[instruction.called[0]]
    taken = sum(each.opcode == "parameter" for each in inner.instructions.values())
    if taken != len(instruction.operands):
        read = counted(len(instruction.operands), "value")
        raise HloError(f"{instruction.name} reads {read}, and {inner.name} takes {taken}")


def _check_devices(instruction: Instruction, devices: int) -> None:
    if "source_target_pairs" in instruction.attributes:
        joined = pairs_of(instruction)
    else:
        joined = groups_of(instruction, devices)
        if not joined:
            raise HloError(f"{instruction.name} joins no devices")
    named = [device for each in joined for device in each]
    if any(device >= devices for device in named):
        raise HloError(f"{instruction.name} joins devices that are not among the {devices} of the module")
    if "source_target_pairs" not in instruction.attributes and sorted(named) != list(range(devices)):
        raise HloError(f"{instruction.name} joins devices twice, or leaves some out")
