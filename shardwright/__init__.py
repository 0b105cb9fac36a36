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

# The public names that each module has. It is loaded on first use, so that `import shardwright` costs nothing.
_NAMES = {
    "shardwright.advising": ("Verdict", "advise"),
    "shardwright.asserting.assertion": ("assert_collectives",),
    "shardwright.backends.foreign": ("kernel",),
    "shardwright.backends.graph": ("draw",),
    "shardwright.backends.random_inputs": ("random_inputs",),
    "shardwright.backends.reference": ("evaluate",),
    "shardwright.backends.simulator": ("simulate",),
    "shardwright.backends.targets.names": ("targets",),
    "shardwright.calibrating": ("Calibration", "calibrate"),
    "shardwright.checking": ("check",),
    "shardwright.commands": ("fit", "fmt", "import_checkpoint", "opt", "predict", "search", "sweep"),
    "shardwright.compiling": ("Compiled", "compile_program", "explicit", "load", "print_program", "run"),
    "shardwright.cost.traffic": ("Traffic", "bytes_received"),
    "shardwright.explaining": ("explain",),
    "shardwright.exporting.export": ("Exported", "export"),
    "shardwright.generation.engine": ("Completion",),
    "shardwright.generation.generate": ("generate",),
    "shardwright.ir.diagnostics": ("Diagnostic", "DiagnosticError", "Source"),
    "shardwright.offloading.offload": ("offload",),
    "shardwright.optimizing": ("Optimized", "optimize"),
    "shardwright.planning": ("plan",),
    "shardwright.prediction.reproduction": ("reproduce",),
    "shardwright.resharding": ("reshard",),
    "shardwright.tracing.trace": ("Trace", "trace"),
    "shardwright.workbench.explorer": ("explore",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

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
