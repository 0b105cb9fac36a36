"""Shardwright: a compiler for tensor layouts on meshes of chips."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shardwright.ir.diagnostics import Diagnostic, DiagnosticError

# Where each public name lives. Its module is loaded on first use, so that `import shardwright` costs nothing.
_HOMES = {
    "Diagnostic": "shardwright.ir.diagnostics",
    "DiagnosticError": "shardwright.ir.diagnostics",
}

__all__ = ["Diagnostic", "DiagnosticError", "__version__"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
