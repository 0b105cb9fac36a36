"""A target's own schedule as a course: a compiled module executed in the order of its text.

Kernels take the cycles that the compiler says of them, those of the module's own the work that they state; where it
says none, what the cost model says of their products and bytes. So do collectives of their axes and bytes, since
compilers say nothing of links. One that is parted into start and end goes on beside what stands between; any other has
the chip to itself. Of a loop every trip is executed, until there are so many events that trips which take as long as
the one before are told together; of a conditional the branch that takes longest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from shardwright.backends.hlo.collectives import CompiledCollective, collectives_of
from shardwright.backends.hlo.kernels import kernels_of
from shardwright.backends.hlo.module import Computation, HloModule, SourceFrame
from shardwright.backends.hlo.overlap import in_flight, inner_collectives
from shardwright.backends.hlo.statements import statement_of
from shardwright.backends.hlo.trips import called_as, trips_of
from shardwright.backends.targets.estimates import CompilerRates, kernel_s
from shardwright.backends.timeline.record import Course, RecordedEvent
from shardwright.cost.hardware.constants import Constants, KernelDemand, times_of
from shardwright.cost.hardware.topology import Topology, TorusTopology
from shardwright.cost.movements.collectives import CollectiveKind, latency_and_transfer
from shardwright.cost.offloading.simulation import Bound

_MOST = 20_000
"""Events from which trips that are alike are told together."""


def scheduled_course(
    module: HloModule,
    topology: Topology,
    constants: Constants,
    rates: CompilerRates | None = None,
    file: str = "",
    names: Mapping[int, str] | None = None,
) -> Course:
    """The course of one call of a module that a compiler has scheduled, which assumes these `rates`, or says no cycles.
    `names` are the values that the lines of an emitted `file` define: kernels and collectives are called after those
    that they compute."""

    def called(name: str, stacks: Sequence[Sequence[SourceFrame]]) -> str:
        found = [place[0] for stack in stacks if (place := statement_of(stack, file, names or {})) is not None]
        return f"{', '.join(dict.fromkeys(found))} ({name})" if found else name

    kernels = {
        kernel.name: _Kernel(called(kernel.name, kernel.stacks), kernel_s(kernel, topology.chip, rates, constants))
        for kernel in kernels_of(module, untimed=rates is None)
    }
    collectives = {
        each.name: _priced(each, called(each.name, [each.stack]), topology, constants)
        for each in collectives_of(module)
    }
    run = _Run(module, kernels, collectives, isinstance(topology, TorusTopology))
    run.execute(module.computations[module.entry])
    lengths = "kernels and collectives" if rates is None else "collectives"
    told = f"order{'' if rates is None else ' and cycles'} by the compiler, {lengths} estimated by the cost model"
    return Course(tuple(run.entries), {}, tuple(run.bounds), told)


class _Kernel(NamedTuple):
    name: str
    seconds: float


class _Priced(NamedTuple):
    name: str
    links: str
    seconds: float
    nbytes: int


def _priced(collective: CompiledCollective, name: str, topology: Topology, constants: Constants) -> _Priced:
    """A collective as the cost model takes it, which counts what a device has already with what it receives."""
    mesh = dict(topology.mesh)
    axes = collective.axes(mesh) or tuple(axis for axis, size in mesh.items() if size > 1)
    kind, chips = CollectiveKind(collective.op), prod(mesh[axis] for axis in axes)
    whole = collective.bytes_once
    if kind is not CollectiveKind.PERMUTE and chips > 1:
        whole = whole * chips // ((chips - 1) * (2 if kind is CollectiveKind.ALL_REDUCE else 1))
    latency, transfer = latency_and_transfer(kind, axes, whole, topology)
    seconds = times_of(KernelDemand(transfer_s=transfer, latency_s=latency, kernels=0), constants).total
    return _Priced(f"{collective.op} {name}", f"links {''.join(axes)}", seconds, collective.bytes_once)


@dataclass
class _Run:
    """An execution. `now` is when the device goes on, `free` when the transfers so far on each kind of links end;
    `axes_apart` says that each axis of the mesh has links of its own."""

    module: HloModule
    kernels: Mapping[str, _Kernel]
    collectives: Mapping[str, _Priced]
    axes_apart: bool
    entries: list[RecordedEvent] = field(default_factory=list[RecordedEvent])
    bounds: list[Bound] = field(default_factory=list[Bound])
    now: float = 0.0
    free: dict[str, float] = field(default_factory=dict[str, float])

    def execute(self, computation: Computation) -> None:
        flying = in_flight(self.module, computation)
        landing: dict[str, list[RecordedEvent]] = {}
        for instruction in computation.instructions.values():
            self.wait(landing.get(instruction.name, ()))
            names, end = flying.get(instruction.name, (inner_collectives(self.module, instruction), ""))
            if instruction.opcode == "while":  # counted, so that nothing is asked of the device before each trip
                body = called_as(self.module, instruction, "body")
                self.repeat([body] if body else [], trips_of(self.module, computation, instruction) or 1)
                continue
            if instruction.opcode in {"call", "conditional"}:
                named = instruction.called
                called = [self.module.computations[one] for one in named if one in self.module.computations]
                if instruction.opcode == "call":
                    self.repeat(called, 1)
                elif called:
                    self.longest(called)
                continue
            sent = [self.transfer(self.collectives[name]) for name in names if name in self.collectives]
            if end:
                landing.setdefault(end, []).extend(sent)
            else:
                self.wait(sent)
            if instruction.name in self.kernels:
                kernel = self.kernels[instruction.name]
                self.take(kernel.name, kernel.seconds)

    def repeat(self, bodies: list[Computation], trips: int) -> None:
        for trip in range(trips):
            began = self.now
            for body in bodies:
                self.execute(body)
            left = trips - trip - 1
            if left and len(self.entries) > _MOST:
                self.take(f"{left} trips like the last", left * (self.now - began))
                return

    def longest(self, branches: Sequence[Computation]) -> None:
        """The branch of a conditional that ends last: which of them runs is not in the text."""
        entries, bounds, now, free = len(self.entries), len(self.bounds), self.now, self.free
        ways: list[tuple[float, dict[str, float], list[RecordedEvent], list[Bound]]] = []
        for branch in branches:
            self.now, self.free = now, dict(free)
            self.execute(branch)
            ways.append((self.now, self.free, self.entries[entries:], self.bounds[bounds:]))
            del self.entries[entries:], self.bounds[bounds:]
        self.now, self.free, added, bounding = max(ways, key=lambda way: way[0])
        self.entries += added
        self.bounds += bounding

    def wait(self, sent: Sequence[RecordedEvent]) -> None:
        """The device goes on when these transfers have ended."""
        for entry in sent:
            if entry.end > self.now:
                self.bounds.append(Bound(self.now, entry.end, entry.resource))
                self.now = entry.end

    def transfer(self, priced: _Priced) -> RecordedEvent:
        links = priced.links if self.axes_apart else "links"
        start = max(self.now, self.free.get(links, 0.0))
        self.free[links] = end = start + priced.seconds
        made = RecordedEvent(len(self.entries), priced.links, priced.name, start, end, priced.nbytes)
        self.entries.append(made)
        return made

    def take(self, name: str, seconds: float) -> None:
        end = self.now + seconds
        self.entries.append(RecordedEvent(len(self.entries), "device", name, self.now, end))
        self.bounds.append(Bound(self.now, end, "device"))
        self.now = end
