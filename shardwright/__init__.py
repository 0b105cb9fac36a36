"""Shardwright: a compiler for tensor layouts on meshes of chips."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shardwright.asserting.assertion import assert_collectives
    from shardwright.backends.graph import draw
    from shardwright.backends.random_inputs import random_inputs
    from shardwright.backends.reference import evaluate
    from shardwright.backends.simulator import simulate
    from shardwright.backends.targets.names import targets
    from shardwright.checking import check
    from shardwright.compiling import Compiled, compile_program, explicit, load, print_program, run
    from shardwright.cost.traffic import Traffic, bytes_received
    from shardwright.explaining import explain
    from shardwright.exporting.export import Exported, export
    from shardwright.generation.engine import Completion
    from shardwright.generation.generate import generate
    from shardwright.ir.diagnostics import Diagnostic, DiagnosticError
    from shardwright.optimizing import Optimized, optimize
    from shardwright.planning import plan
    from shardwright.resharding import reshard
    from shardwright.tracing.trace import Trace, trace

# Where each public name lives. Its module is loaded on first use, so that `import shardwright` costs nothing.
_HOMES = {
    "Compiled": "shardwright.compiling",
    "Completion": "shardwright.generation.engine",
    "Diagnostic": "shardwright.ir.diagnostics",
    "DiagnosticError": "shardwright.ir.diagnostics",
    "Exported": "shardwright.exporting.export",
    "Optimized": "shardwright.optimizing",
    "Trace": "shardwright.tracing.trace",
    "Traffic": "shardwright.cost.traffic",
    "assert_collectives": "shardwright.asserting.assertion",
    "bytes_received": "shardwright.cost.traffic",
    "check": "shardwright.checking",
    "compile_program": "shardwright.compiling",
    "draw": "shardwright.backends.graph",
    "evaluate": "shardwright.backends.reference",
    "explain": "shardwright.explaining",
    "explicit": "shardwright.compiling",
    "export": "shardwright.exporting.export",
    "generate": "shardwright.generation.generate",
    "load": "shardwright.compiling",
    "optimize": "shardwright.optimizing",
    "plan": "shardwright.planning",
    "print_program": "shardwright.compiling",
    "random_inputs": "shardwright.backends.random_inputs",
    "reshard": "shardwright.resharding",
    "run": "shardwright.compiling",
    "simulate": "shardwright.backends.simulator",
    "targets": "shardwright.backends.targets.names",
    "trace": "shardwright.tracing.trace",
}

__all__ = [
    "Compiled",
    "Completion",
    "Diagnostic",
    "DiagnosticError",
    "Exported",
    "Optimized",
    "Trace",
    "Traffic",
    "__version__",
    "assert_collectives",
    "bytes_received",
    "check",
    "compile_program",
    "draw",
    "evaluate",
    "explain",
    "explicit",
    "export",
    "generate",
    "load",
    "optimize",
    "plan",
    "print_program",
    "random_inputs",
    "reshard",
    "run",
    "simulate",
    "targets",
    "trace",
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
