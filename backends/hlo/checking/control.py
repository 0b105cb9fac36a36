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
from shardwright.backends.hlo.states import (
    State,
)

if TYPE_CHECKING:
    from shardwright.backends.hlo.faults import Fault

_MOST_TRIPS = 128
_STEADY_TRIPS = 2
"""A loop whose state stays the same for so many trips is taken to keep it."""


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
        value, steady, told = self.operands[0], 0, dict(self.checker.faults)
        for trip in range(_MOST_TRIPS):
            goes_on = self.checker.within(self.computation, self.instruction, condition, [value])
            number = goes_on.number if isinstance(goes_on, State) else None
            if number is not None and not number.any():
                return value if steady or trip < _STEADY_TRIPS else self._turning(told)
            after = self.checker.within(self.computation, self.instruction, body, [value])
            unchanged = [s.key for s in leaves_of(after)] == [s.key for s in leaves_of(value)]
            steady = steady + 1 if unchanged else 0
            value = after
            if steady >= _STEADY_TRIPS:
                return without_numbers(value)
        return self._turning(told)

    def _turning(self, told: Mapping[str, Fault]) -> Value:
        """The result of a loop whose blocks turn with each trip, of which no more is known: products that are summed
        piece by piece while the pieces go round."""
        self.checker.faults.clear()
        self.checker.faults.update(told)
        return self.checker.unknown(self.instruction.type)
