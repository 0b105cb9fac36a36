"""The formulas against messages played link by link."""

from __future__ import annotations

from dataclasses import replace

import pytest
from oracles.torus_simulation import simulate

from shardwright.cost.hardware.chips import Chip
from shardwright.cost.hardware.networks import Torus
from shardwright.cost.hardware.topology import TorusTopology, topology_of
from shardwright.cost.movements.collectives import CollectiveKind, collective_time

ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL, PERMUTE = CollectiveKind

# Links of 1 byte/s; any slice exists, and all axes wrap or none does.
TORUS = Torus((16, 16, 16), 1.0, 0.0, 1, wrap_needs_every_axis=False, slices=(), slice_multiple_of=1)


def lay_out(mesh: dict[str, int], shape: tuple[int, ...], wraps: bool, latency_s: float = 0.0) -> TorusTopology:
    torus = replace(TORUS, wrap_multiple_of=1 if wraps else None, hop_latency_s=latency_s)
    topology = topology_of(Chip("small", 1.0, 1.0, {}, torus), mesh, shape)
    assert isinstance(topology, TorusTopology)
    return topology


# mesh, shape, axes of the collective
EVEN = [
    ({"x": 2}, (2, 1, 1), "x"),
    ({"x": 4}, (4, 1, 1), "x"),
    ({"x": 5}, (5, 1, 1), "x"),
    ({"x": 8}, (8, 1, 1), "x"),
    ({"x": 4, "y": 4}, (4, 4, 1), "x"),
    ({"x": 4, "y": 4}, (4, 4, 1), "xy"),
    ({"x": 3, "y": 3}, (3, 3, 1), "xy"),
    ({"x": 2, "y": 2, "z": 2}, (2, 2, 2), "xyz"),
    ({"x": 4, "y": 4, "z": 4}, (4, 4, 4), "xyz"),
    ({"x": 16}, (4, 4, 1), "x"),  # one mesh axis over two physical axes
    ({"x": 2, "y": 2}, (4, 1, 1), "x"),  # every second chip
    ({"x": 2, "y": 2}, (4, 1, 1), "y"),  # neighbours on half a ring
    ({"x": 4, "y": 4}, (16, 1, 1), "x"),
    ({"x": 4, "y": 4}, (16, 1, 1), "xy"),
]
UNEVEN = [
    ({"x": 2, "y": 4}, (2, 4, 1), "xy"),
    ({"x": 3, "y": 5}, (3, 5, 1), "xy"),
    ({"x": 4, "y": 8}, (4, 8, 1), "xy"),
    ({"x": 2, "y": 2, "z": 4}, (4, 4, 1), "xz"),
]


@pytest.mark.parametrize("wraps", [True, False], ids=["rings", "lines"])
@pytest.mark.parametrize(("mesh", "shape", "axes"), EVEN)
@pytest.mark.parametrize("kind", [ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL])
def test_axes_of_one_size_take_exactly_the_formula(
    kind: CollectiveKind, mesh: dict[str, int], shape: tuple[int, ...], axes: str, wraps: bool
) -> None:
    topology = lay_out(mesh, shape, wraps)
    played = simulate(kind, axes, 960.0, topology)
    assert played.time_s == pytest.approx(collective_time(kind, axes, 960.0, topology), rel=1e-9)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("wraps", [True, False], ids=["rings", "lines"])
@pytest.mark.parametrize(("mesh", "shape", "axes"), UNEVEN)
def test_axes_of_two_sizes_take_the_formula_in_packets(
    mesh: dict[str, int], shape: tuple[int, ...], axes: str, wraps: bool
) -> None:
    topology = lay_out(mesh, shape, wraps)
    formula = collective_time(ALL_GATHER, axes, 960.0, topology)
    played = [simulate(kind, axes, 960.0, topology, packets=8) for kind in (ALL_GATHER, REDUCE_SCATTER)]
    assert [p.busiest_link_bytes for p in played] == pytest.approx([formula] * 2, rel=1e-9)  # links of 1 byte/s
    # Links that choose by the longest way to go may idle in one of the two; either, read backwards, is the other.
    assert min(p.time_s for p in played) == pytest.approx(formula, rel=1e-9)
    exchange = collective_time(ALL_TO_ALL, axes, 960.0, topology)
    assert simulate(ALL_TO_ALL, axes, 960.0, topology).time_s == pytest.approx(exchange, rel=1e-9)


@pytest.mark.parametrize(("wraps", "formula"), [(True, 960.0), (False, 1920.0)], ids=["rings", "lines"])
def test_a_slow_axis_keeps_a_fast_one_waiting(wraps: bool, formula: float) -> None:
    # Along x, 8 chips apart, each of 8 groups brings every chip its own quarter of 960 bytes over the same links.
    topology = lay_out({"x": 2, "y": 8, "z": 2}, (16, 2, 1), wraps)
    assert collective_time(ALL_GATHER, "xz", 960.0, topology) == formula
    played = simulate(ALL_GATHER, "xz", 960.0, topology, packets=8)
    assert played.busiest_link_bytes == formula
    assert formula <= played.time_s <= formula + 960.0 / 4 / 8  # the first packet under way before the links are full


@pytest.mark.parametrize(("mesh", "shape", "axes"), EVEN)
@pytest.mark.parametrize("wraps", [True, False], ids=["rings", "lines"])
@pytest.mark.parametrize("kind", [ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, PERMUTE])
def test_tiny_arrays_take_exactly_the_hops(
    kind: CollectiveKind, mesh: dict[str, int], shape: tuple[int, ...], axes: str, wraps: bool
) -> None:
    topology = lay_out(mesh, shape, wraps, latency_s=1.0)
    # So few bytes that links are never taken: what is left is the longest path.
    assert simulate(kind, axes, 1e-12, topology).time_s == pytest.approx(
        collective_time(kind, axes, 1e-12, topology), rel=1e-9
    )


@pytest.mark.parametrize("nbytes", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("kind", [ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL])
def test_between_the_two_the_formula_is_a_lower_bound_met_within_its_two_terms(
    kind: CollectiveKind, nbytes: float
) -> None:
    topology = lay_out({"x": 4, "y": 4}, (4, 4, 1), wraps=True, latency_s=5.0)
    without = lay_out({"x": 4, "y": 4}, (4, 4, 1), wraps=True)
    formula = collective_time(kind, "xy", nbytes, topology)
    hops = 4 * 5.0
    transfer = collective_time(kind, "xy", nbytes, without)
    assert formula == max(hops, transfer)
    assert formula <= simulate(kind, "xy", nbytes, topology).time_s <= hops + transfer


@pytest.mark.parametrize(("size", "wraps", "hops"), [(4, True, 1), (5, True, 1), (4, False, 3), (5, False, 4)])
def test_permute_in_packets(size: int, wraps: bool, hops: int) -> None:
    topology = lay_out({"x": size}, (size, 1, 1), wraps)
    played = simulate(PERMUTE, "x", 960.0, topology, packets=8)
    assert played.busiest_link_bytes == 960.0 == collective_time(PERMUTE, "x", 960.0, topology)
    # The first packet takes all hops, seven more follow it.
    assert played.time_s == pytest.approx(960.0 / 8 * (hops + 7), rel=1e-12)


def test_nothing_to_play() -> None:
    topology = lay_out({"x": 4}, (4, 1, 1), wraps=True)
    assert simulate(ALL_GATHER, [], 960.0, topology).time_s == 0
    assert simulate(ALL_GATHER, "x", 0.0, topology).time_s == 0
