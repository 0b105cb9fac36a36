"""The bytes in use on each tier while a schedule runs: what is in flight in buffers, and caches as they grow.

A buffer is in use from the start of the event that fills it to the end of the last that reads it. The cache of a batch
in a stage grows with each token and is free after the batch's last token there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from shardwright.backends.torch.schedule import Turn
from shardwright.ir.types import Tier

if TYPE_CHECKING:
    from shardwright.backends.torch.schedule import Event, Schedule, Traffic
    from shardwright.cost.offloading.simulation import Span

_BUFFERS = {
    "read weights": Tier.HOST,
    "read cache": Tier.HOST,
    "read hidden": Tier.HOST,
    "copy weights": Tier.DEVICE,
    "copy cache": Tier.DEVICE,
    "copy hidden": Tier.DEVICE,
}
"""The tier of the buffer that a copy fills with all its bytes."""


class _Changes:
    """Bytes that come and go."""

    def __init__(self) -> None:
        self.deltas: defaultdict[str, defaultdict[float, float]] = defaultdict(lambda: defaultdict(float))

    def held(self, tier: Tier, nbytes: float, start: float, end: float) -> None:
        if nbytes and end > start:
            self.deltas[str(tier)][start] += nbytes
            self.deltas[str(tier)][end] -= nbytes

    def points(self, resident: Mapping[str, float]) -> dict[str, tuple[tuple[float, float], ...]]:
        made: dict[str, tuple[tuple[float, float], ...]] = {}
        for tier in map(str, Tier):
            deltas = self.deltas[tier]
            now = resident.get(tier, 0.0)
            points: list[tuple[float, float]] = []
            for time in sorted({0.0, *deltas}):
                now += deltas.get(time, 0.0)
                points.append((time, now))
            if any(nbytes for _, nbytes in points):
                made[tier] = tuple(points)
        return made


def memory_over_time(
    schedule: Schedule,
    spans: Sequence[Span],
    traffic: Traffic,
    resident: Mapping[str, float] | None = None,
    device_cache: Mapping[Turn, float] | None = None,
) -> dict[str, tuple[tuple[float, float], ...]]:
    """For each tier in use, (second, bytes in use from then on). `resident` are bytes of each tier that are in use
    all the time, `device_cache` those of the new positions of a batch at a token that stay on the device."""
    changes = _Changes()
    _buffers(schedule, spans, traffic, changes)
    _caches(schedule, spans, traffic, device_cache or {}, changes)
    return changes.points(resident or {})


def _buffers(schedule: Schedule, spans: Sequence[Span], traffic: Traffic, changes: _Changes) -> None:
    filled: dict[str, tuple[Tier, float, float]] = {}
    read_until: dict[str, float] = {}

    def end(buffer: str) -> None:
        if buffer in filled:
            tier, nbytes, start = filled.pop(buffer)
            changes.held(tier, nbytes, start, read_until[buffer])

    for event in schedule.events:
        for buffer in event.reads:
            if buffer in filled:
                read_until[buffer] = max(read_until[buffer], spans[event.number].end)
        for buffer in event.fills:
            place = _place(event, buffer, traffic)
            if place is not None:
                end(buffer)
                filled[buffer] = (*place, spans[event.number].start)
                read_until[buffer] = spans[event.number].end
    for buffer in list(filled):
        end(buffer)


def _place(event: Event, buffer: str, traffic: Traffic) -> tuple[Tier, float] | None:
    """The tier and the bytes of a buffer that this event fills; None where it is not counted here."""
    if event.kind in _BUFFERS:
        return None if buffer.startswith("hidden copy") else (_BUFFERS[event.kind], event.nbytes)
    turn = Turn(event.batch, event.token)
    match str(event.kind), buffer.rsplit(" ", 1)[-1]:
        case "store cache", last if last not in {"host", "disk"}:
            return Tier.HOST, traffic.new_cache[turn][1]
        case "store hidden", "host":
            return Tier.HOST, traffic.hidden[turn][0]
        case "store hidden", _:
            return Tier.HOST, traffic.hidden[turn][1]
        case "write hidden", _:
            return Tier.DISK, event.nbytes
        case _:
            return None


def _caches(
    schedule: Schedule, spans: Sequence[Span], traffic: Traffic, device_cache: Mapping[Turn, float], changes: _Changes
) -> None:
    free: dict[tuple[int, int], float] = {}
    grown: list[tuple[tuple[int, int], Tier, float, float]] = []
    for event in schedule.events:
        if event.batch < 0 or not traffic.attends[event.stage]:
            continue
        turn = Turn(event.batch, event.token)
        cache, start = (event.stage, event.batch), spans[event.number].start
        kind = str(event.kind)
        if kind in {"compute", "store cache", "write cache"}:
            free[cache] = max(free.get(cache, 0.0), spans[event.number].end)
        if kind == "compute":
            grown.append((cache, Tier.DEVICE, device_cache.get(turn, 0.0), start))
        elif kind == "store cache":
            grown.append((cache, Tier.HOST, traffic.new_cache[turn][0], start))
        elif kind == "write cache":
            grown.append((cache, Tier.DISK, event.nbytes, start))
    for cache, tier, nbytes, start in grown:
        changes.held(tier, nbytes, start, free[cache])
