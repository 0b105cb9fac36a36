"""Which kernels of a scheduled module run while a collective is under way: those between its start and its end.

The text of a scheduled module is in the order of execution. A collective that the compiler does not part into start and
end has the chip to itself; so has one that is marked synchronous, as the GPU's compiler marks those that it parts and
finds nothing to run beside. The TPU's compiler also writes the start and the end of a gather as fusions, with others in
between that carry it on.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.backends.hlo.collectives import LATER_PARTS, WORDS, word_of
from shardwright.backends.hlo.kernels import is_kernel
from shardwright.backends.hlo.module import Computation, HloModule, Instruction

_FUSED_START, _FUSED_END = '"AsyncCollectiveStart"', '"AsyncCollectiveDone"'


def kernels_beside(module: HloModule) -> dict[str, tuple[str, ...]]:
    """For each collective by its name, the names of the kernels between its start and its end; none where it waits."""
    return {name: beside for each in module.computations.values() for name, beside in _beside(module, each)}


def in_flight(module: HloModule, computation: Computation) -> dict[str, tuple[list[str], str]]:
    """For each instruction that starts collectives which go on beside others, their names and what takes them up."""
    found: dict[str, tuple[list[str], str]] = {}
    for start in computation.instructions.values():
        names = _starts(module, start)
        end = _end(module, computation, start) if names else None
        if end is not None and '"is_sync":true' not in start.attributes:
            found[start.name] = names, end.name
    return found


def inner_collectives(module: HloModule, instruction: Instruction) -> list[str]:
    """The collectives that an instruction is, or has in what it calls. The end of one, which may name it once more, is
    none."""
    if instruction.opcode in LATER_PARTS:
        return []
    within = (instruction, *_called(module, instruction))
    return [one.name for one in within if word_of(one)]


def _beside(module: HloModule, computation: Computation) -> Iterator[tuple[str, tuple[str, ...]]]:
    order = list(computation.instructions.values())
    places = {instruction.name: place for place, instruction in enumerate(order)}
    untimed = not any(map(is_kernel, order))
    for start, (names, end) in in_flight(module, computation).items():
        between = order[places[start] + 1 : places[end]]
        kernels = tuple(each.name for each in between if is_kernel(each, untimed=untimed))
        yield from ((name, kernels) for name in names)


def _starts(module: HloModule, instruction: Instruction) -> list[str]:
    """The collectives that an instruction starts: itself, or those in what it calls."""
    if word_of(instruction):
        return [instruction.name] if instruction.opcode.endswith(("-start", "recv")) else []
    inside = [each for each in _called(module, instruction) if each.opcode in WORDS]
    is_start = instruction.opcode == "async-start" or _has(module, instruction, _FUSED_START)
    return [each.name for each in inside] if is_start else []


def _end(module: HloModule, computation: Computation, start: Instruction) -> Instruction | None:
    """The instruction that takes a started collective up, through the values that carry it on."""
    seen: set[str] = set()
    stack = [start]
    while stack:
        for user in computation.users(stack.pop().name):
            if user.opcode.endswith("-done") or _has(module, user, _FUSED_END):
                return user
            carries = start.opcode == "fusion" or user.opcode == "async-update"
            if carries and user.name not in seen:
                seen.add(user.name)
                stack.append(user)
    return None


def _has(module: HloModule, instruction: Instruction, target: str) -> bool:
    return instruction.opcode == "fusion" and any(target in each.attributes for each in _called(module, instruction))


def _called(module: HloModule, instruction: Instruction) -> Iterator[Instruction]:
    for callee in instruction.called:
        if callee in module.computations:
            yield from module.computations[callee].instructions.values()
