"""Prepared operations beside the kernels that work out anew what goes where."""

from __future__ import annotations

import math

import pytest
import torch

from shardwright.backends.torch.kernels import compute
from shardwright.backends.torch.kernels.prepared import prepared
from shardwright.backends.torch.tensors import NamedTensor, held_as
from shardwright.ir import ops
from shardwright.ir.operation import Operation
from shardwright.ir.types import Dim, DType, Shape

SIZES = {"B": 5, "L": 3, "E": 24, "V": 97}
CPU = torch.device("cpu")


def shape(names: str, dtype: DType) -> Shape:
    return Shape(dtype, tuple(Dim(name, SIZES[name]) for name in names))


def both(operation: Operation, result: Shape, *operands: NamedTensor) -> tuple[torch.Tensor, torch.Tensor]:
    made = prepared(operation, [shape("".join(each.names), each.dtype) for each in operands], result)
    assert made is not None
    before = [each.tensor.clone() for each in operands]
    found = made({}, *(each.tensor for each in operands))
    for each, kept in zip(operands, before, strict=True):
        torch.testing.assert_close(each.tensor, kept, rtol=0, atol=0, equal_nan=True)
    return found, compute(operation, list(operands), [result], CPU)[0].tensor


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dims", ["E", "LE"])
def test_norms(dtype: DType, scaled: bool, dims: str) -> None:
    kind = shape("BLE", dtype)
    x = torch.randn([SIZES[name] for name in "BLE"]) * torch.tensor([1e-3, 1.0, 1e3, 0.0, 1e15])[:, None, None]
    operands = [NamedTensor(x.to(held_as(dtype)), tuple("BLE"), dtype)]
    if scaled:
        operands.append(NamedTensor(torch.randn([SIZES[n] for n in dims]).to(held_as(dtype)), tuple(dims), dtype))
    found, wanted = both(ops.Rmsnorm(tuple(dims), eps=1e-6), kind, *operands)
    tolerance = 2e-6 if dtype is DType.F32 else 1e-2
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def test_numbers_that_are_none_stay_in_their_rows_of_a_norm() -> None:
    x = torch.ones(5, 24)
    x[1, 3], x[2, 4] = math.nan, math.inf
    given = NamedTensor(x, ("B", "E"), DType.F32)
    found, wanted = both(ops.Rmsnorm(("E",), eps=1e-6), shape("BE", DType.F32), given)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    assert found.isnan().any(dim=1).tolist() == [False, True, True, False, False]


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.INT32])
@pytest.mark.parametrize("names", ["BV", "VB"])
def test_the_first_of_the_greatest_is_chosen(dtype: DType, names: str) -> None:
    x = torch.randint(-3, 4, [SIZES[name] for name in "BV"]).to(held_as(dtype))
    if dtype.is_float:
        x[1, 40], x[1, 60] = math.nan, math.nan
        x[2, 5], x[2, 7] = math.inf, math.inf
        x[3] = -math.inf
    given = NamedTensor(x if names == "BV" else x.T, tuple(names), dtype)
    found, wanted = both(ops.Argmax("V"), shape("B", DType.INT32), given)
    assert found.dtype == torch.int32 or found.dtype == held_as(DType.INT32)
    assert found.tolist() == wanted.tolist()
    if dtype.is_float:
        assert found.tolist()[1:4] == [40, 5, 0]
