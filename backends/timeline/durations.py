"""How long the events of programs take: from rates, or from spans that were measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from shardwright.cost.offloading.simulation import EventSpan
from shardwright.cost.programs.unrolling import Action, Event, Resource

Seconds = Callable[[Event], float]


def by_rates(rates: Mapping[Resource, float], computed: Seconds) -> Seconds:
    """Copies at these bytes a second, computations as `computed` says. A copy without a rate takes no time."""

    def seconds(event: Event) -> float:
        if event.action is Action.COMPUTE:
            return computed(event)
        return event.nbytes / rates[event.resource] if rates.get(event.resource) else 0.0

    return seconds


def by_measurement(events: Sequence[Event], spans: Sequence[EventSpan]) -> Seconds:
    """Copies at the mean bytes a second of their resource; computations at the mean of those of the same statements, at
    prefill or at later tokens."""
    moved: defaultdict[Resource, float] = defaultdict(float)
    taken: defaultdict[Resource, float] = defaultdict(float)
    computed: defaultdict[tuple[str, bool], list[float]] = defaultdict(list)
    for event, (start, end) in zip(events, spans, strict=True):
        if event.action is Action.COMPUTE:
            computed[event.name, token_of(event) == 0].append(end - start)
        else:
            moved[event.resource] += event.nbytes
            taken[event.resource] += end - start
    rates = {resource: moved[resource] / seconds for resource, seconds in taken.items() if seconds}
    means = {key: sum(values) / len(values) for key, values in computed.items()}
    return by_rates(rates, lambda event: means.get((event.name, token_of(event) == 0), 0.0))


def token_of(event: Event) -> int:
    """The number of the token that is made, of a run's events."""
    return dict(event.trips).get("token", 0)
