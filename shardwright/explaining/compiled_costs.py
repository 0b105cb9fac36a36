"""The kernels and movements that a target's compiler made of each kernel and movement that `cost` prices: its estimate,
and bytes received."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwright.cost.programs.program_cost import Cost
from shardwright.explaining.reports import FunctionReport, KernelReport


@dataclass(frozen=True)
class CompiledPart:
    """The part of a compiled function that belongs to one of our kernels, all trips together. `estimated_s` is None
    where the compiler estimates nothing; `within` is the movement whose collective makes this one too."""

    estimated_s: float | None = None
    bytes_received: int = 0
    within: str = ""


@dataclass(frozen=True)
class CompiledCosts:
    """A function's compiled parts by the names of `cost`'s kernels. `other` are compiled kernels of none of them, such
    as copies into another tiling; `bytes_received` are those of all collectives."""

    target: str
    parts: Mapping[str, CompiledPart]
    other: CompiledPart
    bytes_received: int
    estimated_s: float | None


def compiled_costs(cost: Cost, report: FunctionReport, target: str) -> CompiledCosts:
    """Gives each compiled kernel to the priced one whose statement it is made of, its product's or its result's first,
    and each collective to the first movement that asked for it."""
    owners = {work.statement.result.name: work.name for work in (kernel.work for kernel in cost.kernels)}
    owners |= {name: name for name in owners.values()}
    seconds: dict[str, float] = {}
    for kernel in report.kernels:
        owner = next((owners[name] for name in kernel.statements if name in owners), "")
        seconds[owner] = seconds.get(owner, 0.0) + _total_s(kernel)
    received: dict[str, int] = {}
    within: dict[str, str] = {}
    for collective in report.collectives:
        first, *others = collective.statements or ("",)
        received[first] = received.get(first, 0) + collective.bytes_received
        within.update(dict.fromkeys(others, first))
    estimates = any(kernel.estimated_s is not None for kernel in report.kernels)
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
    return CompiledCosts(target, parts, other, report.bytes_received, total)


def _total_s(kernel: KernelReport) -> float:
    return (kernel.estimated_s or 0.0) * (kernel.trips or 1)
