"""A program compiled and run in the simulator, against its unsharded meaning by the reference."""

from __future__ import annotations

from shardwright.backends.validation.validate import compare
from shardwright.ir.program import Program
from shardwright.passes.pipelines import explicit


def in_simulator(program: Program, seed: int) -> float:
    """The largest relative difference of the compiled program from the unsharded one, in float64."""
    compiled = explicit(program)
    return max(compare(program, compiled, func, seed) for func in program.funcs)
