"""Plays a collective on a torus message by message, link by link; small cases that the formulas are tested against."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

from shardwright.cost.hardware.topology import TorusRing, TorusTopology
from shardwright.cost.movements.collectives import CollectiveKind

Chip = tuple[int, ...]
Link = tuple[Chip, int, int]
"""A link one way: the chip it leaves, the physical axis, and +1 or -1."""


@dataclass(slots=True)
class Message:
    """`nbytes` over one link, sent when the messages `after` it have arrived."""

    link: Link
    nbytes: float
    after: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Played:
    """`time_s` until the last message has arrived; the bytes on the busiest link."""

    time_s: float
    busiest_link_bytes: float


@dataclass
class _Network:
    shape: tuple[int, ...]
    messages: list[Message] = field(default_factory=list[Message])

    def send(self, chip: Chip, axis: int, way: int, nbytes: float, after: tuple[int, ...]) -> tuple[Chip, int]:
        """One hop; returns the chip reached and the message's number."""
        self.messages.append(Message((chip, axis, way), nbytes, after))
        reached = (*chip[:axis], (chip[axis] + way) % self.shape[axis], *chip[axis + 1 :])
        return reached, len(self.messages) - 1

    def travel(self, chip: Chip, ring: TorusRing, way: int, nbytes: float, after: tuple[int, ...]) -> tuple[Chip, int]:
        """To the next member of the ring, over the links of the chips between."""
        reached, number = chip, -1
        for _ in range(ring.stride):
            reached, number = self.send(reached, ring.physical, way, nbytes, after)
            after = (number,)
        return reached, number


def simulate(
    kind: CollectiveKind, axes: Sequence[str], nbytes: float, topology: TorusTopology, packets: int = 1
) -> Played:
    """Plays one collective of all groups over `axes` at once; `nbytes` as in `collectives.collective_time`.

    Gathers cut the array into one part for each of the cyclic orders of the rings and spread each
    chip's piece as a tree, half of it a step farther each way where a ring is even. A reduce-scatter is
    a gather with every message turned round and kept back until what it adds up has arrived. An all-to-all
    sends every pair's piece along a shortest way, in parts over the orders. Every piece is cut into `packets`,
    which follow one another. A link passes on first what has the longest way to go; a message occupies it
    for bytes / bandwidth and arrives after that or after the latency of a hop, whichever is longer.
    """
    rings = [ring for ring in topology.rings(axes) if ring.size > 1]
    if not rings or nbytes <= 0:
        return Played(0.0, 0.0)
    if kind is CollectiveKind.ALL_REDUCE:
        steps = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER)
        halves = [simulate(half, axes, nbytes, topology, packets) for half in steps]
        return Played(sum(h.time_s for h in halves), sum(h.busiest_link_bytes for h in halves))
    network = _Network(topology.shape)
    shares = _shares(rings)
    for chip, _ in product(product(*map(range, topology.shape)), range(packets)):
        match kind:
            case CollectiveKind.ALL_TO_ALL:
                _scatter_pairs(network, rings, chip, nbytes / packets)
            case CollectiveKind.PERMUTE:
                _shift(network, rings, chip, nbytes / packets)
            case _:
                for order, share in zip(_orders(rings), shares, strict=True):
                    piece = nbytes / packets * share / prod(ring.size for ring in rings)
                    _spread(network, order, chip, piece, ())
    messages = _turned_round(network) if kind is CollectiveKind.REDUCE_SCATTER else network.messages
    return _play(messages, topology.torus.link_bytes_per_s, topology.torus.hop_latency_s)


def _orders(rings: Sequence[TorusRing]) -> list[list[TorusRing]]:
    return [[*rings[start:], *rings[:start]] for start in range(len(rings))]


def _shares(rings: Sequence[TorusRing]) -> list[float]:
    """How much of the array goes through the rings in each of the `_orders`.

    Of two rings, so much that both are busy for the same time: the first carries (K_1 - 1) / K of
    what it is first to carry and (K_1 - 1) / K_1 of the rest. Of more, equal parts.
    """
    if len(rings) != 2:
        return [1 / len(rings)] * len(rings)
    (K_1, W_1), (K_2, W_2) = ((ring.size, ring.bytes_per_s) for ring in rings)
    K = K_1 * K_2
    wanted = (K - 1) / K * W_1 / (W_1 + W_2)
    last, first = (K_1 - 1) / K_1, (K_1 - 1) / K
    share = min(1.0, max(0.0, (last - wanted) / (last - first)))
    return [share, 1 - share]


def _position(chip: Chip, ring: TorusRing) -> int:
    return chip[ring.physical] // ring.stride % ring.size


def _ways(chip: Chip, ring: TorusRing) -> list[tuple[int, int, float]]:
    """How a piece spreads over a ring from `chip`: direction, members to reach, share of the piece."""
    if not ring.wraps:
        at = _position(chip, ring)
        return [(1, ring.size - 1 - at, 1.0), (-1, at, 1.0)]
    far, near = ring.size // 2, (ring.size - 1) // 2
    if far == near:
        return [(1, far, 1.0), (-1, far, 1.0)]
    return [(1, far, 0.5), (-1, near, 0.5), (1, near, 0.5), (-1, far, 0.5)]


def _spread(network: _Network, order: Sequence[TorusRing], chip: Chip, nbytes: float, after: tuple[int, ...]) -> None:
    """A tree from `chip` over the first ring, and from each chip reached over the rest."""
    if not order:
        return
    first, rest = order[0], order[1:]
    arrivals: dict[Chip, tuple[int, ...]] = {chip: after}
    for way, members, share in _ways(chip, first):
        at, waits = chip, after
        for _ in range(members):
            at, number = network.travel(at, first, way, nbytes * share, waits)
            waits = (number,)
            arrivals[at] = (*arrivals.get(at, ()), number)
    for reached, numbers in arrivals.items():
        _spread(network, rest, reached, nbytes, numbers)


def _scatter_pairs(network: _Network, rings: Sequence[TorusRing], chip: Chip, nbytes: float) -> None:
    """The pieces that `chip` sends, the farthest first, each over the rings in every cyclic order."""
    targets = sorted(
        product(*(range(ring.size) for ring in rings)),
        key=lambda target: -sum(abs(_steps(chip, r, t)[0][0]) for r, t in zip(rings, target, strict=True)),
    )
    piece = nbytes / (prod(ring.size for ring in rings) * len(rings))
    for target in targets:
        for order in _orders(rings):
            goals = [target[rings.index(ring)] for ring in order]
            _go(network, order, goals, chip, piece, ())


def _go(
    network: _Network,
    order: Sequence[TorusRing],
    goals: Sequence[int],
    chip: Chip,
    nbytes: float,
    after: tuple[int, ...],
) -> None:
    if not order:
        return
    for steps, share in _steps(chip, order[0], goals[0]):
        at, waits = chip, after
        for _ in range(abs(steps)):
            at, number = network.travel(at, order[0], 1 if steps > 0 else -1, nbytes * share, waits)
            waits = (number,)
        _go(network, order[1:], goals[1:], at, nbytes * share, waits)


def _steps(chip: Chip, ring: TorusRing, goal: int) -> list[tuple[int, float]]:
    """Signed steps to a member and the share that takes them; opposite members are reached both ways."""
    ahead = goal - _position(chip, ring)
    if not ring.wraps or not ahead:
        return [(ahead, 1.0)]
    ahead %= ring.size
    if 2 * ahead == ring.size:
        return [(ahead, 0.5), (-ahead, 0.5)]
    return [(ahead, 1.0) if 2 * ahead < ring.size else (ahead - ring.size, 1.0)]


def _shift(network: _Network, rings: Sequence[TorusRing], chip: Chip, nbytes: float) -> None:
    """To the next along the rings read as one number, the last ring's digit the lowest."""
    at: Chip = chip
    waits: tuple[int, ...] = ()
    for ring in reversed(rings):
        last = _position(at, ring) == ring.size - 1
        back = last and not ring.wraps
        for _ in range(ring.size - 1 if back else 1):
            at, number = network.travel(at, ring, -1 if back else 1, nbytes, waits)
            waits = (number,)
        if not last:
            break


def _turned_round(network: _Network) -> list[Message]:
    """The same trees from their leaves to their roots: each message waits for those that waited for it."""
    messages = network.messages
    turned = [Message(_opposite(m.link, network.shape), m.nbytes, ()) for m in messages]
    for number, message in enumerate(messages):
        for before in message.after:
            turned[before].after = (*turned[before].after, number)
    return turned


def _opposite(link: Link, shape: tuple[int, ...]) -> Link:
    chip, axis, way = link
    return ((*chip[:axis], (chip[axis] + way) % shape[axis], *chip[axis + 1 :]), axis, -way)


def _play(messages: Sequence[Message], bytes_per_s: float, latency_s: float) -> Played:
    waiting = [len(message.after) for message in messages]
    followers: list[list[int]] = [[] for _ in messages]
    load: dict[Link, float] = {}
    for number, message in enumerate(messages):
        load[message.link] = load.get(message.link, 0.0) + message.nbytes
        for before in message.after:
            followers[before].append(number)
    to_go = _longest_ways(followers, waiting)
    queues: dict[Link, list[tuple[int, int]]] = {link: [] for link in load}
    busy_until: dict[Link, float] = dict.fromkeys(load, 0.0)
    events: list[tuple[float, int]] = []  # when, and the message that arrives or, as -1 - n, has left its link

    def queue(number: int) -> None:
        heapq.heappush(queues[messages[number].link], (-to_go[number], number))

    def start(link: Link, now: float) -> None:
        if not queues[link] or busy_until[link] > now:
            return
        number = heapq.heappop(queues[link])[1]
        transfer = messages[number].nbytes / bytes_per_s
        busy_until[link] = now + transfer
        heapq.heappush(events, (now + transfer, -1 - number))
        heapq.heappush(events, (now + max(transfer, latency_s), number))

    for number, count in enumerate(waiting):
        if not count:
            queue(number)
    for link in queues:
        start(link, 0.0)
    now = 0.0
    while events:
        now = events[0][0]
        touched: dict[Link, None] = {}
        while events and events[0][0] == now:  # all that happens at once, before the links choose
            number = heapq.heappop(events)[1]
            if number < 0:
                touched[messages[-1 - number].link] = None
                continue
            for follower in followers[number]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    queue(follower)
                    touched[messages[follower].link] = None
        for link in touched:
            start(link, now)
    return Played(now, max(load.values(), default=0.0))


def _longest_ways(followers: Sequence[Sequence[int]], waiting: Sequence[int]) -> list[int]:
    """The messages on the longest chain from each message on."""
    left = list(waiting)
    order = [number for number, count in enumerate(left) if not count]
    for number in order:
        for follower in followers[number]:
            left[follower] -= 1
            if not left[follower]:
                order.append(follower)
    to_go = [1] * len(followers)
    for number in reversed(order):
        to_go[number] = 1 + max((to_go[follower] for follower in followers[number]), default=0)
    return to_go
