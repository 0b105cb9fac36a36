"""Why each layout is what it is: the next best, and what that would cost more."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from shardwright.ir.diagnostics import DiagnosticError

if TYPE_CHECKING:
    from shardwright.ir.program import Program
    from shardwright.passes.place import Place


def explain(program: Program, place: Place, seconds: float = 600.0) -> list[str]:
    """Why each layout that `place` leaves open is what it is: the next best, and what that would cost more.

    The next best is found by choosing anew with the chosen layout forbidden, as far as `seconds` go.
    """
    from shardwright.ir.placements import off_device
    from shardwright.ir.types import OpenType
    from shardwright.ir.walk import open_values
    from shardwright.passes.cleanup import Cleanup
    from shardwright.passes.decompose import Decompose
    from shardwright.passes.offload import Offload
    from shardwright.passes.pipelines import run_passes

    began = time.monotonic()
    opened: list[tuple[str | None, str]] = [
        (func.name, value.name) for func in program.funcs for value in open_values(func)
    ]
    named = {(None, v.name) for v in (*program.weights, *program.state) if isinstance(v.type, OpenType)} | set(opened)
    copies = (Offload(),) if off_device(program) else ()
    program = run_passes(program, (*copies, Decompose(), Cleanup()))
    best = place.chosen(program)
    lines = [str(best.proof)]
    for node in best.placement.nodes:
        if node.home < 0 or (node.func, node.name) not in named:
            continue
        named.discard((node.func, node.name))
        label = f"{node.func}.{node.name}" if node.func else node.name
        text = best.placement.kinds[node.home].layout_text
        if time.monotonic() - began > seconds:
            lines.append(f"{label}: {text}; the time for asking what else there is has run out")
            continue
        try:
            other = place.chosen(program, frozenset({(node.func, node.name, text)}))
        except DiagnosticError:
            lines.append(f"{label}: {text}, the only layout that its demands allow")
            continue
        second = next(n for n in other.placement.nodes if (n.func, n.name) == (node.func, node.name) and n.home >= 0)
        alternative = other.placement.kinds[second.home].layout_text
        if alternative == text:
            lines.append(f"{label}: {text}, as the values that it is carried with")
        else:
            lines.append(f"{label}: {text}; next best {alternative}, {other.proof.beyond(best.proof)}")
    return lines
