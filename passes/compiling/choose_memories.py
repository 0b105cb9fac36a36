"""`choose-memories`: weights and state whose memory is left open, `on ?`, lie on the device as far as they fit."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, islice
from typing import TYPE_CHECKING, ClassVar

from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.placements import off_device, on_device, with_placements
from shardwright.ir.program import Program, SetState, Value
from shardwright.ir.types import ON_DEVICE, ON_HOST, Placement, Tier
from shardwright.ir.walk import names_read
from shardwright.passes.base import Pass, Proof
from shardwright.passes.compiling.found import ENOUGH, TooLargeError
from shardwright.passes.compiling.place import SECONDS, Place

if TYPE_CHECKING:
    from shardwright.cost.choosing.objective import Objective
    from shardwright.passes.compiling.found import SearchResult

_TRIED = 16
"""Fillings whose layouts are chosen before everything open stays on the host."""

_SUBSETS = 8
"""Open values of which every subset may lie on the device; of more, those whose copies take longest for a byte."""

_FOR_ALL_HELD = 0.4
"""The share of the time for the layouts on a device that holds everything, which give a bound."""

_FOR_EACH = 0.1
"""The share of the time for the layouts of one filling."""

_FOR_SHARES = 0.25
"""The share of the time for the bounds of shares, all sets of fetched values together."""

_FOR_TRYING = 0.7
"""The share of the time after which no further filling is tried."""


_SECONDS = SECONDS / _FOR_ALL_HELD
"""The time where no command limits it: the device that holds everything gets what `place` has for one program."""


@dataclass(frozen=True)
class ChooseMemories(Pass):
    """Fills `on ?` of weights and state: on the device as far as they fit there, on the host else.

        weights { w: bf16 NEF_x on ? }

    becomes, where three quarters fit on each chip,

        weights { w: bf16 NEF_x on device 75% host 25% along F }

    The chip is that of `place`, and layouts are chosen as there for each filling that is tried, `calls` included. Those
    with the fewest seconds of copies are tried first; values are shared between the memories, along their largest
    dimension, unless each is to be `whole` in one. Where all fits on the device and layouts are slower for it, the
    others are tried too. Of up to four values every set to be fetched has a bound of all its shares. `offload` writes
    the copies.
    """

    name: ClassVar[str] = "choose-memories"
    chip: str = ""
    calls: str = ""
    whole: bool = False

    def run(self, program: Program) -> Program:
        return self.run_with_proof(program)[0]

    def run_with_proof(self, program: Program) -> tuple[Program, Proof | None]:
        objective = Place(chip=self.chip, calls=self.calls).wanted(program)
        filled = memories_chosen(program, objective, whole=self.whole)
        return filled.program, filled.found and filled.found.proof


def open_memories(program: Program) -> tuple[Value, ...]:
    """The weights and state whose memory is left open."""
    return tuple(value for value in (*program.weights, *program.state) if value.type.placement is None)


@dataclass(frozen=True)
class FilledMemories:
    """A program without `on ?`, and the layouts that were found for it, with a bound of all memories: that of layouts
    on a device that holds everything, and of the copies that there must be. None where nothing was open."""

    program: Program
    found: SearchResult | None = None


def memories_chosen(
    program: Program, objective: Objective, seconds: float = _SECONDS, *, whole: bool = False
) -> FilledMemories:
    """The program with every `on ?` of its weights and state filled, for which about so many `seconds` are there.
    Raises where it does not fit with all of them on the host, or where what does not fit has no host to lie on; as
    `passes.compiling.choosing.search` else."""
    from shardwright.passes.compiling.choosing import search

    opened = open_memories(program)
    if not opened:
        return FilledMemories(program)
    end = time.monotonic() + _FOR_TRYING * seconds
    device, on_host = ({value.name: tier for value in opened} for tier in (ON_DEVICE, ON_HOST))
    everything, limit = _filled(program, device), objective.chip.memory_bytes
    roomy = replace(objective, chip=replace(objective.chip, memory_bytes=math.inf))
    free = search(on_device(everything), roomy, _FOR_ALL_HELD * seconds)

    def filled(placements: Mapping[str, Placement], found: SearchResult, least_s: float = 0.0) -> FilledMemories:
        bound = max(free.bound_s + least_copies_s(program, objective), least_s)
        return FilledMemories(_filled(program, placements), found.but(bound_s=bound))

    if free.peak <= limit and not off_device(everything):
        return filled(device, free)
    tried = _Fillings(program, objective, _FOR_EACH * seconds)
    fitting = tried.add(device)
    if tried.fault is not None and not isinstance(tried.fault, TooLargeError):
        raise tried.fault
    late, near = time.monotonic() > end, free.objective_s * (1 + ENOUGH)
    if objective.chip.host_link is None or (fitting and (late or fitting.objective_s <= near)):
        return filled(*tried.result())
    every = tried.add(on_host) or search(_filled(program, on_host), roomy, tried.seconds)
    kept = sorted((_Kept.of(every, value.name) for value in opened), key=lambda value: -value.a_byte_s)
    for placements in islice(_subsets(kept, limit), _TRIED):
        if (tried.best and time.monotonic() > end) or tried.add(on_host | placements):
            break
    for value in [] if whole else kept:
        if tried.best is None or time.monotonic() > end:
            break
        spread = value.spread((limit - tried.best.peak) / max(1, value.nbytes))
        if tried.chosen[value.name] == ON_HOST and spread.tier is None:
            tried.add({**tried.chosen, value.name: spread})
    on_device_s = fitting.bound_s if fitting else tried.fault.bound_s if isinstance(tried.fault, TooLargeError) else 0.0
    end = min(end, time.monotonic() + _FOR_SHARES * seconds)
    least_s = tried.least_shared(kept, on_device_s, end, whole=whole)
    return filled(*tried.result(), least_s)


class _Fillings:
    """The fillings of a program's open memories that were tried, each for so many `seconds`, and the best of them."""

    def __init__(self, program: Program, objective: Objective, seconds: float) -> None:
        self.program, self.objective, self.seconds = program, objective, seconds
        self.best: SearchResult | None = None
        self.chosen: Mapping[str, Placement] = {}
        self.fault: DiagnosticError | None = None
        """The fault of the first, where it does not fit."""

    def add(self, placements: Mapping[str, Placement]) -> SearchResult | None:
        """Chooses the layouts of a filling. None where it does not fit, or cannot be."""
        from shardwright.passes.compiling.choosing import search

        try:
            found = search(_filled(self.program, placements), self.objective, self.seconds)
        except DiagnosticError as error:
            self.fault = self.fault or error
            return None
        if self.best is None or found.objective_s < self.best.objective_s:
            self.best, self.chosen = found, placements
        return found

    def result(self) -> tuple[Mapping[str, Placement], SearchResult]:
        """The best filling. Raises the fault of the first where none fits."""
        if self.best is None:
            assert self.fault is not None
            raise self.fault
        return self.chosen, self.best

    def least_shared(self, kept: Sequence[_Kept], on_device_s: float, end: float, *, whole: bool) -> float:
        """Seconds that all fillings take at least, of which those with everything on the device take so many; minus
        infinity where that is not known by the `end`. Tries what comes near to that, with shares unless each value is
        to be `whole`."""
        from shardwright.passes.compiling.shared_memories import fetched_sets, least_shared

        device = {value.name: ON_DEVICE for value in kept}
        saved_s = {value.name: value.a_byte_s for value in kept}
        least = on_device_s
        sets = fetched_sets(tuple(device))
        for number, names in enumerate(sets):
            left = (end - time.monotonic()) / (len(sets) - number)
            if left <= 0:
                return -math.inf
            program = _filled(self.program, device | dict.fromkeys(names, ON_HOST))
            known_s = self.best.objective_s if self.best else math.inf
            bound_s, shares = least_shared(program, names, saved_s, self.objective, known_s, left)
            bound_s -= sum(value.rounding_s for value in kept if value.name in names)
            least = min(least, bound_s)
            if math.isinf(least) and least < 0:
                return least
            for places in (0,) if whole else (0, 2):
                if not shares or (self.best and self.best.objective_s * (1 - ENOUGH) <= bound_s):
                    break
                fetched = (value for value in kept if value.name in names)
                self.add(device | {v.name: ON_HOST if whole else v.spread(shares[v.name], places) for v in fetched})
        return least if sets else -math.inf


@dataclass(frozen=True)
class _Kept:
    """A value with everything open on the host: its bytes on a chip, those of what is fetched of it at once, the
    seconds of its copies, those of half a byte in each, and its largest dimension."""

    name: str
    nbytes: int
    fetched: int
    seconds: float
    rounding_s: float
    largest: str

    @property
    def a_byte_s(self) -> float:
        """Seconds of copies for each byte."""
        return self.seconds / max(1, self.nbytes)

    def spread(self, share: float, places: int = 0) -> Placement:
        """The placement with that share on the device, or a little less, as far as it can be shared."""
        percent = math.floor(100 * share * 10**places) / 10**places
        if not self.largest or percent <= 0:
            return ON_HOST
        shares = ((Tier.DEVICE, percent), (Tier.HOST, round(100 - percent, places)))
        return ON_DEVICE if percent >= 100 else Placement(shares, self.largest)

    @staticmethod
    def of(found: SearchResult, name: str) -> _Kept:
        mesh, seconds, rounding, fetched = found.placed.mesh, 0.0, 0.0, 0
        for func, cost in zip(found.program.funcs, found.costs, strict=True):
            stored = {s.operand for s, _ in func.walk() if isinstance(s, SetState) and s.state == name}
            for kernel in cost.kernels:
                statement = kernel.work.statement
                if kernel.work.copied is not None and (name in statement.operands or statement.result.name in stored):
                    seconds += (taken := found.objective.count(cost.func) * kernel.total_s)
                    rounding += taken / max(1, 2 * kernel.work.copied.link_bytes)
                    fetched = max(fetched, kernel.work.result.local_bytes(mesh))
        dims = next(v for v in (*found.placed.weights, *found.placed.state) if v.name == name).type.dims
        largest = max(dims, key=lambda dim: dim.size).name if dims else ""
        return _Kept(name, _bytes_of(found, name), fetched, seconds, rounding, largest)


def _bytes_of(found: SearchResult, name: str) -> int:
    """The bytes of a weight or a state value on a chip, whatever the memory."""
    kept = (*found.placed.weights, *found.placed.state)
    return next(value.concrete.local_bytes(found.placed.mesh) for value in kept if value.name == name)


def _subsets(kept: Sequence[_Kept], limit: float) -> Iterator[dict[str, Placement]]:
    """Values on the device that take no more than its memory beside the largest fetched value, the fewest seconds of
    copies first; `kept` are in the order of what copies take for a byte."""
    every = (
        chain.from_iterable(combinations(kept, count) for count in range(1, len(kept)))
        if len(kept) <= _SUBSETS
        else (tuple(kept[:count]) for count in range(1, len(kept)))
    )
    fitting: list[tuple[float, tuple[_Kept, ...]]] = []
    for subset in every:
        fetched = max(value.fetched for value in kept if value not in subset)
        if sum(value.nbytes for value in subset) + fetched <= limit:
            fitting.append((-sum(value.seconds for value in subset), subset))
    for _, subset in sorted(fitting, key=lambda each: each[0]):
        yield {value.name: ON_DEVICE for value in subset}


def least_copies_s(program: Program, objective: Objective) -> float:
    """Seconds that copies take at least, whatever the layouts and the memories of the weights and state that are left
    open: what the device cannot hold of them, divided among all chips, is fetched in every call that reads it."""
    link, n_chips = objective.chip.host_link, program.mesh.n_chips
    opened = open_memories(program)
    whole = sum(value.shape.elements * value.shape.dtype.bits / 8 for value in opened)
    over = whole / n_chips - objective.chip.memory_bytes
    if link is None or over <= 0:
        return 0.0
    reads = {func.name: names_read(func.body) for func in program.funcs}
    calls = [sum(objective.count(func) for func, names in reads.items() if value.name in names) for value in opened]
    return over * min(calls) * min(n_chips, link.shared_by) / link.to_device_bytes_per_s


def _filled(program: Program, placements: Mapping[str, Placement]) -> Program:
    return with_placements(program, lambda name, kind: placements.get(name, kind.placement or ON_DEVICE))
