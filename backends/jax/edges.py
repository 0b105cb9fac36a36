"""The program's edges: how global arrays are laid over the mesh on entry and put together on exit.

Where every chip's part of each dimension is one block, the layout is an ordinary `PartitionSpec`. A strided one is
that of the array reshaped to one array dimension per digit.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.backends.jax.digit_factors import Digits
from shardwright.backends.jax.source_text import axes_text
from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.types import TensorType, Tier


@dataclass(frozen=True)
class Edge:
    """How a global array is placed: reshaped to `shape`, then laid out by the PartitionSpec `spec`.

    `local` is the shape of a chip's part of that, `chip_shape` the shape that the type gives it.
    """

    kind: TensorType
    shape: tuple[int, ...]
    local: tuple[int, ...]
    chip_shape: tuple[int, ...]
    spec: str

    @property
    def is_strided(self) -> bool:
        """Whether the placed array has other dimensions than the global one."""
        return len(self.shape) != len(self.kind.dims)

    @property
    def global_shape(self) -> tuple[int, ...]:
        return tuple(dim.size for dim in self.kind.dims)

    @property
    def on_host(self) -> bool:
        return self.kind.placement.tier is Tier.HOST


def edge_of(name: str, kind: TensorType, digits: Digits) -> Edge:
    """The placement of a value that enters or leaves a function. Raises `unsupported` for disk and mixed placements."""
    if kind.placement.tier not in (Tier.DEVICE, Tier.HOST):
        raise fault(
            "unsupported",
            f"{name}: {kind} cannot be held by JAX, which has device and host memory",
            NOWHERE,
            "compile it to torch, which reads and writes disk and shares a value between memories",
        )
    shape: list[int] = []
    local: list[int] = []
    entries: list[tuple[str, ...]] = []
    for dim, here in zip(kind.dims, kind.local_shape(digits.mesh), strict=True):
        if not kind.split(dim.name) or digits.is_contiguous(kind, dim.name):
            shape.append(dim.size)
            local.append(here)
            entries.append(digits.ordered_axes(kind, dim.name))
            continue
        for axis, n in digits.layout(kind, dim.name):
            shape.append(n)
            local.append(n if axis is None else 1)
            entries.append(() if axis is None else (axis,))
    while entries and not entries[-1]:
        entries.pop()
    words = [axes_text(axes) if axes else "None" for axes in entries]
    return Edge(kind, tuple(shape), tuple(local), kind.local_shape(digits.mesh), f"P({', '.join(words)})")
