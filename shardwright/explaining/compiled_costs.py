"""The kernels and movements that a target's compiler made of each kernel and movement that `cost` prices: its estimate,
or where it has none, as GPUs' compilers, their price; and bytes received."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.backends.hlo.executed import taken
from shardwright.backends.targets.estimates import priced_s
from shardwright.cost.hardware.chips import Chip
from shardwright.cost.hardware.constants import Constants
from shardwright.cost.programs.program_cost import Cost
from shardwright.explaining.reports import FunctionReport, UntimedKernel
from shardwright.ir.diagnostics import DiagnosticError


@dataclass(frozen=True)
class CompiledPart:
    """The part of a compiled function that belongs to one of our kernels, all trips together. `estimated_s` is None
    where there is no estimate; `within` is the movement whose collective makes this one too."""

    estimated_s: float | None = None
    bytes_received: int = 0
    within: str = ""


@dataclass(frozen=True)
class CompiledCosts:
    """A function's compiled parts by the names of `cost`'s kernels. `other` are compiled kernels of none of them, such
    as copies into another tiling; `bytes_received` are those of all collectives. `priced` says that the estimates are
    of the cost model's constants."""

    target: str
    parts: Mapping[str, CompiledPart]
    other: CompiledPart
    bytes_received: int
    estimated_s: float | None
    priced: bool = False

    @property
    def moving_s(self) -> float:
        """The estimate of kernels made of movements, as of slices and copies before a collective."""
        parts = sum(part.estimated_s or 0.0 for part in (*self.parts.values(), self.other))
        return max(0.0, (self.estimated_s or 0.0) - parts)


def compiled_costs(
    cost: Cost, report: FunctionReport, target: str, constants: Constants | None = None
) -> CompiledCosts:
    """Gives each compiled kernel to the priced one whose statement it is made of, its product's or its result's first,
    and each collective to the first movement that asked for it. A GPU's kernels that only lay an array otherwise belong
    to none. Of a conditional the branch counts whose kernels take longest."""
    owners = {work.statement.result.name: work.name for work in (kernel.work for kernel in cost.kernels)}
    owners |= {name: name for name in owners.values()}
    seconds: dict[str, float] = {}
    for kernel in report.kernels_run:
        owner = next((owners[name] for name in kernel.statements if name in owners), "")
        seconds[owner] = seconds.get(owner, 0.0) + kernel.total_s
    prices = _prices(report.untimed, cost.chip, constants or cost.chip.constants)
    for place in taken([(each.kernel.branches, price) for each, price in zip(report.untimed, prices, strict=False)]):
        each = report.untimed[place]
        named = () if each.kernel.moves_only else each.statements
        owner = next((owners[name] for name in named if name in owners), "")
        seconds[owner] = seconds.get(owner, 0.0) + prices[place]
    received: dict[str, int] = {}
    within: dict[str, str] = {}
    for collective in report.collectives:
        first, *others = collective.statements or ("",)
        received[first] = received.get(first, 0) + collective.bytes_received
        within.update(dict.fromkeys(others, first))
    priced = bool(prices)
    estimates = priced or any(kernel.estimated_s is not None for kernel in report.kernels)
    parts = {
        name: CompiledPart(
            seconds.get(name, 0.0) if estimates and kernel.work.collective is None else None,
            received.get(name, 0),
            within.get(name, "") if name not in received else "",
        )
        for kernel in cost.kernels
        for name in (kernel.work.name,)
    }
    total = sum(seconds.values()) if estimates else None
    other = CompiledPart(seconds.get("", 0.0) if estimates else None, received.get("", 0))
    return CompiledCosts(target, parts, other, report.bytes_received, total, priced)


def _prices(kernels: Sequence[UntimedKernel], chip: Chip, constants: Constants) -> list[float]:
    """Seconds of all trips of each kernel; none at all where the chip has no rate for the format of a product."""
    try:
        return [priced_s(each.kernel, chip, constants) * (each.kernel.trips or 1) for each in kernels]
    except DiagnosticError:
        return []
