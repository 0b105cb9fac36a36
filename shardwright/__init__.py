"""Shardwright: a compiler for tensor layouts on meshes of chips."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shardwright.asserting.assertion import assert_collectives
    from shardwright.backends.foreign import kernel
    from shardwright.backends.graph import draw
    from shardwright.backends.simulation.random_inputs import random_inputs
    from shardwright.backends.simulation.reference import evaluate
    from shardwright.backends.simulation.simulator import simulate
    from shardwright.backends.targets.names import targets
    from shardwright.calibrating import Calibration, calibrate
    from shardwright.commands import fit, fmt, import_checkpoint, opt, predict, search, sweep
    from shardwright.compiling.checking import check
    from shardwright.compiling.compile_program import Compiled, compile_program, explicit, load, print_program, run
    from shardwright.compiling.resharding import reshard
    from shardwright.cost.movements.traffic import Traffic, bytes_received
    from shardwright.explaining.advising import Verdict, advise
    from shardwright.explaining.explain import explain
    from shardwright.exporting.export import Exported, export
    from shardwright.ir.diagnostics import Diagnostic, DiagnosticError, Source
    from shardwright.ir.program import Program
    from shardwright.optimizing import Optimized, optimize
    from shardwright.planning import plan
    from shardwright.reproduction.reproduction import reproduce
    from shardwright.serving.generation.engine import Completion
    from shardwright.serving.generation.generate import generate
    from shardwright.serving.offloading.offload import offload
    from shardwright.tracing.trace import Trace, trace
    from shardwright.workbench.explorer import explore

# The public names that each module has. It is loaded on first use, so that `import shardwright` costs nothing.
_NAMES = {
    "shardwright.explaining.advising": ("Verdict", "advise"),
    "shardwright.asserting.assertion": ("assert_collectives",),
    "shardwright.backends.foreign": ("kernel",),
    "shardwright.backends.graph": ("draw",),
    "shardwright.backends.simulation.random_inputs": ("random_inputs",),
    "shardwright.backends.simulation.reference": ("evaluate",),
    "shardwright.backends.simulation.simulator": ("simulate",),
    "shardwright.backends.targets.names": ("targets",),
    "shardwright.calibrating": ("Calibration", "calibrate"),
    "shardwright.compiling.checking": ("check",),
    "shardwright.commands": ("fit", "fmt", "import_checkpoint", "opt", "predict", "search", "sweep"),
    "shardwright.compiling.compile_program": (
        "Compiled",
        "compile_program",
        "explicit",
        "load",
        "print_program",
        "run",
    ),
    "shardwright.cost.movements.traffic": ("Traffic", "bytes_received"),
    "shardwright.explaining.explain": ("explain",),
    "shardwright.exporting.export": ("Exported", "export"),
    "shardwright.serving.generation.engine": ("Completion",),
    "shardwright.serving.generation.generate": ("generate",),
    "shardwright.ir.diagnostics": ("Diagnostic", "DiagnosticError", "Source"),
    "shardwright.serving.offloading.offload": ("offload",),
    "shardwright.reproduction.reproduction": ("reproduce",),
    "shardwright.optimizing": ("Optimized", "optimize"),
    "shardwright.planning": ("plan",),
    "shardwright.compiling.resharding": ("reshard",),
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
