"""Whole numbers that a text says: how often loops run, from condition, start and step, and where a device's part is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardwright.backends.hlo.module import Computation, HloModule, Instruction

_KNOWN = re.compile(r'"?known_trip_count"?:\{"?n"?:"?(\d+)"?\}')
_DIRECTION = re.compile(r"\bdirection=(\w+)")
_WHOLE = re.compile(r"([su])(\d+)\[")
_MOST_TRIPS = 1 << 16

Scalar = int | None
"""A whole number, or one that the text does not say."""

Value = Scalar | tuple[Any, ...]
Binary = Callable[[int, int], Scalar]

_COMPARED: dict[str, Binary] = {
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
}
_ARITHMETIC: dict[str, Binary] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a // b if a >= 0 and b > 0 else None,
    "remainder": lambda a, b: a % b if a >= 0 and b > 0 else None,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "maximum": max,
    "minimum": min,
}
_SAME = ("copy", "bitcast", "convert", "reshape", "copy-start", "copy-done", "optimization-barrier")
_ARRAYS_TOO = ("dynamic-slice", "fusion", "call")
_READING = {"tuple", "get-tuple-element", "clamp", "compare", *_ARRAYS_TOO, *_SAME, *_ARITHMETIC}
"""Opcodes whose operands' values are asked for."""
_TABLE = re.compile(r"\{\s*-?\d+(?:,\s*-?\d+)*\s*\}")


def trips_of(module: HloModule, caller: Computation, loop: Instruction) -> int | None:
    """How often a `while` of the computation `caller` runs; None where the text does not say."""
    known = _KNOWN.search(loop.attributes)
    if known:
        return int(known[1])
    condition, body = (called_as(module, loop, key) for key in ("condition", "body"))
    if condition is None or body is None:
        return None
    state = Evaluation(module, caller, ()).value(loop.operands[0])
    read = {i.index for i in condition.instructions.values() if i.index is not None}
    for trip in range(_MOST_TRIPS):
        goes_on = Evaluation(module, condition, (state,)).value(condition.root.name)
        if not isinstance(goes_on, int) or body.root.opcode != "tuple":
            return None
        if not goes_on:
            return trip
        step = Evaluation(module, body, (state,))
        state = tuple(step.value(name) if at in read else None for at, name in enumerate(body.root.operands))
    return None


def called_as(module: HloModule, loop: Instruction, key: str) -> Computation | None:
    """The `condition` or the `body` of a `while`; None where the text does not have it."""
    named = re.search(rf"\b{key}=%?([\w.\-]+)", loop.attributes)
    return module.computations.get(named[1]) if named else None


@dataclass
class Evaluation:
    """Whole numbers and tuples of a computation on a device, as far as the text says them, each in the bits of its
    type; what else it computes is unknown. A constant row of numbers is a tuple."""

    module: HloModule
    computation: Computation
    arguments: tuple[Value, ...]
    device: Scalar = None
    _known: dict[str, Value] = field(default_factory=dict[str, Value])

    def value(self, name: str) -> Value:
        """The value of an instruction, once for all that read it; operands are found first, however long the chain."""
        waiting, begun = [name], set[str]()
        while waiting:
            instruction = self.computation.instructions.get(waiting[-1])
            if instruction is None or instruction.name in self._known:
                waiting.pop()
            elif instruction.name in begun:
                self._known[waiting.pop()] = self._of(instruction)
            else:
                begun.add(instruction.name)
                asked = instruction.operands if _is_reading(instruction) else ()
                waiting += [operand for operand in asked if operand not in begun]
        return self._known.get(name)

    def _of(self, instruction: Instruction) -> Value:
        opcode = instruction.opcode
        operands = [self._known.get(operand) for operand in instruction.operands]
        if opcode == "parameter":
            number = int(instruction.arguments)
            return self.arguments[number] if number < len(self.arguments) else None
        if opcode == "constant":
            return _constant(instruction.arguments)
        if opcode == "partition-id":
            return self.device
        if not _is_reading(instruction):
            return None
        if opcode == "dynamic-slice":
            row, index = operands if len(operands) == 2 else (None, None)
            return row[min(max(index, 0), len(row) - 1)] if isinstance(row, tuple) and isinstance(index, int) else None
        if opcode == "tuple":
            return tuple(operands)
        if opcode == "get-tuple-element":
            whole, index = operands[0], instruction.index
            return whole[index] if isinstance(whole, tuple) and index is not None else None
        if opcode in _SAME:
            same = operands[0] if operands else None
            return _held(same, instruction.type, same) if opcode == "convert" and isinstance(same, int) else same
        if opcode in {"fusion", "call"}:
            inner = self.module.computations.get(instruction.called[0]) if instruction.called else None
            if inner is None:
                return None
            return Evaluation(self.module, inner, tuple(operands), self.device).value(inner.root.name)
        known = [value for value in operands if isinstance(value, int)]
        return _computed(instruction, known) if len(known) == len(operands) else None


def _is_reading(instruction: Instruction) -> bool:
    """Tells whether a counter can be followed through the instruction: its value follows from those of its operands,
    and if it may give arrays, this one gives a single number."""
    opcode = instruction.opcode
    return opcode in _READING and (
        opcode not in _ARRAYS_TOO or any(array.elements == 1 for array in instruction.arrays)
    )


def _computed(instruction: Instruction, operands: Sequence[int]) -> Scalar:
    if instruction.opcode == "clamp":
        low, value, high = operands
        return min(max(value, low), high)
    a, b = operands[:2]
    if instruction.opcode == "compare":
        direction = _DIRECTION.search(instruction.attributes)
        return int(bool(_COMPARED[direction[1]](a, b))) if direction else None
    return _held(_ARITHMETIC[instruction.opcode](a, b), instruction.type)


def _held(value: Scalar, type_text: str, otherwise: Scalar = None) -> Scalar:
    """A number as its type holds it, of which bits that do not fit are lost; `otherwise` where the type is of no whole
    numbers, which are not computed with as they would be."""
    if value is None or type_text.startswith("pred"):
        return value if value is None else int(bool(value))
    whole = _WHOLE.match(type_text)
    if whole is None:
        return otherwise
    bits = int(whole[2])
    value %= 1 << bits
    return value - (1 << bits) if whole[1] == "s" and value >> (bits - 1) else value


def _constant(text: str) -> Value:
    if "," in text and _TABLE.fullmatch(text.strip()):
        return tuple(int(word) for word in text.strip(" {}").split(","))
    word = text.strip().strip("{}")
    if word in {"true", "false"}:
        return int(word == "true")
    return int(word) if re.fullmatch(r"-?\d+", word) else None
