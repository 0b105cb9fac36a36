"""Types that leave a part to the compiler, over every layout that could be written in their place."""

from __future__ import annotations

from itertools import product

import pytest
from program_text import place_layouts, program

from shardwright.ir.diagnostics import DiagnosticError


@pytest.mark.parametrize(
    ("operation", "dims"),
    [
        ("cumsum[D](h)", "BD"),
        ("take[D, 1](h)", "B"),
        ("take[D 2:6](h)", "BD"),
        ("concat[D](k, k)", "BD"),
        ("rotary[D](h, 3)", "BD"),
        ("sum[D](h)", "B"),
        ("split[D -> FG](h)", "BFG"),
        ("rename[D -> E](h)", "BE"),
        ("h @[D] w", "BE"),
        ("h", "BD"),
    ],
)
def test_a_hole_at_the_end_refuses_nothing(operation: str, dims: str) -> None:
    """Whatever the operation leaves: the layout that is written may have to be reached by a movement."""
    accepted = 0
    for states in product([None, *dims], repeat=2):
        split = {dim: "".join(axis for axis, at in zip("xy", states, strict=True) if at == dim) for dim in dims}
        row = "".join(f"{dim}_{axes}" if axes else dim for dim, axes in split.items())
        text = f"""
            mesh x=2 y=2
            dim B=4 D=8 E=8 F=4 G=2
            func f(h: f32 B_xD_y, k: f32 B_yD_x, w: f32 DE_y) -> f32 BD? {{
              v: f32 ROW = {operation}
              return h
            }}"""
        try:
            demanded = place_layouts(program(text.replace("ROW", row)))
        except DiagnosticError:  # its extent is not divisible
            continue
        accepted += 1
        placed = place_layouts(program(text.replace("ROW", f"{row}?")))
        assert placed.bytes_received <= demanded.bytes_received
        (home,) = {placed.kinds[node.home] for node in placed.nodes if node.name == "v"}
        assert all(home.split(dim) == tuple(axes) for dim, axes in split.items() if axes)
    assert accepted >= 3
