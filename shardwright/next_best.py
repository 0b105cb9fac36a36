"""Why each layout is what it is: the next best, and what that would cost more."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardwright.ir.diagnostics import DiagnosticError
from shardwright.searching import Found, search

if TYPE_CHECKING:
    from shardwright.cost.chips import Chip
    from shardwright.cost.constants import Constants
    from shardwright.ir.program import Program


def explain(program: Program, chip: Chip, constants: Constants, found: Found, seconds: float) -> list[str]:
    """Why each layout that was left open is what it is: the next best, and what that would cost more.

    The next best is found by searching anew with the chosen layout forbidden.
    """
    from shardwright.cost.layout_problem import PlacementOptions
    from shardwright.cost.movements import duration_text
    from shardwright.ir.types import OpenType
    from shardwright.ir.walk import open_values

    began = time.monotonic()
    opened = [(func.name, value.name) for func in program.funcs for value in open_values(func)]
    named: set[tuple[str | None, str]] = set(opened)
    named |= {(None, value.name) for value in (*program.weights, *program.state) if isinstance(value.type, OpenType)}
    lines: list[str] = []
    for node in found.placement.nodes:
        if node.home < 0 or (node.func, node.name) not in named:
            continue
        named.discard((node.func, node.name))
        label = f"{node.func}.{node.name}" if node.func else node.name
        text = found.placement.kinds[node.home].layout_text
        left = seconds - (time.monotonic() - began)
        if left <= 0:
            lines.append(f"{label}: {text}; the time for asking what else there is has run out")
            continue
        excluded = frozenset({(node.func, node.name, text)})
        try:
            other = search(program, chip, constants, left, PlacementOptions(excluded=excluded))
        except DiagnosticError:
            lines.append(f"{label}: {text}, the only layout that its demands allow")
            continue
        second = next(n for n in other.placement.nodes if (n.func, n.name) == (node.func, node.name) and n.home >= 0)
        alternative = other.placement.kinds[second.home].layout_text
        more = other.objective_s - found.objective_s
        if alternative == text:
            lines.append(f"{label}: {text}, as the values that it is carried with")
        else:
            price = f"{duration_text(more)} more" if more > 1e-9 else "as fast, in more steps or more memory"
            lines.append(f"{label}: {text}; next best {alternative}, {price}")
    return lines
