"""Whole numbers that a text says: how often loops run, from condition, start and step, and where a device's part is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardwright.backends.hlo.module import Computation, HloModule, Instruction

_KNOWN = re.compile(r'"?known_trip_count"?:\{"?n"?:"?(\d+)"?\}')
_INDEX = re.compile(r"\bindex=(\d+)")
_DIRECTION = re.compile(r"\bdirection=(\w+)")
_MOST_TRIPS = 1_000_000

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
    read = {int(index) for i in condition.instructions.values() for index in _INDEX.findall(i.attributes)}
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
    """Whole numbers and tuples of a computation on a device, as far as the text says them; what else it computes is
    unknown. A constant row of numbers is a tuple."""

    module: HloModule
    computation: Computation
    arguments: tuple[Value, ...]
    device: Scalar = None

    def value(self, name: str) -> Value:
        instruction = self.computation.instructions.get(name)
        return None if instruction is None else self.of(instruction)

    def of(self, instruction: Instruction) -> Value:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "parameter":
            number = int(instruction.arguments)
            return self.arguments[number] if number < len(self.arguments) else None
        if opcode == "constant":
            return _constant(instruction.arguments)
        if opcode == "partition-id":
            return self.device
        if opcode == "dynamic-slice" and len(operands) == 2 and _is_small(instruction):
            row, index = self.value(operands[0]), self.value(operands[1])
            return row[min(max(index, 0), len(row) - 1)] if isinstance(row, tuple) and isinstance(index, int) else None
        if opcode == "tuple":
            return tuple(self.value(operand) for operand in operands)
        if opcode == "get-tuple-element":
            whole, index = self.value(operands[0]), _INDEX.search(instruction.attributes)
            return whole[int(index[1])] if isinstance(whole, tuple) and index else None
        if opcode in _SAME and operands:
            return self.value(operands[0])
        if opcode in {"fusion", "call"} and instruction.called:
            inner = self.module.computations.get(instruction.called[0])
            if inner is None or not _is_small(instruction):
                return None
            arguments = tuple(self.value(operand) for operand in operands)
            return Evaluation(self.module, inner, arguments, self.device).value(inner.root.name)
        if opcode == "clamp":
            known = [value for value in map(self.value, operands) if isinstance(value, int)]
            return min(max(known[0], known[1]), known[2]) if len(known) == 3 else None
        if opcode == "compare" or opcode in _ARITHMETIC:
            return self._computed(instruction)
        return None

    def _computed(self, instruction: Instruction) -> Scalar:
        a, b = (self.value(operand) for operand in instruction.operands[:2])
        if not isinstance(a, int) or not isinstance(b, int):
            return None
        if instruction.opcode == "compare":
            direction = _DIRECTION.search(instruction.attributes)
            return int(bool(_COMPARED[direction[1]](a, b))) if direction else None
        return _ARITHMETIC[instruction.opcode](a, b)


def _is_small(instruction: Instruction) -> bool:
    """Tells whether it gives numbers, of which counters are made, and no arrays."""
    return any(array.elements == 1 for array in instruction.arrays)


def _constant(text: str) -> Value:
    if "," in text and _TABLE.fullmatch(text.strip()):
        return tuple(int(word) for word in text.strip(" {}").split(","))
    word = text.strip().strip("{}")
    if word in {"true", "false"}:
        return int(word == "true")
    return int(word) if re.fullmatch(r"-?\d+", word) else None
