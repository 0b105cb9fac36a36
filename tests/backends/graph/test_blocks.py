"""Where the bytes of a value are: the blocks in the picture are those that the simulator lays out."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwright.backends.graph.blocks import draw_blocks, frames_of, stretches_of
from shardwright.backends.simulation.sharding import shard
from shardwright.compiling.compile_program import explicit, load
from shardwright.ir.diagnostics import DiagnosticError, Source
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import Dim, DType, TensorType

BLOCK = Path(__file__).parents[3] / "examples" / "10_palm_parallel_block.shard"
SMALL: dict[str, Any] = {
    "mesh": {"x": 2, "y": 2, "z": 2},
    "dims": {"B": 8, "T": 64, "E": 64, "F": 256, "H": 8, "D": 16},
}


@pytest.mark.parametrize("seed", range(40))
def test_blocks_are_those_of_the_simulator(seed: int) -> None:
    """Random layouts, and orders of digits in which a chip's part is not one block."""
    generator = random.Random(seed)
    mesh = Mesh(tuple((axis, generator.choice([2, 3, 4])) for axis in generator.sample("xyz", 2)))
    axes = list(mesh.axes)
    generator.shuffle(axes)
    splits: dict[str, list[str]] = {"A": [], "B": []}
    for axis in axes:
        where = generator.choice(["A", "B", None])
        if where:
            splits[where].append(axis)
    dims = (Dim("A", 288), Dim("B", 288))
    kind = TensorType(DType.INT32, dims, (tuple(sorted(splits["A"])), tuple(sorted(splits["B"]))))
    orders = {name: tuple(generator.sample([*axes, 2], len(axes) + 1)) for name in "AB"}
    numbers = np.arange(288 * 288, dtype=np.int32).reshape(288, 288)
    laid = shard(numbers, kind, orders, mesh)
    for chip in mesh.chips():
        local = laid[tuple(chip.values())]
        for number, (dim, of) in enumerate(zip(dims, (local // 288, local % 288), strict=True)):
            shown: set[int] = set()
            for start, stop in stretches_of(kind, chip, mesh, orders)[number]:
                shown.update(range(round(start * dim.size), round(stop * dim.size)))
            assert shown == set(of.ravel().tolist())


def test_a_movement_is_shown_before_and_after() -> None:
    program = explicit(load(str(BLOCK), **SMALL))
    frames = frames_of(program, "gate")
    assert [frame.title for frame in frames] == ["gate_partial, before reduce_scatter[x -> F]", "gate"]
    assert [str(frame.type) for frame in frames] == ["bf16 BLF_yz(partialsum-x)", "bf16 BLF_xyz"]
    picture = draw_blocks(program, frames, "svg").decode()
    assert "one of 4 blocks, 2 addends of each" in picture
    assert "one of 8 blocks" in picture
    assert "in each cell B runs down and F runs to the right" in picture


def test_a_weight_is_shown_as_it_lies() -> None:
    program = explicit(load(str(BLOCK), **SMALL))
    frames = frames_of(program, "wk")
    picture = draw_blocks(program, frames, "svg").decode()
    assert "wk: bf16 E_xD" in picture
    assert "a chip holds 32 × 16, 1 KiB: one of 2 blocks, 4 copies" in picture


def test_numbers_and_what_is_whole() -> None:
    program = explicit(load(Source("f", "mesh x=2\ndim B=4\n\nfunc f(a: f32, b: f32 B) -> f32 B {\n  return b\n}\n")))
    for name, said in (("a", "a chip holds scalar"), ("b", "a chip holds 4, 16 B: all of it, 2 copies")):
        assert said in draw_blocks(program, frames_of(program, name), "svg").decode()


def test_what_cannot_be_shown_is_refused() -> None:
    with pytest.raises(DiagnosticError, match="the program has no value nothing") as caught:
        frames_of(explicit(load(str(BLOCK), **SMALL)), "nothing")
    assert caught.value.diagnostics[0].notes[-1].message.startswith("it has ")
    large = load(str(BLOCK), mesh={"x": 8, "y": 4, "z": 4}, dims={"H": 128})
    with pytest.raises(DiagnosticError, match="x=8 y=4 z=4 has 128 chips on 3 axes; a picture shows 64 on 3"):
        frames_of(explicit(large), "wk")
