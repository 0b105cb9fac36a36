"""Shardwright: a compiler for tensor layouts on meshes of chips."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shardwright.advising import Verdict, advise
    from shardwright.asserting.assertion import assert_collectives
    from shardwright.backends.foreign import kernel
    from shardwright.backends.graph import draw
    from shardwright.backends.random_inputs import random_inputs
    from shardwright.backends.reference import evaluate
    from shardwright.backends.simulator import simulate
    from shardwright.backends.targets.names import targets
    from shardwright.calibrating import Calibration, calibrate
    from shardwright.checking import check
    from shardwright.commands import fit, fmt, import_checkpoint, opt, predict, search, sweep
    from shardwright.compiling import Compiled, compile_program, explicit, load, print_program, run
    from shardwright.cost.traffic import Traffic, bytes_received
    from shardwright.explaining import explain
    from shardwright.exporting.export import Exported, export
    from shardwright.generation.engine import Completion
    from shardwright.generation.generate import generate
    from shardwright.ir.diagnostics import Diagnostic, DiagnosticError, Source
    from shardwright.ir.program import Program
    from shardwright.offloading.offload import offload
    from shardwright.optimizing import Optimized, optimize
    from shardwright.planning import plan
    from shardwright.prediction.reproduction import reproduce
    from shardwright.resharding import reshard
    from shardwright.tracing.trace import Trace, trace
    from shardwright.workbench.explorer import explore

# Where each public name lives. Its module is loaded on first use, so that `import shardwright` costs nothing.
_HOMES = {
    "Calibration": "shardwright.calibrating",
    "Compiled": "shardwright.compiling",
    "Completion": "shardwright.generation.engine",
    "Diagnostic": "shardwright.ir.diagnostics",
    "DiagnosticError": "shardwright.ir.diagnostics",
    "Exported": "shardwright.exporting.export",
    "Optimized": "shardwright.optimizing",
    "Trace": "shardwright.tracing.trace",
    "Source": "shardwright.ir.diagnostics",
    "Traffic": "shardwright.cost.traffic",
    "Verdict": "shardwright.advising",
    "advise": "shardwright.advising",
    "assert_collectives": "shardwright.asserting.assertion",
    "bytes_received": "shardwright.cost.traffic",
    "calibrate": "shardwright.calibrating",
    "check": "shardwright.checking",
    "compile_program": "shardwright.compiling",
    "draw": "shardwright.backends.graph",
    "evaluate": "shardwright.backends.reference",
    "explain": "shardwright.explaining",
    "explicit": "shardwright.compiling",
    "explore": "shardwright.workbench.explorer",
    "export": "shardwright.exporting.export",
    "fit": "shardwright.commands",
    "fmt": "shardwright.commands",
    "generate": "shardwright.generation.generate",
    "import_checkpoint": "shardwright.commands",
    "kernel": "shardwright.backends.foreign",
    "load": "shardwright.compiling",
    "offload": "shardwright.offloading.offload",
    "opt": "shardwright.commands",
    "optimize": "shardwright.optimizing",
    "plan": "shardwright.planning",
    "predict": "shardwright.commands",
    "print_program": "shardwright.compiling",
    "random_inputs": "shardwright.backends.random_inputs",
    "reproduce": "shardwright.prediction.reproduction",
    "reshard": "shardwright.resharding",
    "run": "shardwright.compiling",
    "search": "shardwright.commands",
    "simulate": "shardwright.backends.simulator",
    "sweep": "shardwright.commands",
    "targets": "shardwright.backends.targets.names",
    "trace": "shardwright.tracing.trace",
}

__all__ = [
    "Calibration",
    "Compiled",
    "Completion",
    "Diagnostic",
    "DiagnosticError",
    "Exported",
    "Optimized",
    "Source",
    "Trace",
    "Traffic",
    "Verdict",
    "__version__",
    "advise",
    "assert_collectives",
    "bytes_received",
    "calibrate",
    "check",
    "compile_program",
    "draw",
    "evaluate",
    "explain",
    "explicit",
    "explore",
    "export",
    "fit",
    "fmt",
    "generate",
    "import_checkpoint",
    "kernel",
    "load",
    "offload",
    "opt",
    "optimize",
    "plan",
    "predict",
    "print_program",
    "random_inputs",
    "reproduce",
    "reshard",
    "run",
    "search",
    "simulate",
    "sweep",
    "targets",
    "trace",
]


def _picture(program: Program) -> str:
    from shardwright.backends.graph import draw

    return draw(program).html()


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from shardwright.ir.program import Program

    Program.drawn = _picture
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
