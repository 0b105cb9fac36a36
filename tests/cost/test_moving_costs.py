"""The costs of moving between any two layouts at once, beside the plan of each."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
from program_text import place_layouts, program

from shardwright.cost.choosing import layouts
from shardwright.cost.choosing.layout_codes import StateNumbering
from shardwright.cost.choosing.layouts import LinkTimes, Moves, moving_costs
from shardwright.cost.resharding.planner import plan
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import Dim, DType, Shape, TensorType


@pytest.mark.parametrize(
    ("mesh", "sizes"),
    [
        *((mesh, "B=24 E=24") for mesh in ("x=2 y=2", "x=2 y=3", "x=4 y=2", "x=1 y=2")),
        *(("x=2 y=3", "B=4 E=9"), ("x=3 y=3", "B=6 E=12"), ("x=2 y=3", "B=2 E=7"), ("x=4 y=2", "B=6 E=4")),
    ],
)
def test_costs_of_all_pairs_are_those_of_the_plans(mesh: str, sizes: str) -> None:
    """Where all digits fit into each dimension, or those of both layouts do and nothing is a partial sum: ways round
    are not looked for."""
    compiled = program(f"mesh {mesh}\ndim {sizes}\nfunc f(x: f32 BE) -> f32 BE {{\n y = x\n return y\n}}")
    coding = StateNumbering(compiled.mesh, ("B", "E"))
    shape = compiled.funcs[0].params[0].shape
    codes = coding.combine([np.arange(coding.radix)] * 2)
    codes = codes[coding.valid(codes, shape, lambda dim, axis: True, {dim.name: dim.size for dim in shape.dims})]
    received, _, _ = moving_costs(coding, codes, shape)
    checked = 0
    for i, a in enumerate(codes):
        for j, b in enumerate(codes):
            if not np.isfinite(received[i, j]):
                continue
            source = coding.decode(int(a), shape, compiled.funcs[0].params[0].type.placement)
            target = coding.decode(int(b), shape, source.placement)
            planned, n = plan(source, target, compiled.mesh).bytes_received, compiled.mesh.n_chips
            crowded = source.partial or target.partial or _crowded(source, target, compiled.mesh)
            if all(dim.size % n == 0 for dim in shape.dims) or not crowded:
                assert planned == received[i, j], f"{source} -> {target}"
                checked += 1
    assert checked >= (200 if sizes == "B=24 E=24" else 4)


def _crowded(source: TensorType, target: TensorType, mesh: Mesh) -> bool:
    """Tells whether digits of the two types do not fit into a dimension together."""
    splits = zip(source.dims, source.splits, target.splits, strict=True)
    return any(dim.size % mesh.product({*was, *becomes}) for dim, was, becomes in splits)


def test_costs_of_many_layouts_are_worked_out_for_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = Shape(DType.F32, (Dim("A", 24), Dim("B", 36)))
    coding = StateNumbering(Mesh.of(x=2, y=3, z=2), ("A", "B"))
    codes = coding.combine([np.arange(coding.radix)] * 3)
    codes = codes[coding.valid(codes, shape, lambda dim, axis: True, {dim.name: dim.size for dim in shape.dims})]
    times = np.linspace(1, 2, 8), np.linspace(3, 4, 8)
    found: list[Moves] = []
    for at_once in (1 << 30, 5 * len(codes), 1):
        monkeypatch.setattr(layouts, "_AT_ONCE", at_once)
        monkeypatch.setattr(layouts, "_RECENT", layouts._Recent(OrderedDict()))
        found.append(moving_costs(coding, codes, shape, LinkTimes(times, times, (1.0, 2.0))))
    for part in found[1:]:
        assert all(map(np.array_equal, found[0], part))


@pytest.mark.parametrize(("mesh", "size", "received"), [("y=3", 1, 8), ("y=5", 2, 16), ("y=3", 7, 40), ("y=4", 1, 8)])
def test_bytes_of_sums_are_of_whole_elements(mesh: str, size: int, received: int) -> None:
    """Two thirds of an element, twice, are two elements."""
    text = f"mesh {mesh}\ndim B={size}\nfunc g(h: f32 B(partialsum-y)) -> f32 B {{\n return h\n}}"
    placed = place_layouts(program(text))
    assert (placed.bytes_received, placed.bound_bytes) == (received, received)
