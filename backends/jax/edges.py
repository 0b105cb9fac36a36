"""The program's edges: how global arrays are laid over the mesh on entry and put together on exit.

Where every chip's part of each dimension is one block, the layout is an ordinary `PartitionSpec`. A strided one is
that of the array reshaped to one array dimension per digit.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwright.backends.digit_factors import Digits
from shardwright.backends.jax.source_text import axes_text
from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.types import TensorType, Tier


@dataclass(frozen=True)
class Edge:
    """How a global array is placed: reshaped to `shape`, each dimension of which is split over the axes in `axes`.

    `factors` are the extents in `shape` that each dimension of the type became. `local` is the shape of a chip's part
    of `shape`, `chip_shape` the shape that the type gives it.
    """

    kind: TensorType
    factors: tuple[tuple[int, ...], ...]
    axes: tuple[tuple[str, ...], ...]
    local: tuple[int, ...]
    chip_shape: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(extent for extents in self.factors for extent in extents)

    @property
    def spec(self) -> str:
        """The PartitionSpec of `shape`, as source text."""
        split = max((i + 1 for i, axes in enumerate(self.axes) if axes), default=0)
        words = [axes_text(axes) if axes else "None" for axes in self.axes[:split]]
        return f"P({', '.join(words)})"

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
    digits = digits.at_edge(name, kind)
    factors: list[tuple[int, ...]] = []
    split: list[tuple[str, ...]] = []
    local: list[int] = []
    for dim, here in zip(kind.dims, kind.local_shape(digits.mesh), strict=True):
        if not kind.split(dim.name) or digits.is_contiguous(kind, dim.name):
            factors.append((dim.size,))
            split.append(digits.ordered_axes(kind, dim.name))
            local.append(here)
            continue
        layout = digits.layout(kind, dim.name)
        factors.append(tuple(n for _, n in layout))
        split.extend(() if axis is None else (axis,) for axis, _ in layout)
        local.extend(n if axis is None else 1 for axis, n in layout)
    return Edge(kind, tuple(factors), tuple(split), tuple(local), kind.local_shape(digits.mesh))
