"""The predicted timeline of a policy: every step's copies and computation on a machine under a runtime.

A runtime that waits for all copies at every step has the steps of the cost model, one after the other. In one that does
not, copies run ahead as far as buffers let them: the PyTorch runtime's schedule, simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardwright.backends.timeline import Course, RecordedEvent, Timeline, course_of
from shardwright.backends.timeline.durations import Seconds, by_rates, token_of
from shardwright.cost.offloading.memory import peaks_of
from shardwright.cost.offloading.policy import TIERS, Policy
from shardwright.cost.offloading.pricing import OffloadSetting
from shardwright.cost.offloading.simulation import simulate
from shardwright.cost.offloading.sizes import phases
from shardwright.cost.offloading.times import BlockStep, computation, steps_of
from shardwright.cost.programs.unrolling import Action, Event, ListedEvents, Resource, events_of
from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.program import Program

MOST_EVENTS = 400_000
"""Of a timeline; its file has about 100 bytes for each."""

_NO_TIME = 1e-12
"""Seconds that are left over where parts of a sum are taken away."""

_LAYERS, _BATCHES = "N", "M"

_SHARED = {"disk read": "disk", "disk write": "disk"}


def predicted_timeline(setting: OffloadSetting, policy: Policy, title: str, program: Program | None = None) -> Timeline:
    """The timeline of one block, of one stage where the setting is a pipeline; with `program`, which is scheduled for
    the policy, of its events.

    Raises where there are more than `MOST_EVENTS` events.
    """
    if program is None:
        one = 4 * (2 * setting.stage.layers + 2) * policy.n_gpu_batches
        _check_events(one, setting.sizes.generated)
        return Timeline(title, _in_steps(setting, policy), None, setting.limits)
    first, decode = phases(program)
    one = len(events_of(program, decode))
    _check_events(one, setting.sizes.generated)
    events: list[Event] = []
    for token in range(setting.sizes.generated):
        unrolling = ListedEvents(program, decode if token else first)
        unrolling.first, unrolling.around = len(events), (("token", token),)
        unrolling.walk()
        events += unrolling.events
    spans = simulate(events, event_seconds(setting, policy, events), _SHARED)
    ends: dict[int, float] = {}
    for event, span in zip(events, spans, strict=True):
        ends[token_of(event)] = max(span.end, ends.get(token_of(event), 0.0))
    return Timeline(title, course_of(events, spans, _memory_by_token(setting, policy, ends)), None, setting.limits)


def _check_events(one: int, tokens: int) -> None:
    """Raises where so many events for each token are too many."""
    if one * tokens > MOST_EVENTS:
        raise fault(
            "long-timeline",
            f"the timeline has about {one * tokens} events; one of more than {MOST_EVENTS} is not made",
            NOWHERE,
            f"with --gen-len {max(1, MOST_EVENTS // one)} it has fewer",
        )


# ---------------------------------------------------------------- a runtime that waits at every step


@dataclass(frozen=True, slots=True)
class _Task:
    number: int
    resource: str
    name: str
    seconds: float
    after: tuple[int, ...]
    step: int | None


def _in_steps(setting: OffloadSetting, policy: Policy) -> Course:
    tasks: list[_Task] = []
    ends: dict[int, int] = {}
    after: tuple[int, ...] = ()
    for number, step in enumerate(steps_of(setting.stage_of(policy), policy, setting.runtime, setting.rates)):
        made = list(_tasks(setting, step, number, len(tasks), after))
        tasks += made
        after = (made[-1].number,)
        ends[step.token] = made[-1].number
    spans = simulate(tasks, lambda task: task.seconds)
    entries = tuple(
        RecordedEvent(task.number, task.resource, task.name, start, end, 0, task.after, task.step)
        for task, (start, end) in zip(tasks, spans, strict=True)
    )
    times = {token: spans[number].end for token, number in ends.items()}
    return Course(entries, _memory_by_token(setting, policy, times))


def _tasks(
    setting: OffloadSetting, step: BlockStep, number: int, first: int, after: tuple[int, ...]
) -> Iterator[_Task]:
    """The tasks of a step; the last of these ends it, and waits for the others."""
    runtime, load = setting.runtime, step.load
    where = f"{step.part} batch {step.batch} token {step.token}"
    waits = runtime.overlapped
    at, before = first, after
    # The two parts of what one thread reads and then copies on; without overlap everything waits for what is before it.
    relayed = load.relayed if waits else 0.0
    copied_on = relayed * setting.rates.disk_read / (setting.rates.disk_read + setting.rates.to_device)
    read = relayed - copied_on
    for resource, name, seconds, starts_first in (
        ("disk", "read", read, True),
        ("disk", "read and write", load.disk - read, True),
        ("to device", "copy", load.to_device - copied_on, True),
        ("to device", "copy what was read", copied_on, True),
        ("from device", "store", load.from_device, True),
        ("device", "wait for copies", load.blocking if waits else 0.0, True),
        ("device", "compute", load.device, False),
        ("host", "attention", load.host, False),
    ):
        if seconds > _NO_TIME:
            own = after if waits and starts_first else before
            own = (first,) if name == "copy what was read" else own
            yield _Task(at, resource, f"{name} {where}", seconds, own, number if resource == "device" else None)
            if not waits or resource in {"device", "host"}:
                before = (at,)
            at += 1
    lost = runtime.step_overhead_s
    if waits:
        lost += runtime.constants.contention * min(load.host, load.to_device)
    yield _Task(at, "device", f"wait {where}", lost, tuple(range(first, at)) or after, number)


def _memory_by_token(
    setting: OffloadSetting, policy: Policy, ends: dict[int, float]
) -> dict[str, tuple[tuple[float, float], ...]]:
    """The bytes that the tiers hold at each token: the price's peaks, with the cache as long as it has grown."""
    points: dict[str, list[tuple[float, float]]] = {tier: [] for tier in TIERS}
    start = 0.0
    for token, end in ends.items():
        peaks = peaks_of(replace(setting.stage_of(policy), generated=token + 1), policy, setting.runtime)
        now = (peaks.device_decode, peaks.host_decode) if token else (peaks.device_prefill, peaks.host_prefill)
        for tier, nbytes in zip(TIERS, (*now, peaks.disk), strict=True):
            points[tier].append((start, nbytes))
        start = end
    return {tier: tuple(listed) for tier, listed in points.items() if any(nbytes for _, nbytes in listed)}


# ---------------------------------------------------------------- a runtime whose copies run ahead


def event_seconds(setting: OffloadSetting, policy: Policy, events: Sequence[Event]) -> Seconds:
    """How long each event takes by the cost model; contention between streams is not in it. What a layer takes for a
    batch is shared out evenly over its computations, and so is what comes before and after the layers."""
    sizes, runtime, rates = setting.stage_of(policy), setting.runtime, setting.rates
    shares = Counter((event.trips, event.resource) for event in events if event.action is Action.COMPUTE)
    made: dict[tuple[bool, int, int], tuple[float, float]] = {}

    def computed(event: Event) -> float:
        trips, token = dict(event.trips), token_of(event)
        layer, batch = _LAYERS in trips, _BATCHES in trips
        if not layer and not batch:
            return 0.0
        entering = layer and not batch  # one batch begins while the others go on
        tokens, context = (sizes.prompt, sizes.prompt) if entering or not token else (1, sizes.prompt + token)
        key = layer, tokens, context
        if key not in made:
            parts = (sizes.attention, sizes.feedforward) if layer else (sizes.embedding, sizes.unembedding)
            loads = [computation(sizes, policy, runtime, rates, part, tokens, context) for part in parts]
            made[key] = sum(load.device for load in loads), sum(load.host for load in loads)
        return made[key][event.resource is Resource.HOST] / shares[event.trips, event.resource]

    copied = rates.to_device if runtime.pinned_weights else rates.unpinned_to_device
    return by_rates(
        {
            Resource.DISK_READ: rates.disk_read,
            Resource.TO_DEVICE: copied,
            Resource.FROM_DEVICE: rates.store_cache,
            Resource.DISK_WRITE: rates.disk_write,
        },
        computed,
    )


def run_seconds(setting: OffloadSetting, policy: Policy, events: Sequence[Event], layers: int | None = None) -> Seconds:
    """How long the events of a run take by the cost model, where its batches are as the setting and the policy say.

    With `layers` they are those of one process of a pipeline, which has so many; messages take no time.
    """
    if layers is not None:
        setting = replace(setting, sizes=replace(setting.sizes, layers=layers), devices=1)
    return event_seconds(setting, policy, events)
