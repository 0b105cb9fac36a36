"""Sets of layouts as codes against the types that they stand for."""

import random

import numpy as np
import pytest

from shardwright.cost.choosing.layout_codes import MAX, SOFTMAX, SUM, WHOLE, StateNumbering
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import ON_DEVICE, AnyPartial, Dim, DType, OpenType, Partial, Reduction, Shape

MESH = Mesh.of(x=2, y=1, z=3)
SHAPE = Shape(DType.F32, (Dim("B", 12), Dim("E", 6)))


@pytest.mark.parametrize("seed", range(60))
def test_layouts_that_a_type_admits(seed: int) -> None:
    draw = random.Random(seed)
    coding = StateNumbering(MESH, ("B", "E", "F"))
    states = np.array([WHOLE, SUM, MAX, SOFTMAX, *map(coding.number_of_dim, SHAPE.names)])
    codes = coding.combine([states] * len(MESH))
    codes = codes[coding.valid(codes, SHAPE, lambda dim, axis: True, {"B": 12, "E": 6})]
    partial: Partial | AnyPartial | None = draw.choice(
        [None, AnyPartial(), AnyPartial(draw.choice(list(Reduction))), Partial(draw.choice(list(Reduction)), ("y",))]
    )
    splits = tuple(draw.choice([None, (), (draw.choice(MESH.axes),)]) for _ in SHAPE.dims)
    kind = OpenType(SHAPE.dtype, SHAPE.dims, splits, partial, in_flight=draw.random() < 0.1)
    wanted = [kind.admits(coding.decode(int(code), SHAPE, ON_DEVICE)) for code in codes]
    assert coding.admitted(codes, kind).tolist() == wanted


def test_some_are_admitted_and_some_are_not() -> None:
    coding = StateNumbering(MESH, SHAPE.names)
    kinds = [
        coding.decode(code, SHAPE, ON_DEVICE)
        for code in (0, coding.number_of_dim("B"), SUM + SUM * coding.radix, coding.number_of_dim("E"))
    ]
    codes = np.array([coding.encode(kind) for kind in kinds])
    held = OpenType(SHAPE.dtype, SHAPE.dims, (None, ()), AnyPartial())
    assert coding.admitted(codes, held).tolist() == [True, True, True, False]
    summed = OpenType(SHAPE.dtype, SHAPE.dims, (None, None), Partial(Reduction.SUM, ("x", "y")))
    assert coding.admitted(codes, summed).tolist() == [False, False, True, False]
