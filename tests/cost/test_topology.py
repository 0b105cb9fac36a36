"""Meshes on torus slices and on switched nodes."""

from __future__ import annotations

import pytest

from shardwright.cost.hardware.chips import load_chip
from shardwright.cost.hardware.topology import (
    Digit,
    SwitchedTopology,
    TorusRing,
    TorusTopology,
    check_axes,
    topology_of,
)
from shardwright.ir.diagnostics import DiagnosticError


def torus(chip: str, mesh: dict[str, int], shape: tuple[int, ...] | None = None) -> TorusTopology:
    made = topology_of(load_chip(chip), mesh, shape)
    assert isinstance(made, TorusTopology)
    return made


def switched(chip: str, mesh: dict[str, int]) -> SwitchedTopology:
    made = topology_of(load_chip(chip), mesh)
    assert isinstance(made, SwitchedTopology)
    return made


def test_one_axis_each() -> None:
    cube = torus("tpu-v4", {"x": 4, "y": 4, "z": 4})
    assert (cube.shape, cube.wraps) == ((4, 4, 4), (True, True, True))
    assert cube.digits == ((Digit(0, 4, 1),), (Digit(1, 4, 1),), (Digit(2, 4, 1),))
    assert cube.rings(["y"]) == (TorusRing(1, 4, 1, True, 9e10),)


def test_a_slice_that_fits_the_mesh_one_to_one_is_preferred() -> None:
    assert torus("tpu-v4", {"x": 4, "y": 16, "z": 4}).shape == (4, 4, 16)
    assert torus("tpu-v4", {"x": 4, "y": 8, "z": 8}).shape == (4, 8, 8)
    assert torus("tpu-v4", {"x": 256}).shape == (4, 8, 8)  # else the most compact
    assert torus("tpu-v4", {"x": 256}, (4, 4, 16)).shape == (4, 4, 16)


def test_small_slices_do_not_wrap() -> None:
    small = torus("tpu-v4", {"x": 2, "y": 2, "z": 2})
    assert small.rings(["x"]) == (TorusRing(0, 2, 1, False, 4.5e10),)


def test_several_mesh_axes_share_a_physical_axis() -> None:
    # 16x16 of v5e: x and y are the digits of one axis, y the inner one.
    shared = torus("tpu-v5e", {"x": 4, "y": 4, "z": 16})
    assert shared.digits == ((Digit(0, 4, 4),), (Digit(0, 4, 1),), (Digit(1, 16, 1),))
    # y: a line of four neighbours. x: a ring of every fourth chip, four such rings on the same links.
    assert shared.rings(["y"]) == (TorusRing(0, 4, 1, False, 4.5e10),)
    assert shared.rings(["x"]) == (TorusRing(0, 4, 4, True, 9e10 / 4),)
    assert shared.rings(["x"])[0].hops == 8
    # Together they are the whole ring.
    assert shared.rings(["y", "x"]) == (TorusRing(0, 16, 1, True, 9e10),)


def test_digits_that_are_not_neighbours_share_links() -> None:
    split = torus("tpu-v5e", {"x": 2, "y": 2, "z": 4, "w": 16})
    assert split.rings(["x", "z"]) == (TorusRing(0, 4, 1, False, 4.5e10 / 2), TorusRing(0, 2, 8, True, 9e10 / 16))


def test_one_mesh_axis_spans_several_physical_axes() -> None:
    spanning = torus("tpu-v4", {"x": 4, "y": 16})
    assert spanning.digits == ((Digit(0, 4, 1),), (Digit(1, 4, 1), Digit(2, 4, 1)))
    assert len(spanning.rings(["y"])) == 2
    both = torus("tpu-v4", {"x": 8, "y": 8})
    assert both.digits == ((Digit(0, 4, 1), Digit(1, 2, 2)), (Digit(1, 2, 1), Digit(2, 4, 1)))


def test_innermost_axes_lie_inside_the_node() -> None:
    two = switched("h100", {"x": 4, "y": 8})
    assert two.parts == ((1, 4), (8, 1))
    assert two.groups(["x"]) == (1, 4)
    assert two.groups(["x", "y"]) == (8, 4)
    assert switched("h100", {"x": 16, "y": 2}).parts == ((4, 4), (2, 1))
    # Nodes of four: half of a node's ports belong to the mesh.
    half = switched("h100", {"x": 3, "y": 4})
    assert half.parts == ((1, 3), (4, 1))
    assert half.egress(1) == 2.0e11


def render(chip: str, mesh: dict[str, int], shape: tuple[int, ...] | None = None) -> str:
    with pytest.raises(DiagnosticError) as caught:
        topology_of(load_chip(chip), mesh, shape)
    return caught.value.render()


def test_meshes_that_do_not_fit() -> None:
    assert render("tpu-v4", {"x": 2, "y": 3}) == (
        "<program>: error: the mesh x=2 y=3 is 6 chips, and no slice of tpu-v4 is [mesh-fit]\n"
        "note: slices of tpu-v4 near it, in chips: 4 (1x2x2), 8 (2x2x2)"
    )
    assert render("tpu-v5e", {"x": 512}) == (
        "<program>: error: the mesh x=512 is 512 chips, and no slice of tpu-v5e is [mesh-fit]\n"
        "note: slices of tpu-v5e near it, in chips: 256 (16x16)"
    )
    assert render("tpu-v4", {"x": 8}, (1, 2, 4)) == (
        "<program>: error: a slice of 1x2x4 does not hold the mesh x=8 [mesh-fit]\n"
        "note: slices of tpu-v4 near it, in chips: 8 (2x2x2), 16 (2x2x4)"
    )
    assert render("t4", {"x": 16}) == (
        "<program>: error: the mesh x=16 is 16 chips, and t4 joins at most 8 [mesh-fit]\n"
        "note: take a smaller mesh, a chip with a network between nodes, or a chip file with one more level"
    )
    assert render("tpu-v4", {"x": 0}) == (
        "<program>: error: mesh axis `x` has size 0 [mesh-fit]\nnote: give it 1 chip or more"
    )


def test_axes_of_a_collective() -> None:
    with pytest.raises(DiagnosticError) as caught:
        check_axes(torus("tpu-v4", {"x": 2, "y": 2}), ["w"])
    assert caught.value.render() == ("<program>: error: the mesh has no axis `w` [unknown-axis]\nnote: its axes: x, y")
    with pytest.raises(DiagnosticError) as caught:
        check_axes(torus("tpu-v4", {"x": 2, "y": 2}), ["x", "x"])
    assert caught.value.render() == (
        "<program>: error: an axis occurs twice in x, x [repeated-axis]\nnote: name each axis once"
    )
