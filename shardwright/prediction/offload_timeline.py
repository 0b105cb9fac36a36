"""The predicted timeline of a policy: every step's copies and computation on a machine under a runtime.

A runtime that waits for all copies at every step has the steps of the cost model, one after the other. In one that does
not, copies run ahead as far as buffers let them: the PyTorch runtime's schedule, simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardwright.backends.timeline import Course, Entry, Timeline, course_of, memory_over_time
from shardwright.backends.timeline.durations import Seconds, by_rates
from shardwright.backends.torch.pipeline import Place
from shardwright.backends.torch.schedule import (
    Event,
    Kind,
    Traffic,
    Turn,
    build,
    check,
    diagonal_passes,
    zigzag_passes,
)
from shardwright.cost.offloading.memory import attends_on_host, peaks_of
from shardwright.cost.offloading.placement import place
from shardwright.cost.offloading.policy import TIERS, Policy
from shardwright.cost.offloading.pricing import Setting
from shardwright.cost.offloading.simulation import Span, simulate
from shardwright.cost.offloading.sizes import Part
from shardwright.cost.offloading.times import Step, computation, steps_of
from shardwright.ir.diagnostics import NOWHERE, fault

MOST_EVENTS = 400_000
"""Of a timeline; its file has about 100 bytes for each."""

_NO_TIME = 1e-12
"""Seconds that are left over where parts of a sum are taken away."""

_SHARED = {"disk read": "disk", "disk write": "disk"}


def predicted_timeline(setting: Setting, policy: Policy, title: str, *, diagonal: int = 0) -> Timeline:
    """The timeline of one block, of one stage where the setting is a pipeline.

    With `diagonal` so many batches go through the diagonal block schedule, `n_gpu_batches` at a time. Raises where
    there are more than `MOST_EVENTS` events, or a runtime that waits at every step is asked for that schedule.
    """
    runtime = setting.runtime
    in_steps = runtime.synchronised or not runtime.overlapped
    if in_steps and diagonal:
        message = f"{runtime.name} has the zig-zag block schedule alone"
        raise fault("no-diagonal", message, NOWHERE, "--runtime ours has both")
    steps = (2 * setting.stage.layers + 2) * setting.sizes.generated * (diagonal or policy.n_gpu_batches)
    if 4 * steps > MOST_EVENTS:
        raise fault(
            "long-timeline",
            f"the timeline has about {4 * steps} events; one of more than {MOST_EVENTS} is not made",
            NOWHERE,
            f"with --gen-len {max(1, setting.sizes.generated * MOST_EVENTS // (4 * steps))} it has fewer",
        )
    course = _in_steps(setting, policy) if in_steps else _scheduled(setting, policy, diagonal)
    return Timeline(title, course, None, setting.limits)


# ---------------------------------------------------------------- a runtime that waits at every step


@dataclass(frozen=True, slots=True)
class _Task:
    number: int
    resource: str
    name: str
    seconds: float
    after: tuple[int, ...]
    step: int | None


def _in_steps(setting: Setting, policy: Policy) -> Course:
    tasks: list[_Task] = []
    ends: dict[int, int] = {}
    after: tuple[int, ...] = ()
    for number, step in enumerate(steps_of(setting.stage, policy, setting.runtime, setting.rates)):
        made = list(_tasks(setting, step, number, len(tasks), after))
        tasks += made
        after = (made[-1].number,)
        ends[step.token] = made[-1].number
    spans = simulate(tasks, lambda task: task.seconds)
    entries = tuple(
        Entry(task.number, task.resource, task.name, start, end, 0, task.after, task.step)
        for task, (start, end) in zip(tasks, spans, strict=True)
    )
    times = {token: spans[number].end for token, number in ends.items()}
    return Course(entries, _memory_by_token(setting, policy, times))


def _tasks(setting: Setting, step: Step, number: int, first: int, after: tuple[int, ...]) -> Iterator[_Task]:
    """What a step does; the last of these ends it, and waits for the others."""
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
        ("host", "attention", load.host, runtime.host_attention == "concurrent"),
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
    setting: Setting, policy: Policy, ends: dict[int, float]
) -> dict[str, tuple[tuple[float, float], ...]]:
    """What the tiers hold at each token: the price's peaks, with the cache as long as it has grown."""
    points: dict[str, list[tuple[float, float]]] = {tier: [] for tier in TIERS}
    start = 0.0
    for token, end in ends.items():
        peaks = peaks_of(replace(setting.stage, generated=token + 1), policy, setting.runtime)
        now = (peaks.device_decode, peaks.host_decode) if token else (peaks.device_prefill, peaks.host_prefill)
        for tier, nbytes in zip(TIERS, (*now, peaks.disk), strict=True):
            points[tier].append((start, nbytes))
        start = end
    return {tier: tuple(listed) for tier, listed in points.items() if any(nbytes for _, nbytes in listed)}


# ---------------------------------------------------------------- a runtime whose copies run ahead


def _scheduled(setting: Setting, policy: Policy, diagonal: int) -> Course:
    batches, tokens = policy.n_gpu_batches, setting.sizes.generated
    passes = diagonal_passes(diagonal, tokens, batches) if diagonal else zigzag_passes(batches, tokens)
    traffic, device_cache = traffic_of(setting, policy, [turn for turns in passes for turn in turns])
    schedule = build(traffic, passes)
    check(schedule)
    spans = simulate(schedule.events, event_seconds(setting, policy, traffic), _SHARED)
    memory = memory_over_time(schedule, spans, traffic, _resident(setting, policy), device_cache)
    return course_of(schedule, spans, memory)


def traffic_of(setting: Setting, policy: Policy, turns: list[Turn]) -> tuple[Traffic, dict[Turn, float]]:
    """The bytes that a block's events move, and of each turn those of the new positions that stay on the device."""
    sizes, batch = setting.stage, policy.gpu_batch
    weights: list[tuple[int, int]] = []
    for parts in _stages(setting):
        placed = [place(part, policy.weights, setting.runtime, quantized=policy.quantized_weights) for part in parts]
        weights.append((round(sum(each.host for each in placed)), round(sum(each.disk for each in placed))))
    each = policy.quantized_cache.element_bytes if policy.quantized_cache else sizes.cache_element_bytes
    position = batch * sizes.cache_elements * each
    token = batch * sizes.hidden_bytes
    new = {turn: 1 if turn.token else sizes.prompt for turn in turns}
    traffic = Traffic(
        weights,
        [0 < stage <= sizes.layers for stage in range(sizes.layers + 2)],
        {turn: _split(policy.cache.host, policy.cache.disk, (sizes.prompt + turn.token) * position) for turn in turns},
        {turn: _split(policy.cache.host, policy.cache.disk, new[turn] * position) for turn in turns},
        {turn: _split(policy.hidden.host, policy.hidden.disk, new[turn] * token) for turn in turns},
        attends_on_host(policy, setting.runtime),
        max(1, min(4, policy.n_gpu_batches)),
    )
    return traffic, {turn: policy.cache.device * new[turn] * position for turn in turns}


def event_seconds(setting: Setting, policy: Policy, traffic: Traffic) -> Seconds:
    """How long each event takes by the cost model; contention between streams is not in it."""
    sizes, runtime, rates = setting.stage, setting.runtime, setting.rates
    weights = rates.to_device if runtime.pinned_weights else rates.unpinned_to_device
    cache = rates.to_device if runtime.pinned_cache else rates.unpinned_to_device
    made: dict[tuple[int, int], float] = {}
    stages = _stages(setting)

    def computed(event: Event) -> float:
        kind = 1 if 0 < event.stage <= sizes.layers else -event.stage
        if (kind, event.token) not in made:
            tokens, context = (1, sizes.prompt + event.token) if event.token else (sizes.prompt, sizes.prompt)
            loads = [computation(sizes, policy, runtime, rates, part, tokens, context) for part in stages[event.stage]]
            device, host = sum(load.device for load in loads), sum(load.host for load in loads)
            made[kind, event.token] = max(device, host) if runtime.host_attention == "concurrent" else device + host
        return made[kind, event.token]

    of_kind = {
        Kind.READ_WEIGHTS: rates.disk_read,
        Kind.READ_CACHE: rates.disk_read,
        Kind.READ_HIDDEN: rates.disk_read,
        Kind.COPY_WEIGHTS: weights,
        Kind.COPY_CACHE: cache,
        Kind.COPY_HIDDEN: rates.to_device,
        Kind.STORE_HIDDEN: rates.store_hidden,
        Kind.WRITE_CACHE: rates.disk_write,
        Kind.WRITE_HIDDEN: rates.disk_write,
    }
    others = by_rates(of_kind, computed)

    def seconds(event: Event) -> float:
        if event.kind is not Kind.STORE_CACHE:
            return others(event)
        host, disk = traffic.new_cache[Turn(event.batch, event.token)]
        return host / rates.store_cache + disk / rates.to_device

    return seconds


def run_seconds(setting: Setting, policy: Policy, events: Sequence[Event], place: Place | None = None) -> Seconds:
    """How long the events of a run take by the cost model, where its batches are as the setting and the policy say.

    With `place` they are those of one process of a pipeline, with its layers; messages take no time.
    """
    turns = list(dict.fromkeys(Turn(event.batch, event.token) for event in events if event.batch >= 0))
    absent: set[int] = set()
    if place is not None:
        layers = len(place.layers(setting.sizes.layers))
        setting = replace(setting, sizes=replace(setting.sizes, layers=layers), devices=1)
        absent = {stage for stage, here in ((0, place.first), (layers + 1, place.last)) if not here}
    traffic, _ = traffic_of(setting, policy, turns)
    seconds = event_seconds(setting, policy, traffic)
    return lambda event: 0.0 if event.kind is Kind.COMPUTE and event.stage in absent else seconds(event)


def run_prediction(setting: Setting, policy: Policy, events: Sequence[Event]) -> tuple[float, list[Span]]:
    """Seconds of a run of these events, and their spans; where copies take some of the device, that part of the time in
    which both are under way comes on top."""
    spans = simulate(events, run_seconds(setting, policy, events), _SHARED)
    end = max((span.end for span in spans), default=0.0)
    return end + setting.runtime.shares_device * _both(events, spans), spans


def _both(events: Sequence[Event], spans: Sequence[Span]) -> float:
    """Seconds in which the device computes while something is copied."""
    changes = sorted(
        (time, change, event.kind is Kind.COMPUTE)
        for event, span in zip(events, spans, strict=True)
        if span.end > span.start
        for time, change in ((span.start, 1), (span.end, -1))
    )
    total, last, computing, copying = 0.0, 0.0, 0, 0
    for time, change, is_computation in changes:
        total += time - last if computing and copying else 0.0
        last = time
        computing, copying = (computing + change, copying) if is_computation else (computing, copying + change)
    return total


def _stages(setting: Setting) -> list[tuple[Part, ...]]:
    """The runtime's stages: the tables before, each layer, the tables after."""
    sizes = setting.stage
    return [(sizes.embedding,), *[(sizes.attention, sizes.feedforward)] * sizes.layers, (sizes.unembedding,)]


def _split(host: float, disk: float, nbytes: float) -> tuple[int, int]:
    return round(host * nbytes), round(disk * nbytes)


def _resident(setting: Setting, policy: Policy) -> dict[str, float]:
    """What is there all the time: the weights at home, and on the device the values of a layer."""
    sizes, runtime = setting.stage, setting.runtime
    placed = [
        (place(part, policy.weights, runtime, quantized=policy.quantized_weights), n) for part, n in sizes.parts()
    ]
    resident = {tier: float(sum(n * getattr(each, tier) for each, n in placed)) for tier in TIERS}
    working = policy.gpu_batch * max(sizes.prefill_working, sizes.decode_working)
    resident["device"] += runtime.reserve_bytes + working
    return resident
