"""Types: what one chip holds, equality, printing, and what a type with holes admits."""

from __future__ import annotations

import pytest

from shardwright.ir.diagnostics import Source
from shardwright.ir.elaboration.declarations import Declarations
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import DimInfo
from shardwright.ir.text.parser import parse_type
from shardwright.ir.types import Dim, DType, OpenType, Partial, Reduction, Shape, TensorType, ValueType

MESH = Mesh.of(x=4, y=2, data=2)
SIZES = {"B": 8, "L": 1, "E": 16, "F": 32, "batch": 8, "embed": 64}


def typed(text: str) -> ValueType:
    declared = Declarations(MESH, tuple(DimInfo(name, size) for name, size in SIZES.items()), (), ())
    return declared.type(parse_type(Source("t", text)), SIZES)


def whole(text: str) -> TensorType:
    kind = typed(text)
    assert isinstance(kind, TensorType)
    return kind


@pytest.mark.parametrize(
    ("text", "shape", "size"),
    [
        ("BLE", (8, 1, 16), 256),
        ("B_xLE_y", (2, 1, 8), 32),
        ("f32 BE_xy", (8, 2), 64),
        ("f32 BE_x(partialsum-y)", (8, 4), 128),
        ("int8 E_xF", (4, 32), 128),
        ("int4 E_xF", (4, 32), 64),
        ("int4 L", (1,), 1),
        ("bool B", (8,), 8),
        ("f32", (), 4),
        ("[batch_{data} embed_{x,y}]", (4, 8), 64),
    ],
)
def test_one_chips_array_and_its_bytes(text: str, shape: tuple[int, ...], size: int) -> None:
    kind = whole(text)
    assert kind.local_shape(MESH) == shape
    assert kind.local_bytes(MESH) == size


def test_the_order_of_axes_is_no_part_of_a_type() -> None:
    assert typed("E_xy") == typed("E_yx")
    assert hash(typed("BE(partialsum-xy)")) == hash(typed("BE(partialsum-yx)"))
    assert str(typed("E_yx")) == "bf16 E_xy"


@pytest.mark.parametrize(
    "different", ["f32 B_xE", "BE_x", "EB_x", "B_xyE", "B_xE(partialsum-y)", "B_xE on host", "BE?", "B_xE_?"]
)
def test_types_that_differ(different: str) -> None:
    assert typed("B_xE") != typed(different)


def test_partial_sum_and_partial_maximum_differ() -> None:
    assert typed("BE(partialsum-x)") != typed("BE(partialmax-x)")


@pytest.mark.parametrize(
    "text",
    [
        "bf16 B_xLE_y",
        "f32 BLE(partialsum-xy)",
        "f32 (partialsum-x)",
        "int32",
        "bf16 BE?",
        "bf16 B_xE_?",
        "f16 BE(partialmax-?)",
        "bf16 BE on host",
        "bf16 BE on ?",
        "int4 EF on device 20% host 80% along F",
        "bf16 [batch_{data} embed_{x,y}]",
        "bf16 [batch embed]",
    ],
)
def test_printing_is_what_was_written(text: str) -> None:
    assert str(typed(text)) == text


@pytest.mark.parametrize(
    ("hole", "fits", "does_not"),
    [
        ("BE?", ["BE", "B_xE_y", "BE(partialsum-x)", "BE(partialmax-xy)"], ["f32 BE", "EB", "BE on host", "B"]),
        ("B_xE_?", ["B_xE", "B_xE_y"], ["BE", "B_xyE", "B_xE(partialsum-y)"]),
        ("B_xE(partialsum-?)", ["B_xE", "B_xE(partialsum-y)"], ["B_xE(partialmax-y)", "BE(partialsum-x)"]),
        ("B_xE on ?", ["B_xE", "B_xE on host"], ["BE on host"]),
        ("BE_?(partialsum-x)", ["BE(partialsum-x)", "BE_y(partialsum-x)"], ["BE", "BE_x", "BE(partialsum-xy)"]),
    ],
)
def test_what_a_hole_admits(hole: str, fits: list[str], does_not: list[str]) -> None:
    kind = typed(hole)
    assert isinstance(kind, OpenType)
    assert [text for text in fits if not kind.admits(whole(text))] == []
    assert [text for text in does_not if kind.admits(whole(text))] == []


def test_what_an_axis_does() -> None:
    kind = whole("B_xE(partialsum-y)")
    assert [kind.state(axis) for axis in ("x", "y", "data")] == ["B", Reduction.SUM, None]
    assert TensorType.of_states(kind.shape, {"y": Reduction.SUM, "x": "B", "data": None}) == kind
    assert (kind.split("B"), kind.split("E"), kind.split("F")) == (("x",), (), ())
    assert kind.without_dim("B") == whole("E(partialsum-y)")


def test_impossible_types_are_refused() -> None:
    dims = (Dim("B", 8), Dim("E", 16))
    with pytest.raises(ValueError, match="an axis occurs twice in"):
        TensorType(DType.BF16, dims, (("x",), ("x",)))
    with pytest.raises(ValueError, match="an axis occurs twice in"):
        TensorType(DType.BF16, dims, (("x",), ()), Partial(Reduction.SUM, ("x",)))
    with pytest.raises(ValueError, match="a partial value over no axis is whole"):
        TensorType(DType.BF16, dims, ((), ()), Partial(Reduction.SUM, ()))
    with pytest.raises(ValueError, match="1 splits for 2 dimensions"):
        TensorType(DType.BF16, dims, ((),))
    with pytest.raises(ValueError, match="a value is partial in one way only"):
        TensorType.of_states(Shape(DType.BF16, dims), {"x": Reduction.SUM, "y": Reduction.MAX})
