"""Each collective on numbers small enough to check by hand, and the bytes that a chip receives in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shardwright.backends.number_formats import Formats
from shardwright.backends.simulation.collectives import move, received_bytes
from shardwright.backends.simulation.local_values import KernelSetting, Local
from shardwright.backends.simulation.sharding import ReplicaError, shard, unshard
from shardwright.ir import ops
from shardwright.ir.digits import Order, global_indices
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Movement
from shardwright.ir.types import Dim, DType, Reduction, Shape, TensorType

Array = np.ndarray[Any, Any]
X2 = Mesh.of(x=2)
XY = Mesh.of(x=2, y=2)


def kind(mesh: Mesh, dims: dict[str, int], dtype: DType = DType.BF16, **states: str) -> TensorType:
    """`kind(mesh, {"E": 4}, x="E", y="sum")`."""
    meant = {axis: Reduction(state) if state in ("sum", "max") else state for axis, state in states.items()}
    return TensorType.of_states(Shape(dtype, tuple(Dim(*item) for item in dims.items())), meant)


def setting(mesh: Mesh, **orders: Order) -> KernelSetting:
    return KernelSetting(mesh, orders, Formats("exact"), mesh)


def test_shard_by_digits() -> None:
    """With the order y x, y is the more significant digit."""
    made = shard(np.arange(8), kind(XY, {"E": 8}, x="E", y="E"), {"E": ("y", "x")}, XY)
    assert made[0, 0].tolist() == [0, 1]
    assert made[1, 0].tolist() == [2, 3]
    assert made[0, 1].tolist() == [4, 5]
    assert made[1, 1].tolist() == [6, 7]


def test_shard_of_a_less_significant_digit_is_strided() -> None:
    made = shard(np.arange(8), kind(XY, {"E": 8}, x="E"), {"E": ("y", "x")}, XY)
    assert made[0, 0].tolist() == [0, 1, 4, 5]
    assert made[1, 1].tolist() == [2, 3, 6, 7]


def test_all_gather() -> None:
    """Each chip receives the half that it lacks: 2 elements of 2 bytes."""
    source, target = kind(X2, {"E": 4}, x="E"), kind(X2, {"E": 4})
    parts = np.array([[1, 2], [3, 4]])
    made = move(Local(parts, source), target, setting(X2, E=("x",)))
    assert made.tolist() == [[1, 2, 3, 4], [1, 2, 3, 4]]
    assert received_bytes(ops.AllGather(("x",)), source, target, X2) == 4


def test_all_gather_of_the_outer_digit_interleaves() -> None:
    source, target = kind(XY, {"E": 4}, x="E", y="E"), kind(XY, {"E": 4}, y="E")
    made = move(Local(np.array([[[0], [1]], [[2], [3]]]), source), target, setting(XY, E=("x", "y")))
    assert made.tolist() == [[[0, 2], [1, 3]], [[0, 2], [1, 3]]]


def test_all_reduce() -> None:
    """Of a shard of 4 elements each chip receives half twice: 4 elements of 2 bytes."""
    source, target = kind(X2, {"E": 4}, x="sum"), kind(X2, {"E": 4})
    made = move(Local(np.array([[1, 2, 3, 4], [10, 20, 30, 40]]), source), target, setting(X2))
    assert made.tolist() == [[11, 22, 33, 44], [11, 22, 33, 44]]
    assert received_bytes(ops.AllReduce(("x",)), source, target, X2) == 8


def test_all_reduce_of_maxima() -> None:
    source, target = kind(X2, {"E": 3}, x="max"), kind(X2, {"E": 3})
    made = move(Local(np.array([[1, 9, -3], [2, 5, -4]]), source), target, setting(X2))
    assert made.tolist() == [[2, 9, -3], [2, 9, -3]]


def test_all_reduce_of_few_elements_rounds_up() -> None:
    mesh = Mesh.of(x=4)
    source, target = kind(mesh, {}, DType.F32, x="sum"), kind(mesh, {}, DType.F32)
    assert received_bytes(ops.AllReduce(("x",)), source, target, mesh) == 8  # 1.5 elements, so 2


def test_reduce_scatter() -> None:
    """Each chip receives the other's addend for the half that it keeps: 2 elements of 4 bytes."""
    source, target = kind(X2, {"F": 4}, DType.F32, x="sum"), kind(X2, {"F": 4}, DType.F32, x="F")
    made = move(Local(np.array([[1, 2, 3, 4], [10, 20, 30, 40]]), source), target, setting(X2, F=("x",)))
    assert made.tolist() == [[11, 22], [33, 44]]
    assert received_bytes(ops.ReduceScatter(((("x",), "F"),)), source, target, X2) == 8


def test_all_to_all() -> None:
    """Rows on chips become columns on chips; one of the two elements stays where it is."""
    source, target = kind(X2, {"H": 2, "B": 2}, x="H"), kind(X2, {"H": 2, "B": 2}, x="B")
    made = move(Local(np.array([[[1, 2]], [[3, 4]]]), source), target, setting(X2, H=("x",), B=("x",)))
    assert made.tolist() == [[[1], [3]], [[2], [4]]]
    assert received_bytes(ops.AllToAll(((("x",), "H", "B"),)), source, target, X2) == 2


def test_slice() -> None:
    source, target = kind(X2, {"B": 4}), kind(X2, {"B": 4}, x="B")
    made = move(Local(np.array([[1, 2, 3, 4]] * 2), source), target, setting(X2, B=("x",)))
    assert made.tolist() == [[1, 2], [3, 4]]
    assert received_bytes(ops.Slice(((("x",), "B"),)), source, target, X2) == 0


def test_as_partial() -> None:
    target = kind(X2, {"E": 4}, x="sum")
    split = move(Local(np.array([[1, 2], [3, 4]]), kind(X2, {"E": 4}, x="E")), target, setting(X2, E=("x",)))
    assert split.tolist() == [[1, 2, 0, 0], [0, 0, 3, 4]]
    whole = move(Local(np.array([[1, 2, 3, 4]] * 2), kind(X2, {"E": 4})), target, setting(X2))
    assert whole.tolist() == [[1, 2, 3, 4], [0, 0, 0, 0]]
    assert received_bytes(ops.AsPartial(("x",)), kind(X2, {"E": 4}), target, X2) == 0


def test_int4_takes_half_a_byte() -> None:
    source, target = kind(X2, {"E": 6}, DType.INT4, x="E"), kind(X2, {"E": 6}, DType.INT4)
    assert received_bytes(ops.AllGather(("x",)), source, target, X2) == 2  # three elements, 12 bits


MOVES: tuple[tuple[Movement, dict[str, str], dict[str, str]], ...] = (
    (ops.AllGather(("x",)), {"x": "E", "y": "F"}, {"y": "F"}),
    (ops.AllGather(("x", "y")), {"x": "E", "y": "E"}, {}),
    (ops.AllGather(("x", "y", "z")), {"x": "E", "y": "F", "z": "E"}, {}),
    (ops.AllToAll(((("x",), "E", "F"),)), {"x": "E", "y": "F"}, {"x": "F", "y": "F"}),
    (ops.AllToAll(((("x",), "E", "F"), (("y",), "F", "E"))), {"x": "E", "y": "F"}, {"x": "F", "y": "E"}),
    (ops.AllToAll(((("x", "z"), "E", "F"),)), {"x": "E", "z": "E"}, {"x": "F", "z": "F"}),
)


@pytest.mark.parametrize(("operation", "before", "after"), MOVES, ids=str)
def test_bytes_are_those_that_a_chip_lacks(operation: Movement, before: dict[str, str], after: dict[str, str]) -> None:
    """Counted element by element: what a chip holds afterwards and did not hold before."""
    mesh = Mesh.of(x=2, y=3, z=2)
    source, target = kind(mesh, {"E": 12, "F": 24}, **before), kind(mesh, {"E": 12, "F": 24}, **after)
    orders: dict[str, Order] = {"E": ("z", "y", "x"), "F": ("x", 2, "z", "y")}

    def held(which: TensorType, chip: dict[str, int]) -> set[tuple[int, int]]:
        E, F = (global_indices(d.size, orders[d.name], which.split(d.name), chip, mesh) for d in which.dims)
        return {(int(e), int(f)) for e in E for f in F}

    lacking = {len(held(target, chip) - held(source, chip)) for chip in mesh.chips()}
    assert {2 * n for n in lacking} == {received_bytes(operation, source, target, mesh)}
    value = np.arange(12 * 24).reshape(12, 24)
    made = move(Local(shard(value, source, orders, mesh), source), target, setting(mesh, **orders))
    np.testing.assert_array_equal(made, shard(value, target, orders, mesh))


def test_partial_parts_make_up_the_value() -> None:
    rng = np.random.default_rng(0)
    for reduction in ("sum", "max"):
        partial = kind(XY, {"E": 4}, DType.INT32, x=reduction, y="E")
        parts = shard(np.arange(4), partial, {"E": ("y",)}, XY, rng)
        assert not np.array_equal(parts[1], np.zeros((2, 2)))
        assert unshard(parts, partial, {"E": ("y",)}, XY).tolist() == [0, 1, 2, 3]


def test_replicas_that_differ_are_found() -> None:
    with pytest.raises(ReplicaError) as error:
        unshard(np.array([[1, 2], [1, 3]]), kind(X2, {"E": 2}), {}, X2)
    assert str(error.value) == (
        "bf16 E: chips along x should hold the same, and 1 of 4 elements differ from the first chip's"
    )


def test_nan_agrees_with_nan() -> None:
    made = unshard(np.array([[1, np.nan], [1, np.nan]]), kind(X2, {"E": 2}), {}, X2)
    np.testing.assert_array_equal(made, [1, np.nan])


def test_wrong_shape() -> None:
    with pytest.raises(ValueError, match=r"an array of shape \(3,\) for bf16 E_x, whose shape is \(4,\)"):
        shard(np.zeros(3), kind(X2, {"E": 4}, x="E"), {"E": ("x",)}, X2)


def test_an_axis_whose_digit_does_not_fit_beside_the_others_has_blocks() -> None:
    mesh = Mesh.of(x=4, y=2)
    made = shard(np.arange(4), kind(mesh, {"E": 4}, y="E"), {"E": ("x", "y")}, mesh)
    np.testing.assert_array_equal(made[0], [[0, 1], [2, 3]])
