"""The timeline of any explicit program as it is predicted: what a chip computes, and what is on its links meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

from shardwright.backends.timeline.record import Course, RecordedEvent, Timeline
from shardwright.cost.offloading.simulation import Bound
from shardwright.cost.programs.program_cost import Cost, KernelCost, course_of_call
from shardwright.cost.programs.schedule import KernelTiming
from shardwright.ir.program import Func, Program


def predicted_timeline(program: Program, func: Func, cost: Cost) -> Timeline:
    """One call of a function on the chip of its cost, every trip of its loops by itself.

    `device` is what computes, `links xy` the collectives over these axes, `to device` and `from device` copies between
    memories. What runs beside something else is hidden by it; each moment is bound by what was waited for.
    """
    seen = course_of_call(program, func, cost)
    entries = tuple(_entry(number, happening, cost) for number, happening in enumerate(seen))
    title = f"{func.name} on {cost.chip.counted(cost.n_chips)}"
    return Timeline(title, Course(entries, {}, tuple(_bounds(entries, seen, cost))))


def _entry(number: int, happening: KernelTiming, cost: Cost) -> RecordedEvent:
    if happening.number < 0:
        trips = f"{happening.trips} trips like the last"
        return RecordedEvent(number, "device", trips, happening.start, happening.end)
    kernel = cost.kernels[happening.number]
    work = kernel.work
    nbytes = work.collective.received if work.collective is not None else 0
    name = f"{work.operation} {work.name}"
    return RecordedEvent(number, _resource(kernel), name, happening.start, happening.end, nbytes)


def _resource(kernel: KernelCost) -> str:
    work = kernel.work
    if work.collective is not None:
        return f"links {''.join(work.collective.axes)}"
    if work.copied is not None:
        return "to device" if work.copied.inward else "from device"
    return "host" if work.on_host else "device"


def _bounds(entries: tuple[RecordedEvent, ...], seen: list[KernelTiming], cost: Cost) -> Iterator[Bound]:
    """The bounds of each moment: what is not in flight bounds its own time; between these, a transfer is waited for."""
    now = 0.0
    for entry, happening in zip(entries, seen, strict=True):
        flying = happening.number >= 0 and cost.kernels[happening.number].work.in_flight
        if flying or entry.end <= now:
            continue
        if entry.start > now:
            waited = [other for other in entries if other.start < entry.start and other.end >= entry.start]
            yield Bound(now, entry.start, waited[-1].resource if waited else "")
        yield Bound(max(now, entry.start), entry.end, entry.resource)
        now = entry.end
    last = max(entries, key=lambda entry: entry.end, default=None)
    if last is not None and last.end > now:
        yield Bound(now, last.end, last.resource)
