"""Plans executed by the simulator's movements, on real indices: contents, and bytes as the simulator counts them."""

from __future__ import annotations

import random

import numpy as np
from oracles.layout_pairs import all_meshes, mesh_of, roomy, type_of
from oracles.layout_search import MAX, SUM, layouts

from shardwright.backends.collectives import move, received_bytes
from shardwright.backends.local_values import Local, Setting
from shardwright.backends.number_formats import Formats
from shardwright.backends.sharding import shard, unshard
from shardwright.cost.resharding import plan
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.digits import Order
from shardwright.ir.types import DType


def test_plans_in_the_simulator() -> None:
    """A sample over all meshes: every plan gives back the array that was laid out."""
    pick = random.Random(540)
    executed = 0
    for sizes in all_meshes():
        mesh = mesh_of(sizes)
        for n_dims in (1, 2, 3) if mesh.n_chips <= 16 else (1, 2) if mesh.n_chips <= 32 else (1,):
            extents = roomy(sizes, n_dims)
            orders: dict[str, Order] = dict.fromkeys("ABC"[:n_dims], mesh.axes)
            setting = Setting(mesh, orders, Formats("exact"), dict(mesh))
            rows = layouts(len(sizes), n_dims, (SUM, MAX))
            value = np.arange(np.prod(extents), dtype=np.int64).reshape(extents) % 1009
            for _ in range(8):
                source, target = (type_of(pick.choice(rows), extents, DType.INT32) for _ in range(2))
                try:
                    made = plan(source, target, mesh, orders)
                except DiagnosticError as error:
                    assert "partial maximum" in str(error)  # noqa: PT017
                    continue
                array = shard(value, source, orders, mesh, np.random.default_rng(executed))
                kind = source
                for step in made.steps:
                    assert received_bytes(step.operation, kind, step.type, mesh) == step.bytes_received
                    array = move(Local(array, kind), step.type, setting)
                    kind = step.type
                assert kind == target
                np.testing.assert_array_equal(unshard(array, target, orders, mesh), value)
                executed += 1
    assert executed > 300
