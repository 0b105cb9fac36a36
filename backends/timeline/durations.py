"""How long the events of the PyTorch runtime's schedules take: from rates, or from spans that were measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from shardwright.backends.torch.schedule import Event, Kind, Schedule
from shardwright.cost.offloading.simulation import Span

Seconds = Callable[[Event], float]


def by_rates(rates: Mapping[Kind, float], computed: Seconds) -> Seconds:
    """Copies at these bytes a second, computations as `computed` says. A copy without a rate takes no time."""

    def seconds(event: Event) -> float:
        if event.kind is Kind.COMPUTE:
            return computed(event)
        return event.nbytes / rates[event.kind] if rates.get(event.kind) else 0.0

    return seconds


def by_measurement(schedule: Schedule, spans: Sequence[Span]) -> Seconds:
    """Copies at the mean bytes a second of their kind; computations at the mean of those of their stage at prefill, or
    at later tokens."""
    moved: defaultdict[Kind, float] = defaultdict(float)
    taken: defaultdict[Kind, float] = defaultdict(float)
    computed: defaultdict[tuple[int, bool], list[float]] = defaultdict(list)
    for event, (start, end) in zip(schedule.events, spans, strict=True):
        if event.kind is Kind.COMPUTE:
            computed[event.stage, event.token == 0].append(end - start)
        else:
            moved[event.kind] += event.nbytes
            taken[event.kind] += end - start
    rates = {kind: moved[kind] / seconds for kind, seconds in taken.items() if seconds}
    means = {key: sum(values) / len(values) for key, values in computed.items()}
    return by_rates(rates, lambda event: means.get((event.stage, event.token == 0), 0.0))
