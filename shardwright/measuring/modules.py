"""Programs as the compilers of targets make them, within a limit of time for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from shardwright.backends.targets.names import Target, chip_names, parse_target
from shardwright.compiling.compile_program import explicit
from shardwright.cost.hardware.chips import Chip, Switched
from shardwright.explaining.explain import explain_program
from shardwright.explaining.reports import FunctionReport
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.program import Program

_LEAST_S = 60.0
"""Seconds that a compiler has, however little of the limit is left: most of what ends sooner would be for nothing."""


class NotMeasuredError(Exception):
    """Nothing can be measured, or no more: the reason, in one line."""


class RefusedError(NotMeasuredError):
    """A compiler makes nothing of a program: its reason, in one line."""


@dataclass
class Limit:
    """So many seconds from now for all measurements; `told` is given the name of each before it is begun."""

    limit_s: float
    told: Callable[[str], object] = lambda _: None
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = time.monotonic() + self.limit_s

    @property
    def left_s(self) -> float:
        return self._end - time.monotonic()

    def begin(self, what: str) -> None:
        """Raises NotMeasuredError where the time is over."""
        if self.left_s <= 0:
            kept = "what was compiled is kept, so the same command goes on"
            raise NotMeasuredError(f"the {self.limit_s:g} s of the time limit are over; {kept}")
        self.told(what)


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
