"""Times of collectives against numbers worked out by hand, written beside each."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.hardware.topology import Topology, topology_of
from shardwright.cost.movements.collectives import CollectiveKind, Steps, collective_time, joint_or_sequential
from shardwright.ir.diagnostics import DiagnosticError

ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL, PERMUTE = CollectiveKind

# 64 TPU v4: three rings of four, each W = 2 * 4.5e10 = 9e10 bytes/s both ways, 1 us a hop.
CUBE = topology_of(load_chip("tpu-v4"), {"x": 4, "y": 4, "z": 4})
# 32 TPU v5e: lines of eight and of four, w = 4.5e10 bytes/s.
FLAT = topology_of(load_chip("tpu-v5e"), {"x": 8, "y": 4})
# Four nodes of eight H100: 4.5e11 bytes/s out of a GPU, 4e11 out of a node; 8 us a message.
NODES = topology_of(load_chip("h100"), {"x": 4, "y": 8})


@pytest.mark.parametrize(
    ("axes", "seconds"),
    [
        ("x", 9e7 * 3 / 4 / 9e10),  # V (K - 1) / (K W): 0.75 ms
        ("yz", 9e7 * 15 / 16 / 1.8e11),  # two axes at once: 0.46875 ms
        ("xyz", 9e7 * 63 / 64 / 2.7e11),  # 270 GB/s a chip, as Pope et al. count: 0.328125 ms
    ],
)
def test_gathers_on_a_torus(axes: str, seconds: float) -> None:
    assert collective_time(ALL_GATHER, axes, 9e7, CUBE) == pytest.approx(seconds, rel=1e-12)
    assert collective_time(REDUCE_SCATTER, axes, 9e7, CUBE) == pytest.approx(seconds, rel=1e-12)
    assert collective_time(ALL_REDUCE, axes, 9e7, CUBE) == pytest.approx(2 * seconds, rel=1e-12)


@pytest.mark.parametrize(("axes", "hops"), [("x", 2), ("xz", 4), ("xyz", 6)])
def test_small_arrays_take_the_latency_of_the_longest_path(axes: str, hops: int) -> None:
    # Half way round each ring of four is two hops of 1 us.
    for kind in (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL):
        assert collective_time(kind, axes, 1000, CUBE) == pytest.approx(hops * 1e-6, rel=1e-12)
    assert collective_time(ALL_REDUCE, axes, 1000, CUBE) == pytest.approx(2 * hops * 1e-6, rel=1e-12)


def test_lines_take_twice_a_ring() -> None:
    # The scaling book's quiz on a v5e 8x4: bf16[2048, 8192] over a line of four is three hops of
    # 8.4 MB at 4.5e10 bytes/s, 560 us; bf16[256, 256] is three hops of 1 us.
    V = 2048 * 8192 * 2
    assert collective_time(ALL_GATHER, ["y"], V, FLAT) == pytest.approx(3 * (V / 4) / 4.5e10, rel=1e-12)
    assert collective_time(ALL_GATHER, ["y"], V, FLAT) == pytest.approx(559.2e-6, rel=1e-4)
    assert collective_time(ALL_GATHER, ["y"], 256 * 256 * 2, FLAT) == pytest.approx(3e-6, rel=1e-12)
    ring = topology_of(load_chip("tpu-v5e"), {"x": 16, "y": 16})
    line = topology_of(load_chip("tpu-v5e"), {"x": 16, "y": 16}, (16, 16))
    assert ring == line
    # 16 wraps: V 15/16 / 9e10.
    assert collective_time(ALL_GATHER, ["y"], V, ring) == pytest.approx(V * 15 / 16 / 9e10, rel=1e-12)


def test_all_to_all_is_a_quarter_of_an_all_gather() -> None:
    # Shards of V bytes on a ring of K = 4: the gathered array has 4 V bytes, a quarter of 4 V / W is V / W.
    assert collective_time(ALL_TO_ALL, ["x"], 9e7, CUBE) == pytest.approx(9e7 * 4 / (4 * 9e10), rel=1e-12)
    # On more axes every message crosses each axis by the same mean distance, all axes at once.
    assert collective_time(ALL_TO_ALL, "xyz", 9e7, CUBE) == pytest.approx(1e-3, rel=1e-12)
    # The middle of a line of eight: four chips send half of V each way over one link.
    assert collective_time(ALL_TO_ALL, ["x"], 9e7, FLAT) == pytest.approx(4 * 4.5e7 / 4.5e10, rel=1e-12)


def test_permute() -> None:
    assert collective_time(PERMUTE, ["x"], 9e7, CUBE) == pytest.approx(9e7 / 4.5e10, rel=1e-12)
    assert collective_time(PERMUTE, ["x"], 9, CUBE) == pytest.approx(1e-6, rel=1e-12)
    # Of a line of eight the last sends back to the first over seven hops.
    assert collective_time(PERMUTE, ["x"], 9, FLAT) == pytest.approx(7e-6, rel=1e-12)


def test_axes_that_share_a_physical_axis() -> None:
    shared = topology_of(load_chip("tpu-v5e"), {"x": 4, "y": 4, "z": 16})
    # Four rings of every fourth chip on the links of one: a quarter of 9e10 bytes/s, two hops of four links.
    assert collective_time(ALL_GATHER, ["x"], 9e7, shared) == pytest.approx(9e7 * 3 / 4 / (9e10 / 4), rel=1e-12)
    assert collective_time(ALL_GATHER, ["x"], 9, shared) == pytest.approx(8e-6, rel=1e-12)
    # Beside the fast z, all 63 pieces at 2.25e10 + 9e10 together take longer than x needs for its own.
    joint = collective_time(ALL_GATHER, ["x", "z"], 9e7, shared)
    assert joint == pytest.approx(9e7 * 63 / 64 / (9e10 + 9e10 / 4), rel=1e-12)


def test_a_slow_axis_beside_a_fast_one() -> None:
    # x: rings of two, 8 chips apart, 9e10 / 8 bytes/s; w: a line of two, all of its 4.5e10.
    lopsided = topology_of(load_chip("tpu-v5e"), {"x": 2, "y": 8, "z": 8, "w": 2})
    # If w carries all it can, x still brings each chip V / 4, its own piece to one other: 2 ms at
    # 1.125e10. All three pieces over both would take 1.2 ms.
    assert collective_time(ALL_GATHER, "xw", 9e7, lopsided) == pytest.approx(9e7 / 4 / 1.125e10, rel=1e-12)
    assert pytest.approx(1.2e-3, rel=1e-12) == 9e7 * 3 / 4 / (1.125e10 + 4.5e10)


def test_inside_a_node() -> None:
    # The scaling book's quiz: 512 MiB over eight H100 take V 7 / (8 * 4.5e11) = 1.04 ms; then one message.
    V = 4096 * 65536 * 2
    assert collective_time(ALL_GATHER, ["y"], V, NODES) == pytest.approx(8e-6 + 1.04391e-3, rel=1e-5)
    assert collective_time(ALL_REDUCE, ["y"], V, NODES) == pytest.approx(2 * (8e-6 + 1.04391e-3), rel=1e-5)
    # Seven eighths of a shard leave each GPU.
    assert collective_time(ALL_TO_ALL, ["y"], 9e7, NODES) == pytest.approx(8e-6 + 9e7 * 7 / 8 / 4.5e11, rel=1e-12)
    assert collective_time(PERMUTE, ["y"], 9e7, NODES) == pytest.approx(8e-6 + 9e7 / 4.5e11, rel=1e-12)


def test_across_nodes() -> None:
    # A tree over four nodes is two messages, and one inside the node: 24 us.
    latency = 3 * 8e-6
    # Out of a node V 3/4 at 4e11 (1.875 ms); out of a GPU V 7/8 at 4.5e11 (1.944 ms): the node decides.
    V = 1e9
    assert collective_time(ALL_GATHER, "xy", V, NODES) == pytest.approx(latency + V * 7 / 8 / 4.5e11, rel=1e-12)
    many = topology_of(load_chip("h100"), {"x": 32, "y": 8})
    # 32 nodes: V 31/32 at 4e11, the 413 GB/s of the scaling book; five messages in the tree and one inside.
    assert collective_time(ALL_GATHER, "xy", V, many) == pytest.approx(6 * 8e-6 + V * 31 / 32 / 4e11, rel=1e-12)
    # Over x only, all eight GPUs of a node gather arrays of their own through the same way out.
    assert collective_time(ALL_GATHER, "x", V, NODES) == pytest.approx(2 * 8e-6 + 8 * V * 3 / 4 / 4e11, rel=1e-12)
    # Eight GPUs send 24 of 32 parts of their shard out of the node.
    out = 8 * 1e8 * 24 / 32 / 4e11
    assert collective_time(ALL_TO_ALL, "xy", 1e8, NODES) == pytest.approx(2 * 8e-6 + out, rel=1e-12)
    # Of a permute over both axes, one shard crosses between nodes; over x, eight do.
    assert collective_time(PERMUTE, "xy", 1e8, NODES) == pytest.approx(2 * 8e-6 + 1e8 / 4e11, rel=1e-12)
    assert collective_time(PERMUTE, "x", 1e8, NODES) == pytest.approx(8e-6 + 8e8 / 4e11, rel=1e-12)


THREE_LEVELS = """\
name = "three"
memory = "80 GB"
memory_bytes_per_s = 3.35e12
[flops_per_s]
bf16 = 9.9e14
[interconnect]
kind = "switched"
[[interconnect.levels]]
name = "node"
units = 8
egress_bytes_per_s = 4.5e11
latency_s = 1e-6
messages = "direct"
[[interconnect.levels]]
name = "leaf"
units = 4
egress_bytes_per_s = 4.0e11
latency_s = 2e-6
messages = "tree"
[[interconnect.levels]]
name = "spine"
egress_bytes_per_s = 1.6e12
latency_s = 4e-6
messages = "ring"
"""


def test_three_levels(tmp_path: Path) -> None:
    file = tmp_path / "three.toml"
    file.write_text(THREE_LEVELS)
    fat_tree = topology_of(load_chip(str(file)), {"x": 3, "y": 4, "z": 8})
    # One message in the node, log2 4 = 2 in the leaf, 3 - 1 = 2 in the spine: 1 + 4 + 8 us.
    # Into a node comes all but its own twelfth, at 4e11; into a leaf two thirds at 1.6e12.
    seconds = 13e-6 + 1e9 * 11 / 12 / 4e11
    assert collective_time(ALL_GATHER, "xyz", 1e9, fat_tree) == pytest.approx(seconds, rel=1e-12)
    # Over x only: 32 GPUs of a leaf gather arrays of their own, 8 of each node.
    seconds = 8e-6 + max(8 * 1e9 * 2 / 3 / 4e11, 32 * 1e9 * 2 / 3 / 1.6e12)
    assert collective_time(ALL_GATHER, "x", 1e9, fat_tree) == pytest.approx(seconds, rel=1e-12)


def test_nothing_to_move() -> None:
    one = topology_of(load_chip("tpu-v4"), {"x": 1, "y": 4})
    assert collective_time(ALL_GATHER, ["x"], 1e9, one) == 0
    assert collective_time(ALL_GATHER, [], 1e9, one) == 0
    assert collective_time(ALL_GATHER, ["y"], 0, one) == 0
    with pytest.raises(DiagnosticError):
        collective_time(ALL_GATHER, ["w"], 1e9, one)


def test_on_a_torus_one_joint_step_wins() -> None:
    steps = joint_or_sequential(ALL_GATHER, "xy", 9e7, CUBE)
    # Separately: a quarter of the array over one axis, then all of it over the other.
    assert steps.sequential_s == pytest.approx((9e7 / 4 * 3 / 4 + 9e7 * 3 / 4) / 9e10, rel=1e-12)
    assert steps.joint_s == pytest.approx(9e7 * 15 / 16 / 1.8e11, rel=1e-12)
    assert steps.time_s == steps.joint_s
    assert joint_or_sequential(ALL_GATHER, "x", 9e7, CUBE) == Steps(7.5e-4, 7.5e-4, ("x",))


def test_across_nodes_the_outer_axis_is_gathered_first() -> None:
    steps = joint_or_sequential(ALL_GATHER, "yx", 1e9, NODES)
    assert steps.order == ("x", "y")
    assert steps.sequential_s == pytest.approx(
        2 * 8e-6 + 8 * (1e9 / 8) * 3 / 4 / 4e11 + 8e-6 + 1e9 * 7 / 8 / 4.5e11, rel=1e-12
    )
    assert joint_or_sequential(REDUCE_SCATTER, "xy", 1e9, NODES).order == ("y", "x")


def test_separate_steps_win_where_a_ring_of_messages_is_slow(tmp_path: Path) -> None:
    file = tmp_path / "ring.toml"
    file.write_text(THREE_LEVELS.replace('"direct"', '"ring"'))
    node = topology_of(load_chip(str(file)), {"x": 2, "y": 4})
    small = joint_or_sequential(ALL_GATHER, "xy", 8, node)
    # Seven messages of 1 us together, one and three separately; the bytes are the same.
    assert small.joint_s == pytest.approx(7e-6 + 7 / 4.5e11, rel=1e-12)
    assert small.sequential_s == pytest.approx(4e-6 + 7 / 4.5e11, rel=1e-12)
    assert small.time_s == small.sequential_s
    # An all-to-all sends more bytes separately, so that a large one goes together.
    short = joint_or_sequential(ALL_TO_ALL, "xy", 8, node)
    assert short.sequential_s < short.joint_s
    large = joint_or_sequential(ALL_TO_ALL, "xy", 1e9, node)
    assert large.joint_s == pytest.approx(7e-6 + 1e9 * 7 / 8 / 4.5e11, rel=1e-12)
    assert large.sequential_s == pytest.approx(4e-6 + 1e9 * (1 / 2 + 3 / 4) / 4.5e11, rel=1e-12)
    assert large.time_s == large.joint_s


@pytest.mark.parametrize("kind", CollectiveKind)
@pytest.mark.parametrize("nbytes", [1.0, 1e5, 1e9])
@pytest.mark.parametrize("topology", [CUBE, FLAT], ids=["cube", "flat"])
def test_joint_is_never_slower_on_axes_of_their_own(kind: CollectiveKind, nbytes: float, topology: Topology) -> None:
    axes = [name for name, _ in topology.mesh]
    steps = joint_or_sequential(kind, axes, nbytes, topology)
    assert steps.joint_s <= steps.sequential_s * (1 + 1e-12)
