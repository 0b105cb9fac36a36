"""The operations of PyTorch's export, as functions of JAX's arrays that take the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def operations() -> dict[str, Callable[..., Any]]:
    """By the name of the operation without its library and its overload."""
    from shardwright.tracing.aten import arrays, convolutions, decompositions, numbers, recurrent, reductions
    from shardwright.tracing.aten.table import OPERATIONS

    assert arrays
    assert convolutions
    assert decompositions
    assert numbers
    assert recurrent
    assert reductions  # each has put its own into the table
    return OPERATIONS
