"""The table of PyTorch's operations."""

# Imported by `capture_torch` alone, and only when a module is traced.
# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

_DTYPES = {
    "bool": "bool", "uint8": "uint8", "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int32",
    "float16": "float16", "bfloat16": "bfloat16", "float32": "float32", "float64": "float32",
    "float8_e4m3fn": "float8_e4m3fn", "float8_e5m2": "float8_e5m2",
}  # fmt: skip


def dtype_of(dtype: Any) -> Any:
    """The format of a torch dtype; numbers of 64 bits have 32."""
    return None if dtype is None else jnp.dtype(_DTYPES[str(dtype).removeprefix("torch.")])


OPERATIONS: dict[str, Callable[..., Any]] = {}
"""By the name of the operation without its overload."""


def op(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATIONS.update(dict.fromkeys(names or (function.__name__.strip("_"),), function))
        return function

    return add


def dims_of(rank: int, dims: Any) -> tuple[int, ...]:
    if dims is None or dims == []:
        return tuple(range(rank))
    return tuple(d % max(rank, 1) for d in (dims if isinstance(dims, Sequence) else [dims]))


def least(dtype: Any) -> Any:
    """The least number of a format, of integers one whose negative is the greatest."""
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else -jnp.iinfo(dtype).max


def each_axis(value: Any, rank: int) -> list[int]:
    """One number for each of `rank` axes; a single number is that of all axes."""
    return list(value) * (rank // len(value)) if isinstance(value, Sequence) else [value] * rank
