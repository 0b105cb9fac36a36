"""One chip of a mesh, which one process is: its coordinates, and what it holds of a value."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardwright.backends.simulation.digit_factors import Digits
from shardwright.ir.diagnostics import fault
from shardwright.ir.digits import blocks_of, global_indices
from shardwright.ir.types import Dim, Shape, TensorType

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch


@dataclass(frozen=True)
class Rank:
    """The `number`-th chip, the last axis of the mesh going round fastest, and the digits in force in a function."""

    digits: Digits
    number: int

    @property
    def at(self) -> dict[str, int]:
        """Its coordinate along each axis."""
        return next(itertools.islice(self.digits.mesh.chips(), self.number, None))

    def along(self, axes: Iterable[str]) -> tuple[int, ...]:
        """The numbers of the chips that differ from it in their coordinates along these axes alone, itself included, in
        the order of the mesh."""
        own, free = self.at, set(axes)
        return tuple(
            number
            for number, chip in enumerate(self.digits.mesh.chips())
            if all(chip[axis] == own[axis] for axis in chip if axis not in free)
        )


@dataclass(frozen=True)
class RankShard:
    """The shard that a chip holds of a value of this type."""

    chip: Rank
    kind: TensorType
    _indices: dict[str, npt.NDArray[np.int64]] = field(
        default_factory=dict[str, "npt.NDArray[np.int64]"], compare=False
    )

    @property
    def extents(self) -> tuple[int, ...]:
        return self.kind.local_shape(self.chip.digits.mesh)

    @property
    def shape(self) -> Shape:
        """With the extents that it has on the chip."""
        dims = (Dim(dim.name, extent) for dim, extent in zip(self.kind.dims, self.extents, strict=True))
        return Shape(self.kind.dtype, tuple(dims))

    def size(self, dim: str) -> int:
        """The size of the whole dimension."""
        return self.kind.shape.size(dim)

    def indices(self, dim: str) -> npt.NDArray[np.int64]:
        """The global indices that the chip holds along a dimension, ascending."""
        if dim not in self._indices:
            digits = self.chip.digits
            order, split = digits.order(self.kind, dim), self.kind.split(dim)
            self._indices[dim] = global_indices(self.size(dim), order, split, self.chip.at, digits.mesh)
        return self._indices[dim]

    def indices_on(self, device: torch.device, dim: str) -> torch.Tensor:
        import torch

        return torch.as_tensor(self.indices(dim), device=device)

    def blocks(self, dim: str, by: Sequence[str]) -> tuple[int, int]:
        """Into how many blocks the digits `by` divide the dimension, and how many of those the chip holds."""
        return blocks_of(self.kind, dim, by, self.chip.digits.mesh)

    def without(self, dims: Iterable[str]) -> RankShard:
        """The shard of a slice along each of these dimensions, none of which is split."""
        kind = self.kind
        for dim in dims:
            if kind.split(dim):
                raise fault("split-loop", f"a loop over {dim} takes slices of {self.kind}, which is split along it")
            kind = kind.without_dim(dim)
        return RankShard(self.chip, kind)
