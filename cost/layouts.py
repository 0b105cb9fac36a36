"""Sets of layouts of one shape as arrays: which of them divide, and what moving between any two of them costs.

A layout is coded as one integer: for each mesh axis a digit that says what the axis does to the value
(nothing, partial sum, partial maximum, or which dimension it splits). The costs are those of
`cost.resharding.plan`, for all pairs at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.mesh import Mesh
from shardwright.ir.types import Placement, Reduction, Shape, State, TensorType

Codes = NDArray[np.int64]

WHOLE, SUM, MAX, FIRST_DIM = 0, 1, 2, 3


@dataclass(frozen=True)
class Coding:
    """The numbers that stand for states, the same for all values of a program."""

    mesh: Mesh
    dims: tuple[str, ...]

    @property
    def radix(self) -> int:
        return len(self.dims) + FIRST_DIM

    def number(self, state: State) -> int:
        """The number of a state."""
        if isinstance(state, Reduction):
            return SUM if state is Reduction.SUM else MAX
        return WHOLE if state is None else self.number_of_dim(state)

    def number_of_dim(self, name: str) -> int:
        """Later dimensions come first, so that of equal choices the hidden dimension is split before the batch."""
        return self.radix - 1 - self.dims.index(name)

    def state(self, number: int) -> State:
        match number:
            case 0:
                return None
            case 1:
                return Reduction.SUM
            case 2:
                return Reduction.MAX
            case _:
                return self.dims[self.radix - 1 - number]

    def encode(self, kind: TensorType) -> int:
        """The code of a type's layout."""
        return sum(self.number(kind.state(axis)) * self.radix**i for i, axis in enumerate(self.mesh))

    def decode(self, code: int, shape: Shape, placement: Placement) -> TensorType:
        """The type of this shape with the layout."""
        states = {axis: self.state(code // self.radix**i % self.radix) for i, axis in enumerate(self.mesh)}
        return TensorType.of_states(shape, states, placement)

    def digits(self, codes: Codes) -> NDArray[np.int64]:
        """The states of each axis: [codes, axes]."""
        powers = self.radix ** np.arange(len(self.mesh), dtype=np.int64)
        return codes[:, None] // powers[None, :] % self.radix

    def combine(self, per_axis: Sequence[NDArray[np.int64]]) -> Codes:
        """All combinations of one choice per axis, given the state numbers that each choice has."""
        codes = np.zeros(1, np.int64)
        for i, numbers in enumerate(per_axis):
            codes = (codes[:, None] + numbers[None, :] * self.radix**i).reshape(-1)
        return codes

    def valid(self, codes: Codes, shape: Shape, allowed: Callable[[str, str], bool]) -> NDArray[np.bool_]:
        """Which layouts exist: extents divide, no axis splits what it may not, partial in one way only."""
        digits = self.digits(codes)
        ok = ~((digits == SUM).any(axis=1) & (digits == MAX).any(axis=1))
        for dim in shape.dims:
            splits = digits == self.number_of_dim(dim.name)
            chips = np.ones(len(codes), np.int64)
            for i, axis in enumerate(self.mesh):
                chips *= np.where(splits[:, i], self.mesh[axis], 1)
                if not allowed(dim.name, axis):
                    ok &= ~splits[:, i]
            ok &= dim.size % chips == 0
        return ok


def local_elements(coding: Coding, codes: Codes, shape: Shape) -> NDArray[np.float64]:
    """Elements that a chip holds in each layout."""
    digits = coding.digits(codes)
    sizes = np.array([coding.mesh[axis] for axis in coding.mesh], np.float64)
    return shape.elements / np.where(digits >= FIRST_DIM, sizes[None, :], 1.0).prod(axis=1)


def moving_costs(coding: Coding, codes: Codes, shape: Shape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Bytes received per chip, and communicating steps, from each layout (rows) to each other (columns).


    Infinite where there is no movement: into partial maxima.
    """
    digits = coding.digits(codes)
    n = len(codes)
    source, target = digits[:, None, :], digits[None, :, :]
    sizes = np.array([coding.mesh[axis] for axis in coding.mesh], np.float64)

    def factor(chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        return np.where(chosen, sizes, 1.0).prod(axis=2)

    was_partial = (source == SUM) | (source == MAX)
    is_partial = (target == SUM) | (target == MAX)
    changes = source != target
    sliced = (source == WHOLE) & (target >= FIRST_DIM)
    reduced = was_partial & changes
    moved = (source >= FIRST_DIM) & (target >= FIRST_DIM) & changes
    gathered = (source >= FIRST_DIM) & (target == WHOLE)
    gathered |= reduced & (target == WHOLE)
    volume = local_elements(coding, codes, shape)[:, None] * shape.dtype.bits / 8 / factor(sliced)
    k_reduced, k_moved, k_gathered = factor(reduced), factor(moved), factor(gathered)
    scattered = volume / k_reduced
    received = volume * (1 - 1 / k_reduced) + scattered * (1 - 1 / k_moved) + scattered * (k_gathered - 1)
    lone = reduced & (target == WHOLE)
    one_all_reduce = lone.any(axis=2) & (reduced == lone).all(axis=2) & (gathered == lone).all(axis=2)
    one_all_reduce &= ~moved.any(axis=2)
    steps = reduced.any(axis=2).astype(np.float64) + moved.any(axis=2) + gathered.any(axis=2)
    steps = np.where(one_all_reduce, 1.0, steps)
    impossible = ((target == MAX) & changes).any(axis=2) | ((source == MAX) & is_partial & changes).any(axis=2)
    received[impossible] = np.inf
    received[np.arange(n), np.arange(n)] = 0.0
    return received, steps


def unique_codes(groups: Iterable[Codes]) -> Codes:
    """All codes that occur, sorted."""
    arrays = list(groups)
    return np.unique(np.concatenate(arrays)) if arrays else np.zeros(0, np.int64)
