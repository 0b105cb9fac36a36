"""The mesh: named axes of chips with their sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.settings import require_whole


@dataclass(frozen=True)
class Mesh(Mapping[str, int]):
    """An ordered mapping from axis to size: `Mesh((("x", 4), ("y", 2)))` has 8 chips.

    Chips are numbered with the first axis most significant, as `jax.make_mesh` numbers devices.
    """

    sizes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.sizes]
        if len(set(names)) != len(names):
            raise ValueError(f"a mesh axis is named twice in {names}")
        if any(size < 1 for _, size in self.sizes):
            raise ValueError(f"a mesh axis has no chips in {self}")

    @staticmethod
    def of(**sizes: int) -> Mesh:
        """`Mesh.of(x=4, y=2)`."""
        return Mesh(tuple(sizes.items()))

    @classmethod
    def given(cls, sizes: Mapping[str, int]) -> Mesh:
        """The mesh of sizes that a user gave. Raises a `DiagnosticError` where an axis has no chips."""
        for axis, size in sizes.items():
            require_whole(f"the size of mesh axis {axis}", size)
            if size < 1:
                raise fault("bad-size", f"mesh axis {axis} has {size} chips", NOWHERE, "it has at least 1")
        return cls(tuple(sizes.items()))

    def __getitem__(self, axis: str) -> int:
        for name, size in self.sizes:
            if name == axis:
                return size
        raise KeyError(axis)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __hash__(self) -> int:
        return hash(self.sizes)

    @property
    def axes(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.sizes)

    @property
    def n_chips(self) -> int:
        return math.prod(size for _, size in self.sizes)

    @property
    def dividing(self) -> Mesh:
        """The axes of several chips: the others change no shard."""
        return Mesh(tuple(axis for axis in self.sizes if axis[1] > 1))

    def product(self, axes: Iterable[str]) -> int:
        """The number of chips along these axes together."""
        return math.prod(self[axis] for axis in axes)

    def sorted(self, axes: Iterable[str]) -> tuple[str, ...]:
        """The axes in the order of the mesh."""
        wanted = set(axes)
        return tuple(axis for axis in self if axis in wanted)

    def chips(self) -> Iterator[dict[str, int]]:
        """The coordinates of every chip, in the order of their numbers."""
        for coordinates in product(*(range(size) for _, size in self.sizes)):
            yield dict(zip(self.axes, coordinates, strict=True))

    def __str__(self) -> str:
        return " ".join(f"{name}={size}" for name, size in self.sizes)


ONE_CHIP = Mesh(())
"""The mesh without axes."""
