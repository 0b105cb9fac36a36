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
    idle: tuple[int, ...] = ()
    """Axes (by position) that do nothing to any value."""
    together: tuple[tuple[int, ...], ...] = ()
    """Axes that do the same to every value."""

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
        ok &= (digits[:, self.idle] == WHOLE).all(axis=1)
        for first, *others in self.together:
            for other in others:
                ok &= digits[:, first] == digits[:, other]
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

    The formula of `cost.resharding`, temporary splits included, for all pairs at once; a temporary split is
    counted on where a single dimension has room for all of its axes. Infinite where there is no movement: into
    partial maxima.
    """
    work = _Work.between(coding, codes, shape)
    n = len(codes)
    received = np.full((n, n), np.inf)
    steps = np.full((n, n), np.inf)
    for subset in range(1 << len(coding.mesh)):
        chosen = np.array([bool(subset >> i & 1) for i in range(len(coding.mesh))], np.bool_)
        pairs = work.fitting(chosen)
        if not pairs.any():
            continue
        bytes_then, steps_then = work.priced(chosen, pairs)
        bytes_now, steps_now = received[pairs], steps[pairs]
        better = (bytes_then < bytes_now - 1e-6) | ((bytes_then <= bytes_now + 1e-6) & (steps_then < steps_now))
        received[pairs] = np.where(better, bytes_then, bytes_now)
        steps[pairs] = np.where(better, steps_then, steps_now)
    received = np.ceil(received - 1e-6)  # whole bytes, and rid of the rounding of odd factors
    received[work.impossible] = np.inf
    steps[work.impossible] = 0.0
    return received, steps


@dataclass
class _Work:
    """What each axis needs for each pair of layouts: boolean arrays [from, to, axis], as in `cost.resharding`."""

    sizes: NDArray[np.float64]
    volume: NDArray[np.float64]
    """Bytes of the shard after slicing."""
    scattered: NDArray[np.bool_]
    moved: NDArray[np.bool_]
    gathered: NDArray[np.bool_]
    reduced: NDArray[np.bool_]
    remade: NDArray[np.bool_]
    kept: NDArray[np.bool_]
    replicated: NDArray[np.bool_]
    added: NDArray[np.bool_]
    impossible: NDArray[np.bool_]
    optional: NDArray[np.bool_]
    left: NDArray[np.int64]
    """What is left of each dimension beside the digits of both layouts: [from, to, dimension]."""

    @staticmethod
    def between(coding: Coding, codes: Codes, shape: Shape) -> _Work:
        digits = coding.digits(codes)
        source, target = digits[:, None, :], digits[None, :, :]
        sizes = np.array([coding.mesh[axis] for axis in coding.mesh], np.float64)
        was_split, is_split = source >= FIRST_DIM, target >= FIRST_DIM
        was_partial = (source == SUM) | (source == MAX)
        scattered = was_partial & is_split
        moved = was_split & is_split & (source != target)
        gathered = was_split & (target == WHOLE)
        reduced = was_partial & (target == WHOLE)
        remade = (source == MAX) & (target == SUM)
        kept = (source == SUM) & (target == SUM)
        replicated = (source == WHOLE) & (target == WHOLE)
        added = (source == WHOLE) & (target == SUM)
        reduces = (scattered | reduced | remade).any(axis=2)[:, :, None]
        moves = (moved | gathered).any(axis=2)[:, :, None]
        optional = reduced | remade | ((added | kept) & (reduces | moves))
        optional = (optional | (replicated & (reduces | kept.any(axis=2)[:, :, None]))) & (sizes > 1)
        sliced = np.where((source == WHOLE) & is_split, sizes, 1.0).prod(axis=2)
        volume = local_elements(coding, codes, shape)[:, None] * shape.dtype.bits / 8 / sliced
        whole_sizes = sizes.astype(np.int64)
        left = np.stack(
            [
                dim.size // np.where((source == number) | (target == number), whole_sizes, 1).prod(axis=2)
                for dim in shape.dims
                for number in [coding.number_of_dim(dim.name)]
            ]
            or [np.ones((len(codes), len(codes)), np.int64)],
            axis=2,
        )
        impossible = ((target == MAX) & (source != MAX)).any(axis=2)
        return _Work(
            sizes,
            volume,
            scattered,
            moved,
            gathered,
            reduced,
            remade,
            kept,
            replicated,
            added,
            impossible,
            optional,
            left,
        )

    def fitting(self, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """The pairs for which temporary splits of the chosen axes may save something and have room."""
        chips = int(self.sizes[chosen].prod())
        return (~chosen | self.optional).all(axis=2) & (self.left % chips == 0).any(axis=2)

    def priced(
        self, chosen: NDArray[np.bool_], pairs: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bytes and steps of these pairs, with temporary splits of the chosen axes."""

        def factor(axes: NDArray[np.bool_]) -> NDArray[np.float64]:
            return np.where(axes, self.sizes, 1.0).prod(axis=1)

        reduced, replicated, added = self.reduced[pairs], self.replicated[pairs], self.added[pairs]
        made = reduced | self.remade[pairs]
        reducing = factor(self.scattered[pairs] | ((made | self.kept[pairs]) & chosen))
        gathering = factor(self.gathered[pairs] | ((reduced | replicated) & chosen))
        full = factor(made & ~chosen)
        moving = factor(self.moved[pairs])
        volume = self.volume[pairs] / factor((replicated | added) & chosen)
        scattered = volume / reducing
        received = volume * (1 - 1 / reducing) + 2 * scattered * (1 - 1 / full)
        received += scattered * (1 - 1 / moving) + scattered * (gathering - 1)
        steps = (reducing > 1).astype(np.float64) + (full > 1) + (moving > 1) + (gathering > 1)
        return received, steps


def unique_codes(groups: Iterable[Codes]) -> Codes:
    """All codes that occur, sorted."""
    arrays = list(groups)
    return np.unique(np.concatenate(arrays)) if arrays else np.zeros(0, np.int64)
