"""The time of a collective over axes of a mesh, from bytes and topology.

Letters: V bytes as `collective_time` counts them, K chips in a group, w bytes a second of one link
one way, W bytes a second that a chip receives along a ring (2 w) or a line (w), K_i and W_i of the
i-th ring.

    torus       gather, scatter   max(T_min hops, V (K_S - 1) / (K W_S))     over the worst set S of rings
                all-to-all        max(T_min hops, V floor(K_i^2 / 4) / (K_i W_i))         over the worst ring
                permute           max(T_min hops, V / w_i)
    switched    each level        messages * latency + bytes out of one unit / its egress, the worst level
    all-reduce  twice the gather

Sources. (K - 1) / K and the all-reduce as a reduce-scatter and an all-gather: Pope et al. 2022,
appendix A.1. V / W on one axis, V / (n W) on n axes, T_min a hop along the longest path, the
all-to-all at a quarter of an all-gather: the JAX scaling book (Austin et al. 2025), part 3. Levels
of a switched network: the same, part 12, "Cross-node collectives". Latency added to the transfer:
Chen 2022, "latency calculations".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from math import ceil, log2, prod

from shardwright.cost.hardware.topology import SwitchedTopology, Topology, TorusRing, TorusTopology, check_axes


class CollectiveKind(StrEnum):
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    PERMUTE = "permute"


def collective_time(kind: CollectiveKind, axes: Sequence[str], nbytes: float, topology: Topology) -> float:
    """Seconds for one collective over `axes` taken together, all groups of the mesh at once.

    `nbytes` is per chip, the larger of what it puts in and what it gets out: of an all-gather the
    gathered result, of a reduce-scatter the addend before it is scattered, of an all-reduce the
    addend (as large as the result), of an all-to-all and a permute the shard (as large before as
    after). A permute is the shift by one along the axes read as one number, the last back to the
    first. 0 where there is nothing to move. Raises for an axis that the mesh lacks or that occurs twice.
    """
    return together(*latency_and_transfer(kind, axes, nbytes, topology), topology)


def together(latency: float, transfer: float, topology: Topology) -> float:
    """Seconds of hops or messages and of bytes, from those of each alone."""
    # A torus sends a message on while the rest of it arrives; a switched network waits for each.
    return max(latency, transfer) if isinstance(topology, TorusTopology) else latency + transfer


def round_latency(axes: Sequence[str], topology: Topology) -> float:
    """Seconds until a message has come from any chip to any other along these axes."""
    check_axes(topology, axes)
    match topology:
        case TorusTopology():
            return _on_torus(CollectiveKind.ALL_TO_ALL, topology.rings(axes), 1, topology.torus.hop_latency_s)[0]
        case SwitchedTopology():
            return _on_switches(CollectiveKind.PERMUTE, topology.groups(axes), 1, topology)[0]


def latency_and_transfer(
    kind: CollectiveKind, axes: Sequence[str], nbytes: float, topology: Topology
) -> tuple[float, float]:
    """The two times that a collective's is made of: of its hops or messages without bytes, and of its bytes alone.

    Arguments and exceptions are those of `collective_time`.
    """
    check_axes(topology, axes)
    sizes = dict(topology.mesh)
    if nbytes <= 0 or all(sizes[axis] == 1 for axis in axes):
        return 0.0, 0.0
    if kind is CollectiveKind.ALL_REDUCE:
        latency, transfer = latency_and_transfer(CollectiveKind.ALL_GATHER, axes, nbytes, topology)
        return 2 * latency, 2 * transfer
    match topology:
        case TorusTopology():
            return _on_torus(kind, topology.rings(axes), nbytes, topology.torus.hop_latency_s)
        case SwitchedTopology():
            return _on_switches(kind, topology.groups(axes), nbytes, topology)


@dataclass(frozen=True, slots=True)
class Steps:
    """A collective over several axes at once beside one step per axis, in seconds.

    `order` is the fastest order of the single steps.
    """

    joint_s: float
    sequential_s: float
    order: tuple[str, ...]

    @property
    def time_s(self) -> float:
        return min(self.joint_s, self.sequential_s)


def joint_or_sequential(kind: CollectiveKind, axes: Sequence[str], nbytes: float, topology: Topology) -> Steps:
    """Compares one collective over all `axes` with one per axis, in the best order; `nbytes` as in `collective_time`.

    On a torus the joint one is never slower, since it uses the links of all axes at once, save where
    rings of one group share links. On a switched network whose gathers take a message per member
    (`ring`), separate steps send K_x + K_y - 2 messages for K_x K_y - 1, which wins where latency rules.
    """
    sizes = dict(topology.mesh)
    joint = collective_time(kind, axes, nbytes, topology)
    moving = [axis for axis in axes if sizes[axis] > 1]
    if len(moving) < 2:
        return Steps(joint, joint, tuple(moving))
    if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER):
        seconds, order = _best_gathers(moving, nbytes, topology)
        # A reduce-scatter is the same gathers backwards in time.
        return Steps(joint, seconds, order if kind is CollectiveKind.ALL_GATHER else order[::-1])
    total = sum(collective_time(kind, [axis], nbytes, topology) for axis in moving)
    return Steps(joint, total, tuple(moving))


def _best_gathers(axes: list[str], nbytes: float, topology: Topology) -> tuple[float, tuple[str, ...]]:
    """The fastest order of all-gathers, each over one axis, that ends with `nbytes`: least over sets of axes done."""
    sizes = dict(topology.mesh)
    K = prod(sizes[axis] for axis in axes)
    best: dict[frozenset[str], tuple[float, tuple[str, ...]]] = {frozenset(): (0.0, ())}
    for count in range(1, len(axes) + 1):
        for done in combinations(axes, count):
            gathered = nbytes * prod(sizes[axis] for axis in done) / K
            options: list[tuple[float, tuple[str, ...]]] = []
            for last in done:
                before, order = best[frozenset(done) - {last}]
                step = collective_time(CollectiveKind.ALL_GATHER, [last], gathered, topology)
                options.append((before + step, (*order, last)))
            best[frozenset(done)] = min(options, key=lambda option: option[0])
    return best[frozenset(axes)]


def _on_torus(kind: CollectiveKind, rings: Sequence[TorusRing], V: float, T_min: float) -> tuple[float, float]:
    if kind is CollectiveKind.PERMUTE:
        # Every chip's shard takes one link of the last axis; a line's last member sends it all the
        # way back, over links that nothing else uses in that direction.
        steps = sum(ring.stride * (1 if ring.wraps else ring.size - 1) for ring in rings)
        return T_min * steps, max(V * (2 if ring.wraps else 1) / ring.bytes_per_s for ring in rings)
    hops = sum(ring.hops for ring in rings)
    if kind is CollectiveKind.ALL_TO_ALL:
        transfer = max(V * (ring.size**2 // 4) / (ring.size * ring.bytes_per_s) for ring in rings)
    else:
        transfer = _gather_transfer(rings, V)
    return T_min * hops, transfer


def _gather_transfer(rings: Sequence[TorusRing], V: float) -> float:
    """V (K - 1) / (K W) with the bandwidth W of all rings together, or a set S of rings that is worse off.

    The array is cut into pieces that go through the rings in different orders. Whatever the orders,
    the rings of S carry at least V (K_S - 1) / K between them: each chip's own piece to the K_S - 1
    others, when they come first. These loads over all orders are the base of a supermodular function,
    so pieces exist that load every ring for the same time exactly if no S asks for more.
    """
    K = prod(ring.size for ring in rings)
    return max(
        V * (prod(ring.size for ring in S) - 1) / (K * sum(ring.bytes_per_s for ring in S))
        for count in range(1, len(rings) + 1)
        for S in combinations(rings, count)
    )


def _on_switches(
    kind: CollectiveKind, groups: Sequence[int], V: float, topology: SwitchedTopology
) -> tuple[float, float]:
    """Messages of every level one after the other, beside the transfer of the slowest level.

    A unit's way out carries what its chips exchange with every farther unit, so at levels above the
    lowest K counts all levels outwards; a chip's link into its node carries the node's share only,
    since the network's ports belong to the chips.
    """
    K = prod(groups)
    latency = 0.0
    transfer = 0.0
    inside = 1  # members of a group within one unit below the level
    for number, (level, K_level) in enumerate(zip(topology.levels, groups, strict=True)):
        outward = prod(groups[number:]) if number else K_level
        here = topology.used[number] // inside  # groups that share the unit's way out
        if K_level > 1:
            latency += level.latency_s * _messages(level.messages, K_level, kind)
        if outward > 1:
            match kind:
                case CollectiveKind.PERMUTE:
                    out = V * here
                case CollectiveKind.ALL_TO_ALL:
                    out = V * topology.used[number] * (K - inside if number else K_level - 1) / K
                case _:
                    out = V * here * (outward - 1) / outward
            transfer = max(transfer, out / topology.egress(number))
        inside *= K_level
    return latency, transfer


def _messages(how: str, K: int, kind: CollectiveKind) -> int:
    """How many are sent one after the other; those of an all-to-all all at once, save in a ring."""
    if how == "direct" or kind is CollectiveKind.PERMUTE:
        return 1
    if how == "tree" and kind is CollectiveKind.ALL_TO_ALL:
        return 1
    return ceil(log2(K)) if how == "tree" else K - 1
