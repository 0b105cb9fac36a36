"""Sets of layouts of one shape as arrays, and which of them divide.

A layout is coded as one integer: for each mesh axis a digit that says what the axis does to the value
(nothing, a partial sum, maximum or softmax, or which dimension it splits).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from shardwright.ir.mesh import Mesh
from shardwright.ir.types import AnyPartial, DType, OpenType, Placement, Reduction, Shape, State, TensorType

Codes = NDArray[np.int64]


WHOLE, SUM, MAX, SOFTMAX, FIRST_DIM = 0, 1, 2, 3, 4


_REDUCTIONS = {Reduction.SUM: SUM, Reduction.MAX: MAX, Reduction.SOFTMAX: SOFTMAX}


@dataclass(frozen=True)
class StateNumbering:
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
            return _REDUCTIONS[state]
        return WHOLE if state is None else self.number_of_dim(state)

    def number_of_dim(self, name: str) -> int:
        """Later dimensions come first, so that of equal choices the hidden dimension is split before the batch."""
        return self.radix - 1 - self.dims.index(name)

    def state(self, number: int) -> State:
        match number:
            case 0:
                return None
            case 1 | 2 | 3:
                return list(_REDUCTIONS)[number - SUM]
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
        """The states of each axis: [codes, axes]. The array cannot be written to."""
        return _digits(self.radix, len(self.mesh), codes.tobytes())

    def dividing_digits(self, codes: Codes) -> NDArray[np.int64]:
        """The states of the axes of several chips: [codes, these axes]."""
        return self.digits(codes)[:, [size > 1 for size in self.mesh.values()]]

    def partial(self, codes: Codes) -> NDArray[np.bool_]:
        """Which layouts are partial over an axis."""
        digits = self.digits(codes)
        return np.any((digits > WHOLE) & (digits < FIRST_DIM), axis=1)

    def admitted(self, codes: Codes, kind: OpenType) -> NDArray[np.bool_]:
        """Which layouts fill the holes of a type and change nothing else (`OpenType.admits`); none of one in flight."""
        digits = self.digits(codes)
        ok = np.full(len(codes), not kind.in_flight)

        def written(number: int, axes: Collection[str]) -> NDArray[np.bool_]:
            """Which give this state to these axes and no others."""
            return ((digits == number) == np.array([axis in axes for axis in self.mesh], np.bool_)).all(axis=1)

        for dim, axes in zip(kind.dims, kind.splits, strict=True):
            if axes is not None:
                ok &= written(self.number_of_dim(dim.name), axes)
        partial = kind.partial
        for reduction, number in _REDUCTIONS.items():
            if not isinstance(partial, AnyPartial):
                ok &= written(number, partial.axes if partial is not None and partial.kind is reduction else ())
            elif partial.kind not in (None, reduction):
                ok &= written(number, ())
        return ok

    def combine(self, per_axis: Sequence[NDArray[np.int64]]) -> Codes:
        """All combinations of one choice per axis, given the state numbers that each choice has."""
        codes = np.zeros(1, np.int64)
        for i, numbers in enumerate(per_axis):
            codes = (codes[:, None] + numbers[None, :] * self.radix**i).reshape(-1)
        return codes

    def valid(
        self, codes: Codes, shape: Shape, allowed: Callable[[str, str], bool], declared: Mapping[str, int]
    ) -> NDArray[np.bool_]:
        """Which layouts exist: extents and declared sizes divide, no axis splits what it may not, partial in one way
        only, and no bool a partial sum."""
        digits = self.digits(codes)
        ok = (digits[:, self.idle] == WHOLE).all(axis=1)
        for i, (axis, size) in enumerate(self.mesh.items()):
            alone = np.ones(self.radix, np.bool_)
            alone[SUM] = shape.dtype is not DType.BOOL
            for dim in shape.dims:
                divides = math.gcd(dim.size, declared[dim.name]) % size == 0
                alone[self.number_of_dim(dim.name)] = divides and allowed(dim.name, axis)
            ok &= alone[digits[:, i]]
        if len(self.mesh) == 1:
            return ok
        ways = [(digits == way).any(axis=1) for way in (SUM, MAX, SOFTMAX)]
        ok &= ways[0].astype(np.int8) + ways[1] + ways[2] <= 1
        if ways[2].any() and shape.dims:
            ok &= ~(ways[2] & (digits == self.number_of_dim(shape.names[-1])).any(axis=1))
        for first, *others in self.together:
            for other in others:
                ok &= digits[:, first] == digits[:, other]
        sizes = np.array(list(self.mesh.values()), np.int64)
        for dim in shape.dims:
            chips = np.where(digits == self.number_of_dim(dim.name), sizes, 1).prod(axis=1)
            ok &= math.gcd(dim.size, declared[dim.name]) % chips == 0
        return ok


@lru_cache(maxsize=1 << 10)
def _digits(radix: int, n_axes: int, codes: bytes) -> NDArray[np.int64]:
    """The digits of codes, which are asked for again and again."""
    powers = radix ** np.arange(n_axes, dtype=np.int64)
    made = np.frombuffer(codes, np.int64)[:, None] // powers[None, :] % radix
    made.flags.writeable = False
    return made


def local_elements(coding: StateNumbering, codes: Codes, shape: Shape) -> NDArray[np.float64]:
    """Elements that a chip holds in each layout."""
    sizes = np.array(list(coding.mesh.values()), np.float64)
    return shape.elements / np.where(coding.digits(codes) >= FIRST_DIM, sizes, 1.0).prod(axis=1)


def addends_made(coding: StateNumbering, codes: Codes, shape: Shape) -> NDArray[np.float64]:
    """Elements of addends that a chip makes in going from each layout (rows) to each other (columns): they are made in
    full on every chip, which costs work though nothing is received."""
    digits = coding.digits(codes)
    if not (digits == SUM).any():
        return np.zeros((len(codes), len(codes)))
    bits = np.left_shift(1, np.arange(digits.shape[1], dtype=np.int64))
    sums = np.where(digits == SUM, bits, 0).sum(axis=1)
    made = (sums[None, :] & ~sums[:, None]) > 0
    return np.where(made, local_elements(coding, codes, shape), 0.0)


def unique_codes(groups: Iterable[Codes]) -> Codes:
    """All codes that occur, sorted. (`np.unique` would import masked arrays, a tenth of what a small file takes.)"""
    arrays = list(groups)
    if not arrays:
        return np.zeros(0, np.int64)
    codes = np.sort(np.concatenate(arrays))
    return codes[np.append(True, codes[1:] != codes[:-1])[: len(codes)]]
