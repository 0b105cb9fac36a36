"""Products of large operands under PyTorch: what these have to become first is there in parts alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shardwright.backends.torch.kernels import compute
from shardwright.backends.torch.kernels.prepared import prepared
from shardwright.backends.torch.tensors import NamedTensor, held_as
from shardwright.ir import ops
from shardwright.ir.types import Dim, DType, Shape

SIZES = {"B": 3, "V": 12_000, "E": 512, "X": 3, "F": 2048}
PART = 1 << 21
"""Numbers that are widened at a time; a table of V and E, or of X, F and E, has more."""


class Allocated(TorchDispatchMode):
    """Records the most bytes that an operation made at once."""

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        given = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, torch.Tensor)}
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in given:
                self.most = max(self.most, tensor.untyped_storage().nbytes())
        return made


def shape(names: str, dtype: DType) -> Shape:
    return Shape(dtype, tuple(Dim(name, SIZES[name]) for name in names))


def drawn(names: str, dtype: DType, stored: Sequence[int] | None = None) -> NamedTensor:
    """Small whole numbers, which lie in the order `stored` of the dimensions."""
    sizes = [SIZES[name] for name in names]
    order = list(stored or range(len(sizes)))
    lying = torch.randint(-3, 4, [sizes[i] for i in order]).to(held_as(dtype))
    return NamedTensor(lying.permute([order.index(i) for i in range(len(sizes))]), tuple(names), dtype)


def wanted(left: NamedTensor, right: NamedTensor, result: str) -> torch.Tensor:
    sums = f"{''.join(left.names)},{''.join(right.names)}->{result}".lower()
    return torch.einsum(sums, left.tensor.double(), right.tensor.double())


@pytest.mark.parametrize(
    ("table", "dtype", "result", "made"),
    [
        ("VE", DType.BF16, "BV", DType.F32),
        ("EV", DType.F16, "BV", DType.F32),
        ("VE", DType.BF16, "VB", DType.F32),
        ("XFE", DType.BF16, "XBF", DType.F32),
        ("VE", DType.F8E4M3, "BV", DType.BF16),
        ("VE", DType.INT8, "BV", DType.INT32),
    ],
)
def test_a_table_is_not_widened_whole(table: str, dtype: DType, result: str, made: DType) -> None:
    left, right = drawn("BE", dtype), drawn(table, dtype)
    with Allocated() as allocated:
        (found,) = compute(ops.Contract(("E",)), [left, right], [shape(result, made)], torch.device("cpu"))
    assert found.tensor.dtype == held_as(made)
    torch.testing.assert_close(found.tensor.double(), wanted(left, right, result), rtol=2**-8, atol=0)
    assert allocated.most <= PART * (8 if dtype is DType.INT8 else 4)


@pytest.mark.parametrize(("stored", "dims"), [((0, 2, 1), ("X", "F")), ((1, 0, 2), ("X", "F")), ((0, 1, 2), ("F",))])
def test_experts_that_lie_otherwise_are_not_laid_whole(stored: Sequence[int], dims: tuple[str, ...]) -> None:
    left = drawn("BXF" if "X" in dims else "BF", DType.BF16)
    right, result = drawn("XFE", DType.BF16, stored), "BE" if "X" in dims else "BXE"
    operands = [shape("".join(x.names), DType.BF16) for x in (left, right)]
    run = prepared(ops.Contract(dims), operands, shape(result, DType.BF16))
    assert run is not None
    with Allocated() as allocated:
        found = run(cast(Any, {}), left.tensor, right.tensor)
    torch.testing.assert_close(found.double(), wanted(left, right, result), rtol=2**-8, atol=0)
    assert allocated.most <= PART * 2
