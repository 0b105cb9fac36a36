"""The exchange of a permute: right contents, no more than the chip that lacks most lacks, in the fewest rounds."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from shardwright.backends.number_formats import Formats
from shardwright.backends.simulation.collectives import permute
from shardwright.backends.simulation.local_values import KernelSetting, Local
from shardwright.backends.simulation.sharding import shard
from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.hardware.topology import topology_of
from shardwright.cost.movements.collectives import CollectiveKind, latency_and_transfer, round_latency
from shardwright.cost.movements.exchange import Exchange, exchange_of
from shardwright.cost.movements.movement import collective_of
from shardwright.cost.resharding.bound import lacking_elements
from shardwright.ir.digits import Order, fitting_order, global_indices
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Permute
from shardwright.ir.types import Dim, DType, TensorType, axis_set

SIZES = {"x": 4, "y": 8, "z": 3, "u": 2, "v": 2, "w": 6}


def layouts(mesh: Mesh, extents: tuple[int, ...]) -> Iterator[TensorType]:
    """Every layout of whole values that divides."""
    dims = tuple(Dim(name, extent) for name, extent in zip("ABC", extents, strict=False))
    for homes in itertools.product([None, *(dim.name for dim in dims)], repeat=len(mesh)):
        splits = [axis_set(a for a, home in zip(mesh, homes, strict=True) if home == dim.name) for dim in dims]
        if all(dim.size % mesh.product(axes) == 0 for dim, axes in zip(dims, splits, strict=True)):
            yield TensorType(DType.INT32, dims, tuple(splits))


def relayout(before: TensorType, after: TensorType) -> Permute:
    return Permute(
        tuple(
            (name, axis_set(set(was) - set(becomes)), axis_set(set(becomes) - set(was)))
            for name, was, becomes in zip(before.names, before.splits, after.splits, strict=True)
            if was != becomes
        )
    )


def lacking(before: TensorType, after: TensorType, mesh: Mesh, orders: Mapping[str, Order]) -> int:
    """What the chip that lacks most lacks, by the indices that each holds."""
    most = 0
    for chip in mesh.chips():
        kept = 1
        for dim, was, becomes in zip(before.dims, before.splits, after.splits, strict=True):
            held, wanted = (
                global_indices(dim.size, fitting_order(orders[dim.name], split, dim.size, mesh), split, chip, mesh)
                for split in (was, becomes)
            )
            kept *= len(set(held.tolist()) & set(wanted.tolist()))
        most = max(most, after.local_elements(mesh) - kept)
    return most


def executed(
    operation: Permute, before: TensorType, after: TensorType, mesh: Mesh, orders: Mapping[str, Order]
) -> Exchange:
    """Moves real numbers, and compares with the layout made anew."""
    array = np.arange(before.shape.elements).reshape([dim.size for dim in before.dims])
    setting = KernelSetting(mesh, orders, Formats("exact"), mesh)
    moved, nbytes = permute(operation, Local(shard(array, before, orders, mesh), before), after, setting)
    np.testing.assert_array_equal(moved, shard(array, after, orders, mesh))
    made = exchange_of(operation, before, after, mesh, orders)
    assert nbytes == 4 * made.received_elements
    for each in made.rounds:
        assert max(Counter(sender for sender, _ in each.pairs).values()) == 1
        assert max(Counter(receiver for _, receiver in each.pairs).values()) == 1
    return made


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("axes", "extents"),
    [("xy", (8,)), ("xy", (8, 4)), ("zu", (6,)), ("zu", (6, 6)), ("uv", (2, 4)), ("wx", (12, 2)), ("zuv", (6, 4)),
     ("wz", (18,)), ("uvz", (4, 12)), ("uv", (2, 2, 6))],
)  # fmt: skip
def test_every_pair_of_layouts(axes: str, extents: tuple[int, ...]) -> None:
    mesh = Mesh(tuple((axis, SIZES[axis]) for axis in axes))
    orders = dict.fromkeys("ABC", mesh.axes)
    kinds = list(layouts(mesh, extents))
    for before, after in itertools.product(kinds, repeat=2):
        made = executed(relayout(before, after), before, after, mesh, orders)
        least = lacking(before, after, mesh, orders)
        assert lacking_elements(before, after, mesh, orders) == least
        assert made.received_elements == least, f"{before} -> {after}"


def test_chips_that_hold_the_same_share_the_sending() -> None:
    """Two of eight chips want what one of the four x has: the other seven copies of it send as well."""
    mesh = Mesh.of(x=4, y=8)
    dims = (Dim("A", 8), Dim("B", 4))
    before, after = TensorType(DType.INT32, dims, (("x",), ())), TensorType(DType.INT32, dims, (("y",), ("x",)))
    made = executed(relayout(before, after), before, after, mesh, {"A": ("x", "y"), "B": ("x",)})
    assert made.received_elements == 1
    assert len(made.rounds) == 1


@pytest.mark.parametrize(("side", "received"), [("to", 32), ("from", 32)])
def test_blocks_of_a_strided_layout(side: str, received: int) -> None:
    mesh = Mesh.of(x=2, y=2)
    kind = TensorType(DType.INT32, (Dim("B", 4), Dim("E", 8)), ((), ("y",)))
    operation = Permute(dims=("E",), blocks="to" if side == "to" else "from")
    made = exchange_of(operation, kind, kind, mesh, {"E": ("x", "y")})
    assert (4 * made.received_elements, made.axes) == (received, ("y",))
    contiguous = exchange_of(operation, kind, kind, mesh, {"E": ("y", "x")})
    assert contiguous.axes == ()


def test_layouts_of_many_chips_are_planned_quickly() -> None:
    mesh = Mesh.of(x=4, y=4, z=4)
    dims = (Dim("A", 96), Dim("B", 1536))
    before, after = (
        TensorType(DType.BF16, dims, (("x",), ("y", "z"))),
        TensorType(DType.BF16, dims, (("y", "z"), ("x",))),
    )
    made = exchange_of(relayout(before, after), before, after, mesh, {"A": ("x", "y", "z"), "B": ("x", "y", "z")})
    assert made.received_elements == lacking_elements(before, after, mesh, {"A": mesh.axes, "B": mesh.axes})


def test_a_permute_takes_the_time_of_its_rounds_and_of_its_gather() -> None:
    """Eight chips end with the same four rows of two columns: a unit each in one round, then a gather of the shares."""
    mesh = Mesh.of(x=2, y=8)
    topology = topology_of(load_chip("h100"), mesh)
    dims = (Dim("A", 8), Dim("B", 1 << 20))
    before = TensorType(DType.BF16, dims, (("y",), ()))
    operation = Permute((("A", ("y",), ("x",)),))
    made = collective_of(operation, before, mesh, {"A": ("x", "y")})
    assert made is not None
    assert made.behind is not None
    assert (made.behind.kind, made.behind.axes) == (CollectiveKind.ALL_GATHER, ("y",))
    assert made.received == 2 * 4 * dims[1].size  # the chips of the other half lack all four rows
    gather = latency_and_transfer(CollectiveKind.ALL_GATHER, ["y"], 2 * 4 * dims[1].size, topology)
    latency, transfer = made.latency_and_transfer(topology)
    assert made.rounds is not None
    assert latency == pytest.approx(made.rounds * round_latency(["x", "y"], topology) + gather[0])
    in_rounds = latency_and_transfer(CollectiveKind.ALL_TO_ALL, ["x", "y"], made.nbytes, topology)
    assert transfer == pytest.approx(in_rounds[1] + gather[1])
