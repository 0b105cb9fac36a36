"""Steps of a movement: they end with what the type says, and bring what the movement is said to receive."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from shardwright.backends.graph.blocks import MOST_FRAMES, draw_blocks, frames_of, stretches_of
from shardwright.backends.graph.movement_steps import Chip, Held, Part, Region, steps_of
from shardwright.compiling.compile_program import explicit, load
from shardwright.cost.resharding.planner import received_bytes
from shardwright.ir.diagnostics import Source
from shardwright.ir.digit_orders import orders_in
from shardwright.ir.ops import Movement
from shardwright.ir.program import Let
from shardwright.ir.types import TensorType

TEXT = """mesh x=2 y=3 z=4
dim A=48 B=96

func f(a: f32 A_yzB_x, b: f32 AB_x(partialsum-yz)) -> TYPE {
  made: TYPE = OPERATION
  return made
}
"""
MOVEMENTS = {
    "all_gather[z](a)": "f32 A_yB_x",
    "all_gather[xyz](a)": "f32 AB",
    "all_to_all[yz: A -> B](a)": "f32 AB_xyz",
    "all_to_all[z: A -> B, x: B -> A](a)": "f32 A_xyB_z",
    "all_to_all[x: B -> A](a)": "f32 A_xyzB",
    "all_reduce[yz](b)": "f32 AB_x",
    "all_reduce[y](b)": "f32 AB_x(partialsum-z)",
    "reduce_scatter[y -> A, z -> B](b)": "f32 A_yB_xz",
    "reduce_scatter[z -> A](b)": "f32 A_zB_x(partialsum-y)",
}


def area(region: Region) -> Fraction:
    made = Fraction(1)
    for stretches in region:
        made *= sum((Fraction(b - a).limit_denominator(10_000) for a, b in stretches), Fraction(0))
    return made


def cells(parts: tuple[Part, ...], sides: tuple[int, int]) -> dict[tuple[int, int], int]:
    """The addends of each element that a chip has."""
    made: dict[tuple[int, int], int] = {}
    for part in parts:
        first, second = (
            [n for a, b in stretches for n in range(round(a * side), round(b * side))]
            for stretches, side in zip(part.region, sides, strict=True)
        )
        for place in ((i, j) for i in first for j in second):
            assert place not in made
            made[place] = part.addends
    return made


@pytest.mark.parametrize("movement", MOVEMENTS)
def test_steps_end_as_the_type_says_and_bring_what_is_received(movement: str) -> None:
    text = TEXT.replace("TYPE", MOVEMENTS[movement]).replace("OPERATION", movement)
    program = explicit(load(Source("f", text)))
    (func,) = program.funcs
    mesh, orders = program.mesh, orders_in(program, func)
    lets = [one for one, _ in func.walk() if isinstance(one, Let)]
    values = {value.name: value.concrete for value in (*func.params, *(let.result for let in lets))}
    statement = next(let for let in lets if let.result.name == "made")
    before, after = values[str(statement.operands[0])], statement.result.concrete
    assert isinstance(statement.operation, Movement)

    def regions(kind: TensorType, chip: Chip) -> Region:
        return stretches_of(kind, dict(zip(mesh.axes, chip, strict=True)), mesh, orders)

    steps = steps_of(
        statement.operation, lambda chip: regions(before, chip), lambda chip: regions(after, chip), mesh, 1000
    )
    assert steps is not None
    sides = (before.dims[0].size, before.dims[1].size)
    summed = mesh.product(before.partial_axes) // mesh.product(after.partial_axes)
    received = dict.fromkeys((tuple(chip.values()) for chip in mesh.chips()), Fraction(0))
    last: Held | None = None
    for _, held in steps:
        if last is not None:
            for chip, parts in held.items():
                # What is new, or has more addends than before, has come in this step.
                old = {(part.region, part.addends) for part in last[chip]}
                received[chip] += sum((area(p.region) for p in parts if (p.region, p.addends) not in old), Fraction(0))
        last = held
    assert last is not None
    for chip, parts in last.items():
        whole = cells((Part(regions(after, chip), regions(after, chip), summed),), sides)
        assert cells(parts, sides) == whole
    nbytes = before.bytes_of(before.dims[0].size * before.dims[1].size)
    assert {share * nbytes for share in received.values()} == {received_bytes(statement.operation, before, mesh)}


def test_a_film_of_a_movement() -> None:
    path = Path(__file__).parents[3] / "examples" / "10_palm_parallel_block.shard"
    program = explicit(load(str(path)))
    frames = frames_of(program, "gate")
    assert [frame.title for frame in frames] == [
        "gate_partial, before reduce_scatter[x -> F]",
        "summed along x, step 1 of 3",
        "summed along x, step 2 of 3",
        "gate",
    ]
    picture = draw_blocks(program, frames, "svg").decode()
    assert "each cell is what the chips hold that exchange, B runs down and F runs to the right" in picture
    long = frames_of(program, "q")
    assert len(long) == MOST_FRAMES
    assert long[1].title == "sent along x, y, z, step 8 of 63"
