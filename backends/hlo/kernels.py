"""The kernels of a compiled module that its compiler says the time of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from shardwright.backends.hlo.module import HloModule
from shardwright.backends.hlo.trips import trips_of

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


@dataclass(frozen=True)
class Kernel:
    """An instruction with the cycles of one trip; `trips` is None in a loop of unknown length."""

    name: str
    trips: int | None
    cycles: int


def kernels_of(module: HloModule) -> list[Kernel]:
    """The kernels with cycles, which TPUs' modules have, in the order of the text of each computation."""
    return list(_kernels(module, module.entry, 1))


def _kernels(module: HloModule, name: str, trips: int | None) -> Iterator[Kernel]:
    computation = module.computations[name]
    for instruction in computation.instructions.values():
        cycles = _CYCLES.search(instruction.attributes)
        if cycles:
            yield Kernel(instruction.name, trips, int(cycles[1]))
        if instruction.opcode not in {"while", "call", "conditional"}:
            continue
        times = trips
        if instruction.opcode == "while":
            own = trips_of(module, computation, instruction)
            times = None if own is None or trips is None else trips * own
        for callee in instruction.called:
            if callee in module.computations:
                yield from _kernels(module, callee, times)
