"""From syntax to programs: declarations are checked, functions built, and every fault gathered."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.ir.diagnostics import Diagnostic, DiagnosticError, Span, fault, placed
from shardwright.ir.elaboration.declarations import resolve_declarations
from shardwright.ir.elaboration.functions import build_function
from shardwright.ir.elaboration.names import head_span, redefinition, written_names
from shardwright.ir.program import Func, Program
from shardwright.ir.text import syntax
from shardwright.ir.verification.verifier import check_divisibility

__all__ = ["elaborate", "placed"]


def elaborate(
    module: syntax.Module,
    mesh: Mapping[str, int] | None = None,
    dims: Mapping[str, int] | None = None,
) -> Program:
    """The program that a module means, with `mesh` and `dims` in place of the file's own sizes.

    Raises a `DiagnosticError` with every fault found; a statement at fault does not hide those of others.
    """
    declarations = resolve_declarations(module, mesh or {}, dims or {})
    diagnostics: list[Diagnostic] = list(declarations.faults)
    funcs: list[Func] = []
    items = [item for item in module.items if isinstance(item, syntax.FuncItem)]
    seen: dict[str, Span] = {}
    owners = {name: item.name for item in reversed(items) for name in written_names(item)}
    for item in items:
        head = head_span(item)
        if item.name in seen:
            diagnostics.extend(redefinition("function", item.name, head, seen[item.name]).diagnostics)
        seen.setdefault(item.name, head)
        func, faults = build_function(declarations, item, owners)
        diagnostics.extend(faults)
        if func is not None:
            funcs.append(func)
    if not items and not diagnostics:
        raise fault(
            "no-function",
            "the file declares no function",
            Span(1, 1, 1, 2),
            "a program is at least: func f(x: BE) -> BE { return x }",
        )
    if diagnostics:
        raise DiagnosticError(diagnostics)
    program = declarations.program(tuple(funcs))
    check_divisibility(program)
    return program
