"""Checks of the text of a module before it is explained: that it is whole, partitioned, and of the devices it names."""

from __future__ import annotations

import re

from shardwright.backends.hlo.collectives import WORDS
from shardwright.backends.hlo.groups import groups_of, pairs_of
from shardwright.backends.hlo.module import Computation, HloError, HloModule, Instruction

_TO_BE_PARTITIONED = re.compile(
    r"^HloModule .*xla\.sdy\.meshes=|custom_call_target=\"(?:Sharding|SPMDFullToShardShape|xla\.sdy\.)", re.MULTILINE
)
"""Marks of a module before its compiler makes collectives of shardings: Shardy's meshes, and GSPMD's marks."""

_SCHEDULED = re.compile(r"^HloModule .*\bis_scheduled=true", re.MULTILINE)
"""The end of optimizations. For one device nothing is partitioned, and Shardy's meshes stay."""

_OWN_WORDS = ("constant", "parameter")
"""Opcodes whose arguments are words and numbers, and no operands."""


def check_whole(module: HloModule, text: str) -> None:
    """Raises `HloError` where the module of a text is not partitioned yet, lacks computations or values that it names,
    has a computation that calls itself, or collectives of other devices than its own."""
    if _TO_BE_PARTITIONED.search(text) and not _SCHEDULED.search(text):
        raise HloError(f"{module.name} is not partitioned yet; the text that is ends in after_optimizations.txt")
    _check_computation(module, module.entry, (), set())


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
        if instruction.opcode.removesuffix("-start") in WORDS:
            _check_devices(instruction, module.devices)
            continue  # what it applies to each pair of elements is not read
        for callee in instruction.called:
            _check_computation(module, callee, (*callers, name), done)
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


def _check_devices(instruction: Instruction, devices: int) -> None:
    if "source_target_pairs" in instruction.attributes:
        joined = pairs_of(instruction)
    else:
        joined = groups_of(instruction, devices)
        if not joined:
            raise HloError(f"{instruction.name} joins no devices")
    if any(device >= devices for each in joined for device in each):
        raise HloError(f"{instruction.name} joins devices that are not among the {devices} of the module")
