"""An oracle of block schedules, made by hand and not from a program: which copy and which computation follows which.

Generation is nested loops over tokens, layers and batches. In one *pass* the weights of every stage (`stages.Stage`)
are loaded once, in order, and serve every batch that takes part; in the *zig-zag* block schedule (Sheng et al. 2023,
algorithm 1) all batches of a block begin in its first pass and end in its last. In the *diagonal* one (appendix A.2)
they begin one after the other, so that at any time they are at different tokens and caches of different lengths, and a
batch that ends makes room for the next: memory is used evenly, and the mean time to completion is halved.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from shardwright.cost.offloading.simulation import Span
from shardwright.cost.unrolling import Action
from shardwright.cost.unrolling import Event as TextEvent
from shardwright.ir.types import Tier


class Resource(StrEnum):
    """What an event keeps busy. Each does its events one after the other, in the order of the schedule."""

    DISK_READ = "disk read"
    TO_DEVICE = "to device"
    DEVICE = "device"
    HOST = "host"
    FROM_DEVICE = "from device"
    DISK_WRITE = "disk write"
    RECEIVE = "receive"
    SEND = "send"


class Kind(StrEnum):
    """What an event does."""

    READ_WEIGHTS = "read weights"
    COPY_WEIGHTS = "copy weights"
    READ_CACHE = "read cache"
    COPY_CACHE = "copy cache"
    READ_HIDDEN = "read hidden"
    COPY_HIDDEN = "copy hidden"
    COMPUTE = "compute"
    STORE_CACHE = "store cache"
    WRITE_CACHE = "write cache"
    STORE_HIDDEN = "store hidden"
    WRITE_HIDDEN = "write hidden"
    RECEIVE_HIDDEN = "receive hidden"
    RECEIVE_TOKENS = "receive tokens"
    SEND_HIDDEN = "send hidden"
    SEND_TOKENS = "send tokens"


RESOURCES: Mapping[Kind, Resource] = {
    Kind.READ_WEIGHTS: Resource.DISK_READ,
    Kind.READ_CACHE: Resource.DISK_READ,
    Kind.READ_HIDDEN: Resource.DISK_READ,
    Kind.COPY_WEIGHTS: Resource.TO_DEVICE,
    Kind.COPY_CACHE: Resource.TO_DEVICE,
    Kind.COPY_HIDDEN: Resource.TO_DEVICE,
    Kind.COMPUTE: Resource.DEVICE,
    Kind.STORE_CACHE: Resource.FROM_DEVICE,
    Kind.STORE_HIDDEN: Resource.FROM_DEVICE,
    Kind.WRITE_CACHE: Resource.DISK_WRITE,
    Kind.WRITE_HIDDEN: Resource.DISK_WRITE,
    Kind.RECEIVE_HIDDEN: Resource.RECEIVE,
    Kind.RECEIVE_TOKENS: Resource.RECEIVE,
    Kind.SEND_HIDDEN: Resource.SEND,
    Kind.SEND_TOKENS: Resource.SEND,
}


@dataclass(frozen=True, slots=True)
class Turn:
    """A batch takes part in a pass, at its `token`-th token; token 0 is prefill."""

    batch: int
    token: int


@dataclass(frozen=True, slots=True)
class Event:
    """`fills` and `reads` are buffers; what `reads` names must have been filled, and is free for the next to fill once
    all its readers are done. `after` are the events that must be done before this one begins. `order` numbers the
    buffers that are used in turn.
    """

    number: int
    kind: Kind
    run: int
    stage: int
    batch: int
    token: int
    part: int
    after: tuple[int, ...]
    fills: tuple[str, ...]
    reads: tuple[str, ...]
    nbytes: int = 0
    order: int = 0

    @property
    def resource(self) -> Resource:
        return RESOURCES[self.kind]

    def __str__(self) -> str:
        where = f"pass {self.run} stage {self.stage}"
        who = "" if self.batch < 0 else f" batch {self.batch} token {self.token}"
        moved = f" {self.nbytes} B" if self.nbytes else ""
        after = f" after {' '.join(map(str, self.after))}" if self.after else ""
        return f"{self.number:5} {self.resource:12} {self.kind:13} {where}{who}{moved}{after}"


class Add(Protocol):
    """Adds an event, after those that filled what it reads, and after those that read what it fills anew."""

    def __call__(
        self, kind: Kind, run: int, stage: int, turn: Turn | None, nbytes: int,
        fills: Sequence[str] = (), reads: Sequence[str] = (), part: int = 0, order: int = 0,
    ) -> None: ...  # fmt: skip


@dataclass(frozen=True)
class Traffic:
    """The bytes that events move. `weights` are for each stage (from host, from disk); `attends` says which stages have
    a cache; the others are (host, disk) of a batch at a token: its cached positions, the new ones, its hidden states.
    With `host_attention` the cache in host memory stays there in decode. `exchange` is that with other processes. With
    `in_place` weights are read from disk to where the device computes with them."""

    weights: Sequence[tuple[int, int]]
    attends: Sequence[bool]
    cache: Mapping[Turn, tuple[int, int]]
    new_cache: Mapping[Turn, tuple[int, int]]
    hidden: Mapping[Turn, tuple[int, int]]
    host_attention: bool = False
    parts: int = 1
    exchange: None = None
    in_place: bool = False


@dataclass(frozen=True)
class Schedule:
    """Events in an order that is one of those in which they may be done, one after the other."""

    events: tuple[Event, ...]
    passes: tuple[tuple[Turn, ...], ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.events))

    def of(self, resource: Resource) -> list[Event]:
        return [event for event in self.events if event.resource is resource]


def zigzag_passes(batches: int, tokens: int) -> tuple[tuple[Turn, ...], ...]:
    """A block: all batches go through all tokens together."""
    return tuple(tuple(Turn(batch, token) for batch in range(batches)) for token in range(tokens))


def diagonal_passes(batches: int, tokens: int, together: int) -> tuple[tuple[Turn, ...], ...]:
    """Of all batches, `together` at a time, each of which begins tokens/together passes after the one before."""
    beginnings = [math.floor(batch * tokens / together) for batch in range(batches)]
    n = beginnings[-1] + tokens if beginnings else 0
    return tuple(
        tuple(Turn(b, p - begin) for b, begin in enumerate(beginnings) if 0 <= p - begin < tokens) for p in range(n)
    )


@dataclass
class _Builder:
    traffic: Traffic
    passes: Sequence[Sequence[Turn]]
    events: list[Event] = field(default_factory=list[Event])
    filled: dict[str, int] = field(default_factory=dict[str, int])
    readers: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict[str, list[int]](list))

    def add(
        self, kind: Kind, run: int, stage: int, turn: Turn | None, nbytes: int,
        fills: Sequence[str] = (), reads: Sequence[str] = (), part: int = 0, order: int = 0,
    ) -> None:  # fmt: skip
        """An event after those that filled what it reads, and after those that read what it fills anew."""
        after: set[int] = set()
        for buffer in reads:
            after.add(self.filled[buffer])
        for buffer in fills:
            after.update(self.readers.pop(buffer, []))
            if buffer in self.filled:
                after.add(self.filled[buffer])
        number = len(self.events)
        batch, token = (turn.batch, turn.token) if turn else (-1, -1)
        after.discard(number)
        self.events.append(
            Event(
                number,
                kind,
                run,
                stage,
                batch,
                token,
                part,
                tuple(sorted(after)),
                tuple(fills),
                tuple(reads),
                nbytes,
                order,
            )
        )
        for buffer in fills:
            self.filled[buffer] = number
        for buffer in reads:
            self.readers[buffer].append(number)

    # ------------------------------------------------------------ one step's copies

    def weights(self, order: int, run: int, stage: int, part: int) -> None:
        """A part of the weights of a stage, the `order`-th one that is loaded; two of them are on the device."""
        host, disk = self.traffic.weights[stage]
        if not host and not disk:
            return
        ring, slot = f"weights ring {order % 2} part {part}", f"weights {order % 2} part {part}"
        n = self.traffic.parts
        if self.traffic.in_place:
            self.add(Kind.READ_WEIGHTS, run, stage, None, disk // n, [slot], part=part, order=order)
            return
        if disk:
            self.add(Kind.READ_WEIGHTS, run, stage, None, disk // n, [ring], part=part, order=order)
        self.add(
            Kind.COPY_WEIGHTS, run, stage, None, (host + disk) // n, [slot], [ring] if disk else [], part, order=order
        )

    def cache(self, order: int, run: int, stage: int, turn: Turn) -> None:
        host, disk = self.traffic.cache[turn]
        home = [f"cache {stage} {turn.batch} {tier}" for tier, n in (("host", host), ("disk", disk)) if n]
        staging = f"cache ring {order % 2}"
        if disk:
            self.add(Kind.READ_CACHE, run, stage, turn, disk, [staging], [home[-1]], order=order)
        if (host or disk) and not self.traffic.host_attention:
            reads = [name for name in home if name.endswith("host")] + ([staging] if disk else [])
            self.add(Kind.COPY_CACHE, run, stage, turn, host + disk, [f"cache copy {order % 2}"], reads, order=order)

    def hidden(self, order: int, run: int, stage: int, turn: Turn) -> None:
        host, disk = self.traffic.hidden[turn]
        name, staging = f"hidden {turn.batch}", f"hidden ring {order % 2}"
        if disk:
            self.add(Kind.READ_HIDDEN, run, stage, turn, disk, [staging], [f"{name} disk"], order=order)
        if host or disk:
            reads = ([f"{name} host"] if host else []) + ([staging] if disk else [])
            fills = [f"{name} device", f"hidden copy {order % 2}"]
            self.add(Kind.COPY_HIDDEN, run, stage, turn, host + disk, fills, reads, order=order)

    def compute(self, order: int, weights_order: int, run: int, stage: int, turn: Turn) -> None:
        traffic = self.traffic
        attends = traffic.attends[stage]
        host, disk = traffic.cache[turn] if attends and turn.token else (0, 0)
        new_host, new_disk = traffic.new_cache[turn] if attends else (0, 0)
        reads: list[str] = []
        if any(traffic.weights[stage]):
            reads += [f"weights {weights_order % 2} part {part}" for part in range(traffic.parts)]
        if host or disk:
            if not traffic.host_attention:
                reads.append(f"cache copy {order % 2}")
            else:
                reads += [f"cache {stage} {turn.batch} host"] if host else []
                reads += [f"cache ring {order % 2}"] if disk else []
        if stage:
            reads.append(f"hidden {turn.batch} device")
            if any(traffic.hidden[turn]):
                reads.append(f"hidden copy {order % 2}")
        fills = [f"hidden {turn.batch} device"]
        last = stage + 1 == len(traffic.weights)
        made = f"new cache {order % 2}"
        if new_host or new_disk:
            fills.append(made)
        self.add(Kind.COMPUTE, run, stage, turn, 0, fills, reads, order=order)
        home = f"cache {stage} {turn.batch}"
        if new_host or new_disk:
            written = f"cache rows {order % 2}"
            stored = ([f"{home} host"] if new_host else []) + ([written] if new_disk else [])
            self.add(Kind.STORE_CACHE, run, stage, turn, new_host + new_disk, stored, [made], order=order)
            if new_disk:
                self.add(Kind.WRITE_CACHE, run, stage, turn, new_disk, [f"{home} disk"], [written], order=order)
        hidden_host, hidden_disk = traffic.hidden[turn]
        if not last and (hidden_host or hidden_disk):
            name, written = f"hidden {turn.batch}", f"hidden rows {order % 2}"
            stored = ([f"{name} host"] if hidden_host else []) + ([written] if hidden_disk else [])
            self.add(
                Kind.STORE_HIDDEN, run, stage, turn, hidden_host + hidden_disk, stored, [f"{name} device"], order=order
            )
            if hidden_disk:
                self.add(Kind.WRITE_HIDDEN, run, stage, turn, hidden_disk, [f"{name} disk"], [written], order=order)


def build(traffic: Traffic, passes: Sequence[Sequence[Turn]]) -> Schedule:
    """The events of these passes: while a batch is computed, the next batch's cache and hidden states are loaded, and
    a part of the next stage's weights (Sheng et al. 2023, algorithm 1)."""
    make = _Builder(traffic, passes)
    stages = len(traffic.weights)
    squares = [(p, stage, turn) for p, turns in enumerate(passes) for stage in range(stages) for turn in turns]
    steps = [(p, stage) for p, turns in enumerate(passes) if turns for stage in range(stages)]
    numbers = {step: at for at, step in enumerate(steps)}
    for part in range(traffic.parts):
        make.weights(0, *steps[0], part)
    for order, (p, stage, turn) in enumerate(squares):
        step = numbers[p, stage]
        following = squares[order + 1] if order + 1 < len(squares) else None
        turns = passes[p]
        if step + 1 < len(steps):
            at = turns.index(turn)
            last = at + 1 == len(turns)
            share = math.ceil(traffic.parts / len(turns))
            for part in range(at * share, traffic.parts if last else min(traffic.parts, (at + 1) * share)):
                make.weights(step + 1, *steps[step + 1], part)
        apart = following is not None and following[2].batch != turn.batch
        if following is not None:
            _load_cache(make, order + 1, following)
            if apart:
                _load_hidden(make, order + 1, following)
        make.compute(order, step, p, stage, turn)
        if following is not None and not apart:
            _load_hidden(make, order + 1, following)
    return Schedule(tuple(make.events), tuple(tuple(turns) for turns in passes))


def _load_cache(make: _Builder, order: int, square: tuple[int, int, Turn]) -> None:
    p, stage, turn = square
    if make.traffic.attends[stage] and turn.token:
        make.cache(order, p, stage, turn)


def _load_hidden(make: _Builder, order: int, square: tuple[int, int, Turn]) -> None:
    p, stage, turn = square
    if stage:
        make.hidden(order, p, stage, turn)


# ---------------------------------------------------------------- what is right


def check(schedule: Schedule) -> None:
    """Raises ValueError where an event could read a buffer before it is filled or after it is filled anew, whatever
    the speed of the resources: it must follow, through `after` and the order of each resource, the event that fills
    what it reads, and the next to fill it must follow it."""
    resources = list(Resource)
    clocks: list[tuple[int, ...]] = []
    last = dict.fromkeys(resources, -1)
    positions: list[tuple[int, int]] = []
    counts = dict.fromkeys(resources, 0)
    for event in schedule.events:
        at = resources.index(event.resource)
        clock = [-1] * len(resources)
        for before in (*event.after, last[event.resource]):
            if before >= 0:
                if before >= event.number:
                    raise ValueError(f"event {event.number} waits for {before}, which comes later")
                place, position = positions[before]
                clock = [max(a, b) for a, b in zip(clock, clocks[before], strict=True)]
                clock[place] = max(clock[place], position)
        positions.append((at, counts[event.resource]))
        clocks.append(tuple(clock))
        counts[event.resource] += 1
        last[event.resource] = event.number
    filled: dict[str, int] = {}
    readers: defaultdict[str, list[int]] = defaultdict(list)

    def follows(later: int, earlier: int) -> bool:
        place, position = positions[earlier]
        return clocks[later][place] >= position

    for event in schedule.events:
        for buffer in event.reads:
            if buffer not in filled:
                raise ValueError(f"event {event.number} reads {buffer}, which nothing has filled")
            if not follows(event.number, filled[buffer]):
                raise ValueError(f"event {event.number} reads {buffer} before event {filled[buffer]} has filled it")
        for buffer in event.fills:
            for reader in readers.pop(buffer, []):
                if reader != event.number and not follows(event.number, reader):
                    raise ValueError(f"event {event.number} fills {buffer} while event {reader} may still read it")
            filled[buffer] = event.number
        for buffer in event.reads:
            if buffer not in event.fills:
                readers[buffer].append(event.number)


def cached_positions(passes: Sequence[Sequence[Turn]], prompt: int) -> Iterator[int]:
    """How many positions all caches hold after each pass, where a batch's is freed after its last token."""
    last: dict[int, int] = {}
    for turns in passes:
        for turn in turns:
            last[turn.batch] = turn.token
    for turns in passes:
        yield sum(prompt + turn.token for turn in turns)


def as_events(schedule: Schedule) -> list[TextEvent]:
    """The events as those of a program, with the stage for a layer."""
    made: list[TextEvent] = []
    for event in schedule.events:
        action = Action(str(event.kind).split()[0])
        trips = (
            ("token", max(0, event.token)),
            ("N", event.stage),
            *((("M", event.batch),) if event.batch >= 0 else ()),
        )
        made.append(
            TextEvent(event.number, event.resource, action, str(event.kind), (), trips, event.after, event.nbytes)  # type: ignore[arg-type]
        )
    return made


# ---------------------------------------------------------------- memory over time

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
