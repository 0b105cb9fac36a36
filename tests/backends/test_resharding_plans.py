"""Plans executed by the simulator's movements, on real indices: contents, and bytes as the simulator counts them."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import pytest
from oracles.layout_pairs import all_meshes, mesh_of, roomy, type_of
from oracles.layout_search import MAX, SUM, layouts

from shardwright.backends.number_formats import Formats
from shardwright.backends.simulation.collectives import move, permute, received_bytes
from shardwright.backends.simulation.local_values import KernelSetting, Local
from shardwright.backends.simulation.sharding import shard, unshard
from shardwright.cost.resharding.planner import ReshardingPlan, plan
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.digits import Order
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Permute
from shardwright.ir.strategies import divides
from shardwright.ir.types import DType


def executed(made: ReshardingPlan, mesh: Mesh, orders: Mapping[str, Order], seed: int) -> None:
    """Runs a plan's movements on an array, and compares what every chip has in the end, and each step's bytes."""
    source, target = made.source, made.target
    orders = dict(orders)
    for step in made.steps:  # temporary splits are digits, too
        for name, axes in zip(step.type.names, step.type.splits, strict=True):
            orders[name] = (*orders[name], *(axis for axis in axes if axis not in orders[name]))
    setting = KernelSetting(mesh, orders, Formats("exact"), dict(mesh))
    extents = tuple(dim.size for dim in source.dims)
    value = np.arange(np.prod(extents), dtype=np.int64).reshape(extents) % 1009
    kind, array = source, shard(value, source, orders, mesh, np.random.default_rng(seed))
    for step in made.steps:
        if isinstance(step.operation, Permute):
            array, received = permute(step.operation, Local(array, kind), step.type, setting)
        else:
            received = received_bytes(step.operation, kind, step.type, mesh)
            array = move(Local(array, kind), step.type, setting)
        assert received == step.bytes_received
        kind = step.type
    assert kind == target
    np.testing.assert_array_equal(unshard(array, target, orders, mesh), value)


def test_plans_in_the_simulator() -> None:
    """A sample over all meshes: every plan gives back the array that was laid out."""
    pick = random.Random(540)
    count = 0
    for sizes in all_meshes():
        mesh = mesh_of(sizes)
        for n_dims in (1, 2, 3) if mesh.n_chips <= 16 else (1, 2) if mesh.n_chips <= 32 else (1,):
            extents = roomy(sizes, n_dims)
            orders: dict[str, Order] = dict.fromkeys("ABC"[:n_dims], mesh.axes)
            rows = layouts(len(sizes), n_dims, (SUM, MAX))
            for _ in range(8):
                source, target = (type_of(pick.choice(rows), extents, DType.INT32) for _ in range(2))
                try:
                    made = plan(source, target, mesh, orders)
                except DiagnosticError as error:
                    assert "partial maximum" in str(error)  # noqa: PT017
                    continue
                executed(made, mesh, orders, count)
                count += 1
    assert count > 300


CRAMPED = [
    ((4, 8), (8,)), ((4, 8), (8, 4)), ((3, 2), (6, 4)), ((2, 3), (6, 6)), ((6, 4), (12,)), ((6, 3), (18, 6)),
    ((2, 2, 2), (4,)), ((2, 2, 2), (4, 4)), ((2, 2, 2), (2, 4, 6)), ((4, 2, 3), (12, 4)), ((3, 3), (9, 3)),
    ((2, 4, 2), (8, 2)), ((6, 2), (6, 4, 2)),
]  # fmt: skip


@pytest.mark.parametrize("given", [True, False], ids=["orders given", "orders free"])
@pytest.mark.parametrize(("sizes", "extents"), CRAMPED)
def test_plans_between_types_whose_digits_do_not_fit_together(
    sizes: tuple[int, ...], extents: tuple[int, ...], given: bool
) -> None:
    """Between any two types there is a plan, by digits or not; that of whole values is at the bound."""
    mesh = mesh_of(sizes)
    pick = random.Random(str((sizes, extents)))
    rows = layouts(len(sizes), len(extents), (SUM, MAX))
    kinds = [type_of(row, extents, DType.INT32) for row in rows]
    kinds = [kind for kind in kinds if divides(kind, mesh)]
    orders: dict[str, Order] = {dim: tuple(pick.sample(mesh.axes, len(mesh))) for dim in "ABC"[: len(extents)]}
    for count in range(30):
        source, target = pick.choice(kinds), pick.choice(kinds)
        try:
            made = plan(source, target, mesh, orders if given else None)
        except DiagnosticError as error:
            assert "partial maximum" in str(error)  # noqa: PT017
            continue
        executed(made, mesh, made.orders, count)
        assert made.bytes_received >= made.lower_bound_bytes
        if not source.partial and not target.partial:
            assert made.optimal, f"{source} -> {target}"
