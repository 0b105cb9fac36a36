"""Shardwright: a compiler for tensor layouts on meshes of chips."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shardwright.backends.graph import draw
    from shardwright.compiling import Compiled, compile_program, explicit, load, print_program
    from shardwright.ir.diagnostics import Diagnostic, DiagnosticError

# Where each public name lives. Its module is loaded on first use, so that `import shardwright` costs nothing.
_HOMES = {
    "Compiled": "shardwright.compiling",
    "compile_program": "shardwright.compiling",
    "explicit": "shardwright.compiling",
    "load": "shardwright.compiling",
    "print_program": "shardwright.compiling",
    "Diagnostic": "shardwright.ir.diagnostics",
    "DiagnosticError": "shardwright.ir.diagnostics",
    "draw": "shardwright.backends.graph",
}

__all__ = [
    "Compiled",
    "Diagnostic",
    "DiagnosticError",
    "__version__",
    "compile_program",
    "draw",
    "explicit",
    "load",
    "print_program",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
