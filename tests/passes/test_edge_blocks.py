"""`edge-blocks` on functions that only change a layout: what blocks at both edges add to what `reshard` finds."""

from __future__ import annotations

import math
import random

import pytest
from program_text import program

from shardwright.compiling.resharding import reshard
from shardwright.cost.movements.traffic import bytes_received
from shardwright.ir.ops import Permute
from shardwright.ir.program import Program
from shardwright.ir.walk import lets_in
from shardwright.passes.pipelines import explicit


def random_pair(seed: int) -> tuple[dict[str, int], dict[str, int], str, str]:
    """A mesh, dimensions with room for all of its axes or for some, and two layouts over them."""
    rng = random.Random(seed)
    mesh = {axis: rng.choice([2, 2, 3, 4]) for axis in "xyz"[: rng.randint(1, 3)]}
    chips, roomy = math.prod(mesh.values()), rng.random() < 0.5
    extents = [chips, 2 * chips] if roomy else [chips, 6, 8, 12, 24]
    dims = {name: rng.choice(extents) for name in "ABC"[: rng.randint(1, 3)]}

    def layout() -> str:
        while True:
            states = {axis: rng.choice([None, *dims]) for axis in mesh}
            splits = {name: [axis for axis in mesh if states[axis] == name] for name in dims}
            if all(size % math.prod(mesh[axis] for axis in splits[name]) == 0 for name, size in dims.items()):
                return "".join(f"{name}_{''.join(axes)}" if axes else name for name, axes in splits.items())

    return mesh, dims, layout(), layout()


def relaid(mesh: dict[str, int], dims: str, before: str, after: str) -> Program:
    axes = " ".join(f"{name}={size}" for name, size in mesh.items())
    return explicit(program(f"mesh {axes}\ndim {dims}\nfunc f(a: {before}) -> {after} {{ return a }}\n"))


def received(made: Program) -> int:
    return bytes_received(made, made.func("f")).bytes


@pytest.mark.parametrize("first", range(0, 300, 100))
def test_only_blocks_at_both_edges_move_more_than_reshard_finds(first: int) -> None:
    """Where one order of digits has both layouts in blocks the bytes are the same; else at most three times as many."""
    for seed in range(first, first + 100):
        mesh, dims, before, after = random_pair(seed)
        made = relaid(mesh, " ".join(f"{name}={size}" for name, size in dims.items()), before, after)
        least = reshard(before, after, mesh, dims).bytes_received
        exchanged = any(
            isinstance(let.operation, Permute) and let.operation.blocks for let in lets_in(made.funcs[0].body)
        )
        most = 3 * least if exchanged else least
        assert least <= received(made) <= most, (seed, mesh, dims, before, after)


def test_an_order_without_room_for_both_moves_from_blocks_to_blocks() -> None:
    """128 does not divide A, so that no type has the digits of both axes, and each is contiguous."""
    mesh = {"x": 4, "z": 2}
    assert received(relaid(mesh, "A=64", "A_z", "A_x")) == 48
    assert received(relaid(mesh, "A=64 order x 16 z", "A_z", "A_x")) == 32  # all 16 elements of a chip's block
