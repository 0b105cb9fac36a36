"""Values of instructions: states of arrays and tuples of them, and what their types' texts say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shardwright.backends.hlo.module import parts_of
from shardwright.backends.hlo.states import State
from shardwright.backends.hlo.tables import Table

Value = State | tuple[Any, ...]
"""The state of an array, or those of a tuple."""


def either_of(states: Sequence[State], away: frozenset[Table]) -> State:
    """The result of one branch or another."""
    first = states[0]
    if all(s.key == first.key for s in states):
        return first.but(open=first.open | away)
    return first.but(open=frozenset({tuple(range(len(next(iter(s.tables))))) for s in states if s.tables}) | away)


def without_numbers(value: Value) -> Value:
    """Without the numbers, which a loop has changed."""
    if isinstance(value, tuple):
        return tuple(map(without_numbers, value))
    return value.but(zero=value.zero, constant=value.constant) if value.number is not None else value


def marked(value: Value, *, local: bool, sorted_: bool) -> Value:
    """A value as somebody's own under `shard_map`, or as made of what was sorted, but if made of no argument."""
    if not local and not sorted_:
        return value
    if isinstance(value, tuple):
        return tuple(marked(each, local=local, sorted_=sorted_) for each in value)
    return value if value.constant else replace(value, local=local, sorted=sorted_)


def told_kind(state: State) -> str:
    return "sum" if state.sums else "maximum or minimum"


def leaves_of(value: Value) -> list[State]:
    return [value] if isinstance(value, State) else [leaf for part in value for leaf in leaves_of(part)]


def leaf_types(text: str) -> list[str]:
    return [leaf for part in parts_of(text) for leaf in leaf_types(part)] if text.startswith("(") else [text]


def packed(type_text: str, states: Any) -> Value:
    if type_text.startswith("("):
        return tuple(packed(part, states) for part in parts_of(type_text))
    return next(states)


def shape_of(type_text: str) -> tuple[int, ...]:
    found = re.search(r"\[([\d,]*)\]", type_text)
    return tuple(int(n) for n in found[1].split(",") if n) if found else ()


def parsed(word: str) -> float | int | bool:
    if word in {"true", "false"}:
        return word == "true"
    return int(word) if re.fullmatch(r"-?\d+", word) else float(word)
