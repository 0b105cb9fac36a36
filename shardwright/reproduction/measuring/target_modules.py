"""Programs as the compilers of targets make them, within a limit of time for all of them."""

from __future__ import annotations

from collections.abc import Callable

from shardwright.backends.targets.names import Target, chip_names, parse_target
from shardwright.compiling.compile_program import explicit
from shardwright.cost.hardware.chips import Chip
from shardwright.cost.hardware.networks import Switched
from shardwright.explaining.explain import explain_program
from shardwright.explaining.reports import FunctionReport
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.program import Program
from shardwright.reproduction.measuring.limit import Limit, NotMeasuredError

_LEAST_S = 60.0
"""Seconds that a compiler has, however little of the limit is left: most of what ends sooner would be for nothing."""


class RefusedError(NotMeasuredError):
    """A compiler makes nothing of a program: its reason, in one line."""


def compiled(program: Callable[[], Program], name: str, target: Target, what: str, limit: Limit) -> FunctionReport:
    """A function of an explicit program as the target's compiler makes it, with the passes that are the target's.

    Raises NotMeasuredError, a RefusedError where the compiler makes nothing of the program.
    """
    check_installed(target)
    limit.begin(f"{what}, on {target.name}")
    left = round(max(limit.left_s, _LEAST_S))
    try:
        written = explicit(program(), target=target.name)
        explained = explain_program(written, target.name, functions=(name,), time_limit_s=left)
    except DiagnosticError as error:
        raise NotMeasuredError(error.diagnostics[0].message) from None
    if explained.errors:
        raise RefusedError("; ".join(error.diagnostics[0].message for error in explained.errors))
    return explained.functions[0]


def check_installed(target: Target) -> None:
    """Raises NotMeasuredError where the target's compiler is not here."""
    if target.platform.missing:
        raise NotMeasuredError(f"{target.name} needs {target.platform.compiler}: {target.platform.command}")


def target_of(chip: Chip, n_chips: int) -> Target:
    """The most compact slice of a torus with so many chips, or nodes filled with them. Raises NotMeasuredError where no
    compiler of such chips runs here."""
    if chip.name not in chip_names():
        raise NotMeasuredError(f"no compiler for {chip.name} runs on other machines")
    network = chip.interconnect
    if isinstance(network, Switched):
        most = network.levels[0].units or n_chips
        shape = (n_chips // most, most) if n_chips > most else (n_chips,)
    else:
        shape = network.slices_of(n_chips)[0]
    return parse_target(f"{chip.name}:{'x'.join(map(str, shape))}")
