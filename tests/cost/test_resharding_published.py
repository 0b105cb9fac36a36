"""Never worse than published plans: the resharding cases in the tests of openxla/shardy.

Facts from that project's tests (Apache-2.0, commit a0277a83): mesh, shape, the two layouts, and the sequence that its
greedy inserter of collectives is expected to give. Its layouts are ordered lists of axes; ours are the sets of them.
S slice, G all-gather, A all-to-all, P permute, R all-reduce, each with its axes, or with the number of chips where
it is over a factor of an axis. A permute moves whole shards; the chip that receives most receives one.
"""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from oracles.layout_execution import execute

from shardwright.cost.resharding.planner import plan
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import Axes, Dim, DType, Partial, Reduction, TensorType, axis_set

# mesh, shape, from, to, sequence, axes over which both are partial sums
CASES = [
    ("x2y2z2", "16x8", "[xyz,-]", "[x,-]", "G yz", ""),
    ("x2y2z2", "16x8", "[x,y]", "[x,yz]", "S z", ""),
    ("x2y2z2", "16x8x8", "[x,-,yz]", "[x,yz,-]", "A yz", ""),
    ("x4y2z4", "16x8x8", "[-,yx,-]", "[x,-,y]", "A x; A y", ""),
    ("x4y2z4", "16x8x8", "[-,yz,-]", "[xz,-,y]", "S x; A z; A y", ""),
    ("x2y2z2", "16x8x8", "[-,x,-]", "[-,-,xyz]", "S yz; A xyz", ""),
    ("x2y2", "16x8", "[x,y]", "[y,x]", "P", ""),
    ("x2y2", "16x8", "[x,-]", "[-,y]", "S y; G x", ""),
    ("x4y2", "16x8", "[x,y]", "[y,x]", "P; A 2", ""),
    ("x2y2z2", "16x8", "[yxz,-]", "[z,-]", "P; G xy", ""),
    ("x2y2", "4x10", "[-,x]", "[xy,-]", "S y; P; A y", ""),
    ("x2y3", "12x12", "[x,y]", "[y,x]", "A x; P; A y", ""),
    ("x2y2z2", "16x8", "[yz,-]", "[-,y]", "P; A y; G z", "x"),
]
# What a contraction leaves, and what has to be done to it: dot x4y2, 8x32 . 32x16.
REDUCED = [
    ("x4y2", "8x16", "[x,-]", "[x,-]", "R y"),
    ("x4y2", "8x16", "[-,x]", "[-,-]", "R y; G x"),
]


def parsed(mesh: str, shape: str, layout: str, partial: str) -> tuple[Mesh, TensorType]:
    sizes = Mesh(tuple((axis, int(size)) for axis, size in re.findall(r"([a-z])(\d+)", mesh)))
    dims = tuple(Dim(name, int(size)) for name, size in zip("ABC", shape.split("x"), strict=False))
    splits: tuple[Axes, ...] = tuple(axis_set(part.replace("-", "")) for part in layout.strip("[]").split(","))
    kind = Partial(Reduction.SUM, axis_set(partial)) if partial else None
    return sizes, TensorType(DType.INT8, dims, splits, kind)


def elements_received(sequence: str, V: int, mesh: Mesh) -> Fraction:
    """Elements that the chip which receives most receives in such a sequence, from V on each."""
    shard, total = Fraction(V), Fraction(0)
    for step in sequence.split("; "):
        letter, _, axes = step.partition(" ")
        K = int(axes) if axes.isdigit() else mesh.product(axes)
        match letter:
            case "S":
                shard /= K
            case "G":
                total += shard * (K - 1)
                shard *= K
            case "A":
                total += shard * (1 - Fraction(1, K))
            case "P":
                total += shard
            case "R":
                total += 2 * shard * (1 - Fraction(1, K))
            case _:
                raise AssertionError(step)
    return total


@pytest.mark.parametrize(("mesh", "shape", "before", "after", "sequence", "partial"), CASES)
def test_never_worse_than_the_published_sequence(
    mesh: str, shape: str, before: str, after: str, sequence: str, partial: str
) -> None:
    sizes, source = parsed(mesh, shape, before, partial)
    _, target = parsed(mesh, shape, after, partial)
    made = plan(source, target, sizes)
    theirs = elements_received(sequence, source.local_elements(sizes), sizes)
    steps = sum(1 for step in sequence.split("; ") if not step.startswith("S"))
    assert (made.bytes_received, made.communicating_steps) <= (theirs, steps)
    if "P" in sequence:  # what a permute was for is not needed: layouts are sets
        assert made.bytes_received < theirs
    assert execute(made, sizes) == []


@pytest.mark.parametrize(("mesh", "shape", "before", "after", "sequence"), REDUCED)
def test_never_worse_after_a_contraction(mesh: str, shape: str, before: str, after: str, sequence: str) -> None:
    sizes, source = parsed(mesh, shape, before, "y")
    _, target = parsed(mesh, shape, after, "")
    made = plan(source, target, sizes)
    assert (made.bytes_received, made.communicating_steps) <= (
        elements_received(sequence, source.local_elements(sizes), sizes),
        len(sequence.split("; ")),
    )
    assert execute(made, sizes) == []


# Dimensions without room for the digits of both: no digits in common, and a gather and a slice, which any compiler has.
WITHOUT_ROOM = [
    ("x4y8", "8x128", "[x,-]", "[y,-]", "G x"),
    ("x4y8", "8x128", "[y,-]", "[x,-]", "G y"),
    ("x4y8", "8x128", "[x,-]", "[y,x]", "G x"),
    ("x4y8", "8x16x8", "[x,-,y]", "[y,x,-]", "A x; A y; P"),
    ("x4y2", "4x10", "[x,-]", "[y,-]", "G x"),
    ("x2y3", "6x6", "[x,y]", "[y,x]", "A x; P; A y"),
    ("x6y4", "12x12", "[x,y]", "[y,x]", "A x; P; A y"),
    ("x2y2z2", "4x8", "[xz,-]", "[yz,-]", "G x"),
    ("x2y2z2", "4x8", "[zx,y]", "[yz,x]", "P; P"),
    ("x3y6", "18x6", "[y,x]", "[x,y]", "A x; P; A y"),
]


@pytest.mark.parametrize(("mesh", "shape", "before", "after", "sequence"), WITHOUT_ROOM)
def test_never_refused_and_never_worse_without_room(
    mesh: str, shape: str, before: str, after: str, sequence: str
) -> None:
    sizes, source = parsed(mesh, shape, before, "")
    _, target = parsed(mesh, shape, after, "")
    made = plan(source, target, sizes)
    assert made.bytes_received <= elements_received(sequence, source.local_elements(sizes), sizes)
    assert made.lower_bound_bytes <= made.bytes_received
