"""Rules of functions of elements: what waits for a sum may only be used linearly."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from shardwright.backends.hlo.checking.dimensions import (
    may_be_addends,
    nonzero,
    parted,
)
from shardwright.backends.hlo.checking.step import CheckedInstruction
from shardwright.backends.hlo.checking.values import (
    Value,
)
from shardwright.backends.hlo.states import State, any_digit, of_number, placed
from shardwright.backends.hlo.tables import decided_by, differs, ranked

_MOST_NUMBERS = 1 << 16
"""Elements, those of all devices together, up to which a value is computed."""


class ElementwiseStep(CheckedInstruction):
    """Rules of functions of elements: what waits for a sum may only be used linearly."""

    def computed_number(self) -> State | None:
        """The result where all operands are known numbers, and few."""
        typed = TYPED.get(self.instruction.opcode)
        function = partial(typed, self) if typed else NUMERIC.get(self.instruction.opcode)
        numbers = [state.number for state in self.states]
        if function is None or not numbers or any(number is None for number in numbers):
            return None
        known = [number for number in numbers if number is not None]
        try:
            size = math.prod(np.broadcast_shapes(*(number.shape for number in known)))
        except ValueError:
            return None
        if size > _MOST_NUMBERS:
            return None
        with np.errstate(all="ignore"):
            made = of_number(function(*known), self.shape)
        laid = {state.starts for state in self.states if not state.constant}
        is_block = made.open or (not made.constant and len(laid) == 1)
        together = self.joined(self.states) if is_block else None
        if together is None or together.open:
            return made
        return together.but(number=made.number)  # a block, as its operands are

    def elementwise(self) -> Value:
        """Any function of elements: of a sum that is still to be made it is none of the whole sum."""
        return self._by_element(self._used)

    def _by_element(self, rule: Callable[[Sequence[State], State], Value]) -> Value:
        """The result of a rule that takes the operands' states and the one that they have together; where these are
        numbers it is computed."""
        known = self.computed_number()
        if known is not None:
            return known
        if self._is_side_by_side and len({frozenset(table for _, table in state.starts) for state in self.states}) > 1:
            return self.opaque()  # unlike blocks, as a device's own and its neighbour's
        result = self.joined(self.states)
        return self.opaque_after_fault() if result is None else rule(self.states, result)

    def _used(self, states: Sequence[State], result: State) -> Value:
        waiting = [state for state in states if state.sums]
        if waiting and self.instruction.opcode == "compare" and all(s.constant or (s.sums and s.scale) for s in states):
            # Whether a softmax over a device's own part has any weight, which it asks before it divides by it.
            return result.but(open=result.open.union(*(state.sums for state in waiting)))
        if waiting and self._is_side_by_side:
            return result.but(partial=states[0].partial)
        if waiting and not result.open and not any(state.elastic for state in waiting):
            return self.fault(self.used_as_whole(waiting[0]))
        scaled = [state for state in states if state.scale or state.shift]
        if scaled and not result.open:
            return self.fault(
                f"{self.instruction.opcode} of a value that each device along "
                f"{self.checker.along(self.checker.scaled_along(scaled[0]))} has scaled by a sum or maximum of its part"
            )
        maxima = frozenset(each for state in states for each in state.partial if each[0] != "add")
        if maxima:  # non-decreasing functions keep them; of what is not known to be one, nothing is said
            rest = [state for state in states if not state.maxima and not state.constant]
            if rest and self.instruction.opcode == "compare" and not result.open:
                over = self.checker.along(t for _, t in maxima)
                return self.fault(f"compares with a maximum or minimum over {over} that is still to be taken")
            if rest or self.instruction.opcode in {"compare", "is-finite"}:
                return result.but(open=result.open | {table for _, table in maxima})
        return result.but(partial=maxima, constant=result.constant, elastic=False)

    def _with_addends(self, result: State, waiting: State) -> State:
        """A sum that is still to be made and what turns out to be addends, of which each device has one index."""
        starts = [(w, t) for w, t in result.starts if w in result.shown or not decided_by(t, waiting.sums)]
        return result.but(partial=waiting.partial, scale=waiting.scale, starts=frozenset(starts))

    @property
    def _is_side_by_side(self) -> bool:
        """Tells whether it is the greater of padded values, as which libtpu writes parts put side by side."""
        return self.instruction.opcode == "maximum" and all(map(self._is_padded, self.instruction.operands))

    def _is_padded(self, name: str) -> bool:
        """Tells whether a value is one that is padded, in whatever format."""
        made = self.computation.instructions[name]
        while made.opcode in {"convert", "copy", "bitcast"}:
            made = self.computation.instructions[made.operands[0]]
        return made.opcode == "pad"

    def linear(self) -> Value:
        """Copies, negation and narrowing: all as it is."""
        state = self.states[0]
        opcode = self.instruction.opcode
        if state.number is not None and (opcode in NUMERIC or opcode in TYPED):
            return self.computed_number() or state
        if opcode == "negate":
            flipped = {"maximum": "minimum", "minimum": "maximum"}
            return state.but(
                partial=frozenset((flipped.get(kind, kind), table) for kind, table in state.partial),
                shift=frozenset((name, -n) for name, n in state.shift),
                constant=state.constant,
                zero=state.zero,
            )
        return state

    def additive(self) -> Value:
        """Sums and differences: of values that wait for the same sum."""
        return self._by_element(self._added)

    def _added(self, states: Sequence[State], result: State) -> Value:
        a, b = states
        if a.zero or b.zero:
            rest = b if a.zero else a
            return result.but(partial=rest.partial, scale=rest.scale, shift=rest.shift, zero=rest.zero)
        if a.maxima or b.maxima or a.shift or b.shift:
            return self._shifted(a, b, result)
        if parted(a.sums) != parted(b.sums) or a.scale != b.scale:
            for one, other in ((a, b), (b, a)):
                if not result.open and other.sums and one.scale == other.scale and may_be_addends(one, other.sums):
                    return self._with_addends(result, other)
            if not result.open and not a.elastic and not b.elastic:
                one, other = (a, b) if a.sums or a.scale else (b, a)
                return self.fault(
                    f"{self.instruction.opcode} of a sum over {self.checker.along(one.sums or one.tables)} that is "
                    f"still to be made and a value that is {self._told_sum(other)}"
                )
            return result.but(partial=frozenset(), open=result.open | a.sums | b.sums)
        if a.sums != b.sums:  # addends of sums whose pieces go round
            return result.but(open=result.open | a.sums | b.sums)
        return result.but(partial=a.partial, scale=a.scale, constant=result.constant)

    def _told_sum(self, state: State) -> str:
        return f"one over {self.checker.along(state.sums)}" if state.sums else "whole"

    def _shifted(self, a: State, b: State, result: State) -> State:
        """The value that a device's own maximum is added to, or subtracted from."""
        sign = -1 if self.instruction.opcode == "subtract" else 1
        if a.sums or b.sums:
            return result.but(open=result.open | a.sums | b.sums)
        shift = dict(a.shift)
        for name, n in b.shift:
            shift[name] = shift.get(name, 0) + sign * n
        for state, factor, at in ((a, 1, 0), (b, sign, 1)):
            if state.maxima:
                if (b, a)[at].constant:
                    return result.but(partial=state.partial)
                name = self.own_value(at, state)
                shift[name] = shift.get(name, 0) + factor
        return result.but(shift=nonzero(shift))

    def own_value(self, at: int, state: State) -> str:
        """A name for a value of each device's own."""
        name = self.instruction.operands[at] if at < len(self.instruction.operands) else self.instruction.name
        key = self.checker.origin(self.computation, name)
        self.checker.own_values.setdefault(key, state.but(elastic=False))
        return key

    def multiplied(self) -> Value:
        """Products: one factor may wait for a sum, along which the other is whole."""
        return self._by_element(self._multiplied)

    def _multiplied(self, states: Sequence[State], result: State) -> Value:
        a, b = states
        if a.zero or b.zero:
            return result.but(zero=True)
        divides = self.instruction.opcode == "divide"
        if divides and (b.sums or b.maxima):
            return self.scaled_by(a, result, [(self.own_value(1, b), -1)])
        if (a.maxima or b.maxima) and not (a.constant or b.constant):
            at, local, other = (0, a, b) if a.maxima else (1, b, a)
            if other.maxima:
                return result.but(open=result.open | a.maxima | b.maxima)
            return self.scaled_by(other, result, [(self.own_value(at, local), 1)])
        if a.maxima or b.maxima:
            return result.but(partial=a.partial | b.partial)
        if a.sums and b.sums and not result.open:
            if any(s.elastic for s in (a, b)):
                return result.but(open=result.open | a.sums | b.sums)
            return self.fault(f"{self.instruction.opcode} of two sums that are still to be made, over "
                              f"{self.checker.along(a.sums)} and over {self.checker.along(b.sums)}")  # fmt: skip
        if a.shift or b.shift:
            return result.but(open=result.open | self.checker.scaled_along(a) | self.checker.scaled_along(b))
        return self.scaled_by(a, result.but(partial=b.partial), [(name, -n if divides else n) for name, n in b.scale])

    def exponential(self) -> Value:
        state = self.states[0]
        if state.shift and not state.sums:
            return self.scaled_by(state.but(shift=frozenset()), state.but(shift=frozenset()), state.shift)
        return self.elementwise()

    def logarithm(self) -> Value:
        state = self.states[0]
        if state.sums and not state.open:
            return state.but(partial=frozenset(), scale=frozenset(), shift=frozenset({(self.own_value(0, state), 1)}))
        return self.elementwise()

    def select(self) -> Value:
        """One of two values by a predicate that is alike where they wait for a sum."""
        known = self.computed_number()
        if known is not None:
            return known
        predicate, a, b = self.states
        states = [s if s.dims else placed(map(any_digit, self.shape), open=s.open) for s in (predicate,)]
        result = self.joined([*states, a, b])
        if result is None:
            return self.opaque_after_fault()
        if predicate.sums and not result.open:
            return self.fault(self.used_as_whole(predicate))
        split = self.all_tables(result)
        own = frozenset(t for t in predicate.open - a.open - b.open if decided_by(t, split))  # for each block
        result = result.but(open=result.open - own)
        values = [s for s in (a, b) if not s.zero]
        if len(values) < 2:
            rest = values[0] if values else a
            if len(values) == 1:
                result = self._masked(result, predicate, holds=rest is a)
            left = frozenset(t for t in result.open if not (rest.sums and decided_by(t, rest.sums)))
            return result.but(partial=rest.partial, scale=rest.scale, shift=rest.shift, open=left, zero=rest.zero)
        if a.partial == b.partial and a.scale == b.scale and a.shift == b.shift:
            return result.but(partial=a.partial, scale=a.scale, shift=a.shift)
        if a.constant or b.constant:
            rest = a if b.constant else b
            if rest.maxima or rest.shift or rest.scale:
                return result.but(partial=rest.partial, scale=rest.scale, shift=rest.shift)
        waiting = a if a.sums else b
        if waiting.sums and not result.open and not (a.elastic or b.elastic):
            return self.fault(self.used_as_whole(waiting))
        along = frozenset(t for s in (a, b) for _, t in s.partial)
        return result.but(open=result.open | along)

    def _masked(self, result: State, predicate: State, *, holds: bool) -> State:
        """A value that only devices with the same block of a dimension keep, and zeros on the others: that block on all
        if it is added up, so nothing is said along what told the devices apart."""
        number = predicate.number
        if number is None or number.size != self.devices or (number == number.flat[0]).all():
            return result
        keep = [device for device, each in enumerate(number.reshape(-1)) if bool(each) is holds]
        starts, doubt = dict(result.starts), set(result.open)
        for where, table in result.starts:
            if differs(table) and len({table[device] for device in keep}) == 1:
                starts[where] = (table[keep[0]],) * self.devices
                doubt.add(ranked(table))
        return result.but(starts=frozenset(starts.items()), open=frozenset(doubt))


def _compared(step: CheckedInstruction, a: Any, b: Any) -> Any:
    direction = re.search(r"direction=(\w+)", step.text)
    functions = {"LT": np.less, "LE": np.less_equal, "GT": np.greater, "GE": np.greater_equal, "EQ": np.equal}
    return functions.get(direction[1] if direction else "", np.not_equal)(a, b)


def _converted(step: CheckedInstruction, a: Any) -> Any:
    dtype = step.instruction.type.partition("[")[0]
    if dtype == "pred":
        return a != 0
    return np.trunc(a).astype(np.int64) if dtype[0] in "su" and np.isfinite(a).all() else a.astype(np.float64)


def _divided(step: CheckedInstruction, a: Any, b: Any) -> Any:
    if step.instruction.type[0] in "su":
        return np.where(b == 0, -1, np.trunc(a / np.where(b == 0, 1, b))).astype(np.int64)
    return a / b


def _clamped(low: Any, a: Any, high: Any) -> Any:
    return np.minimum(np.maximum(a, low), high)


NUMERIC: dict[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "remainder": np.fmod, "maximum": np.maximum,
    "minimum": np.minimum, "negate": np.negative, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "not": np.invert, "select": np.where, "clamp": _clamped, "copy": np.array, "sign": np.sign,
    "shift-left": np.left_shift, "shift-right-logical": np.right_shift, "shift-right-arithmetic": np.right_shift,
}  # fmt: skip
"""Functions of known numbers."""

TYPED: dict[str, Callable[..., Any]] = {"compare": _compared, "convert": _converted, "divide": _divided}
"""Those that depend on the instruction's type or attributes, which is their first argument."""
