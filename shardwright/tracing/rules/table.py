"""The rules by primitive, and what they share."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardwright.tracing.graph import Application, Operand, Variable
from shardwright.tracing.ranges import note
from shardwright.tracing.writer import GraphWriter, Rule

RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


def do(w: GraphWriter, op: Application, label: object, primitive: str, operands: Sequence[Operand],
        shape: Sequence[int], dtype: str = "", **params: Any) -> Variable:  # fmt: skip
    """Applies another primitive, whose result is a new variable that `label` tells from others of this application."""
    made = Variable((op.results[0].number, label), tuple(shape), dtype or op.results[0].dtype)
    application = Application(primitive, tuple(operands), params, (made,), op.place)
    w.rules[primitive](w, application)
    note(w, application)
    return made
