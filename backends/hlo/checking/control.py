"""Rules of tuples, calls, branches and loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shardwright.backends.hlo.checking.step import CheckedInstruction
from shardwright.backends.hlo.checking.values import (
    Value,
    either_of,
    leaves_of,
    packed,
    without_numbers,
)
from shardwright.backends.hlo.module import Computation, HloModule, Instruction
from shardwright.backends.hlo.states import State

if TYPE_CHECKING:
    from shardwright.backends.hlo.faults import Fault

_MOST_TRIPS = 128
_STEADY_TRIPS = 2
"""A loop whose state stays the same for so many trips is taken to keep it."""


_CARRYING = ("copy", "convert", "bitcast", "reshape", "transpose", "get-tuple-element", "fusion")
_PERMUTES = ("collective-permute", "collective-permute-start", "collective-permute-done")


def is_ring(body: Computation) -> bool:
    """Tells whether a loop sends on what it carries: pieces or sums go round."""
    permutes = [i for i in body.instructions.values() if i.opcode in _PERMUTES]
    origins = [_origin(body, i.operands[0]) for i in permutes]
    return any(origin is not None and origin.opcode == "parameter" for origin in origins)


def has_rings(module: HloModule) -> bool:
    """Tells whether pieces go round in a module: in a loop, or from permutes that somebody has written out."""
    bodies = [
        i.called for each in module.computations.values() for i in each.instructions.values() if i.opcode == "while"
    ]
    if any(is_ring(module.computations[name]) for names in bodies for name in names if name in module.computations):
        return True
    every = (i for each in module.computations.values() for i in each.instructions.values())
    return any(i.opcode in _PERMUTES and i.op_name.rpartition("/")[2] == "ppermute" for i in every)


def _origin(body: Computation, name: str) -> Instruction | None:
    """The instruction that a value comes from, through those that only carry it."""
    maker = body.instructions.get(name)
    while maker is not None and maker.opcode in _CARRYING and len(maker.operands) == 1:
        maker = body.instructions.get(maker.operands[0])
    return maker


class ControlStep(CheckedInstruction):
    """Rules of tuples, calls, branches and loops."""

    def as_tuple(self) -> Value:
        return tuple(self.operands)

    def element(self) -> Value:
        index = int(self.attribute(r"\bindex=(\d+)"))
        value = self.operands[0]
        return value[index] if isinstance(value, tuple) else value

    def same(self) -> Value:
        return self.operands[0] if len(self.operands) == 1 else tuple(self.operands)

    def call(self) -> Value:
        inner = self.checker.called(self.instruction)
        if inner is None:
            return self.opaque()
        return self.checker.within(self.computation, self.instruction, inner, self.operands)

    def conditional(self) -> Value:
        branches = [self.checker.module.computations[name] for name in self.instruction.called]
        which = self.states[0]
        results = [
            self.checker.within(self.computation, self.instruction, branch, [operand])
            for branch, operand in zip(branches, self.operands[1:], strict=True)
        ]
        away = which.tables
        merged = [either_of(states, away) for states in zip(*map(leaves_of, results), strict=True)]
        return packed(self.instruction.type, iter(merged))

    def loop(self) -> Value:
        """Trip by trip with the counters as they are, until nothing but counters changes."""
        condition, body = (self.checker.called(self.instruction, key) for key in ("condition", "body"))
        if condition is None or body is None:
            return self.opaque()
        value, steady = self.operands[0], 0
        before = dict(self.checker.faults) if is_ring(body) else None
        for trip in range(_MOST_TRIPS):
            goes_on = self.checker.within(self.computation, self.instruction, condition, [value])
            number = goes_on.number if isinstance(goes_on, State) else None
            if number is not None and not number.any():
                return value if steady or trip < _STEADY_TRIPS else self._turning(before)
            after = self.checker.within(self.computation, self.instruction, body, [value])
            unchanged = [s.key for s in leaves_of(after)] == [s.key for s in leaves_of(value)]
            steady = steady + 1 if unchanged else 0
            value = after
            if steady >= _STEADY_TRIPS:
                return without_numbers(value)
        return self._turning(before)

    def _turning(self, before: Mapping[str, Fault] | None) -> Value:
        """The result of a loop that does not come to rest, of which no more is known. Nor is anything said of one whose
        pieces go round: what is summed there is complete after the last trip alone."""
        if before is not None:
            self.checker.faults.clear()
            self.checker.faults.update(before)
        return self.checker.unknown(self.instruction.type)
