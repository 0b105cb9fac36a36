"""Ranges of integers while tracing: the least and the greatest that a value can have.

Indexing checks whether indices are negative or too large. Where they are counted from nought the checks are
decided, and what they guard is the plain value.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

from shardwright.tracing.graph import Application, Constant, Operand

Range = tuple[int, int]

_KEEPING = {
    "broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "slice", "copy", "rev", "stop_gradient",
    "convert_element_type", "reduce_max", "reduce_min", "rename",
}  # fmt: skip


class KnownRange(Protocol):
    ranges: dict[Hashable, Range]
    joined: dict[Hashable, Application]


def range_of(known: KnownRange, operand: Operand) -> Range | None:
    if isinstance(operand, Constant):
        return (int(operand.value), int(operand.value)) if "int" in operand.dtype else None
    return known.ranges.get(operand.number)


def note(known: KnownRange, op: Application) -> None:
    """Notes what is known of the result of an application."""
    result = op.results[0]
    if op.primitive == "concatenate":
        known.joined[result.number] = op
    if result.dtype not in {"int32", "int64"}:
        return
    found = _range(op, [range_of(known, operand) for operand in op.operands])
    if found is not None and -(2**31) <= found[0] <= found[1] < 2**31:
        known.ranges[result.number] = found


def _range(op: Application, of: Sequence[Range | None]) -> Range | None:
    if op.primitive == "iota":
        return 0, op.results[0].shape[int(op.params["dimension"])] - 1
    if op.primitive in {"argmax", "argmin"}:
        return 0, op.operands[0].shape[int(op.params["axes"][0])] - 1
    if op.primitive == "clamp":
        low, _, high = of
        return (low[0], high[1]) if low and high else None
    if op.primitive == "rem" and of[1] and of[1][0] > 0 and of[0] and of[0][0] >= 0:
        return 0, of[1][1] - 1
    if op.primitive in {"max", "min"}:
        return _bounded(op.primitive, of)
    given = [each for each in of if each is not None]
    if len(given) < len(of):
        return None
    if op.primitive in _KEEPING:
        return given[0]
    if op.primitive in {"concatenate", "select_n"}:
        given = given[1:] if op.primitive == "select_n" else given
        return min(low for low, _ in given), max(high for _, high in given)
    made = _ENDS.get(op.primitive)
    if made is None:
        return None
    ends = [made(a, b) for a in given[0] for b in given[1]]
    return min(ends), max(ends)


def _bounded(which: str, of: Sequence[Range | None]) -> Range | None:
    """A bound on one side is all that one operand says."""
    choose = max if which == "max" else min
    lows = [each[0] for each in of if each]
    highs = [each[1] for each in of if each]
    if len(lows) == len(of):
        return choose(lows), choose(highs)
    if not lows:
        return None
    return (max(lows), 2**31 - 1) if which == "max" else (-(2**31), min(highs))


_ENDS: Mapping[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
}  # fmt: skip


def decided(primitive: str, a: Range | None, b: Range | None) -> bool | None:
    """The result of a comparison of two ranges, None where that depends on the values."""
    if a is None or b is None:
        return None
    if primitive in {"gt", "ge"}:
        primitive, a, b = ("lt" if primitive == "gt" else "le"), b, a
    if primitive == "lt":
        return True if a[1] < b[0] else False if a[0] >= b[1] else None
    if primitive == "le":
        return True if a[1] <= b[0] else False if a[0] > b[1] else None
    return None
