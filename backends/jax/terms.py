"""Operands as the expressions of emitted source: a name with its type, or a number, aligned by dimension name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardwright.backends.jax.source_text import (
    JAX_DTYPES,
    Forms,
    UseHelper,
    block_start,
    check_dimension,
    number_text,
    transposed,
)
from shardwright.backends.simulation.digit_factors import Digits
from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Arg, Number
from shardwright.ir.ops.reductions import far_position
from shardwright.ir.types import DType, TensorType


@dataclass(frozen=True)
class Term:
    """An operand: Python code that is a name or a subscript, and its type; a literal has no type.

    `stacked` is for an entry of an array with further leading axes: the array's name, and the indices of the entry.
    `merged` is for a matrix whose dimensions but the last are one, as the product that reads it sums them.
    """

    code: str
    kind: TensorType | None
    number: Number | None = None
    stacked: tuple[str, tuple[str, ...]] | None = None
    merged: bool = False

    @property
    def tensor(self) -> TensorType:
        assert self.kind is not None
        return self.kind

    @property
    def arg(self) -> Arg:
        """The operand as operations take it."""
        return Arg(self.code, None if self.kind is None else self.kind.shape, self.number)


@dataclass(frozen=True)
class Lowering:
    """Where expressions are lowered: the mesh and digits, and a way to ask for one of the module's helpers."""

    digits: Digits
    use_helper: UseHelper
    forms: Forms

    @property
    def mesh(self) -> Mesh:
        return self.digits.mesh

    def size(self, kind: TensorType, dim: str) -> int:
        """The extent of a dimension on one chip."""
        return kind.local_shape(self.mesh)[kind.names.index(dim)]

    def global_index(self, kind: TensorType, dim: str) -> str:
        """The global indices along a dimension that the chip holds, as an array of one dimension."""
        n = self.size(kind, dim)
        axes = self.digits.ordered_axes(kind, dim)
        if not axes:
            return f"lax.iota(jnp.int32, {n})"
        if self.digits.is_contiguous(kind, dim):
            return f"({block_start(axes, n)} + lax.iota(jnp.int32, {n}))"
        self.use_helper("global_index")
        return f"global_index({self._layout(kind, dim)})"

    def local_place(self, index: str, kind: TensorType, dim: str) -> str:
        """The place on the chip of a global index, out of range (negative ones included) where it has none."""
        axes = self.digits.ordered_axes(kind, dim)
        if not axes:
            return index
        if self.digits.is_contiguous(kind, dim):
            return f"{index} - {block_start(axes, self.size(kind, dim))}"
        self.use_helper("local_place")
        return f"local_place({index}, {self._layout(kind, dim)})"

    def _layout(self, kind: TensorType, dim: str) -> str:
        layout = self.digits.layout(kind, dim)
        return f"({', '.join(f'({axis!r}, {n})' for axis, n in layout)},)"


def axis_of(kind: TensorType, dim: str) -> int:
    """The array axis of a dimension."""
    return kind.names.index(dim)


def axes_of(kind: TensorType, dims: Sequence[str]) -> str:
    """The array axes of dimensions as reductions take them: `1`, or `(1, 2)`."""
    axes = sorted(axis_of(kind, name) for name in dims)
    return str(axes[0]) if len(axes) == 1 else f"({', '.join(map(str, axes))})"


def aligned(term: Term, names: Sequence[str], dtype: DType | None = None) -> str:
    """The operand so that it broadcasts against an array with these dimensions.

    A literal is written in the format `dtype` that it meets.
    """
    if term.number is not None:
        return literal(term.number, dtype or DType.F32)
    return spread(term.code, term.tensor.names, names)


def near_positions(
    pos: Term, names: Sequence[str], positions: int, queries: int, window: int | str | None
) -> tuple[str, int | str | None]:
    """The position of the first query, aligned, and its window, code where that is an operand: no further from so many
    positions than they see anything else there, so that no query's position is beyond int32."""
    code = aligned(pos, names, DType.INT32)
    if not isinstance(window, str):
        far = far_position(positions, queries, window)
        if far is not None:
            small = pos.number is not None and int(code) <= far
            return code if small else f"jnp.minimum({code}, {far})", window
    here = f"jnp.minimum({code}, {positions})"
    return here, f"jnp.clip({window} - ({code} - {here}), 0, {positions + queries})"


def subscript(index: Sequence[str]) -> str:
    """`[i, None]` of these words for axes, without colons at the end; empty where there are no others."""
    while index and index[-1] == ":":
        index = index[:-1]
    return f"[{', '.join(index)}]" if index else ""


def spread(code: str, own: Sequence[str], names: Sequence[str]) -> str:
    """An array with dimensions `own`, transposed and given size-1 dimensions to broadcast against `names`."""
    present = [name for name in names if name in own]
    code = transposed(code, [own.index(name) for name in present])
    inner = list(names[names.index(present[0]) :]) if present else []
    if len(inner) == len(present):
        return code
    return code + subscript([":" if name in own else "None" for name in inner])


def expanded(code: str, own: Sequence[str], names: Sequence[str]) -> str:
    """As `spread`, and with a size-1 dimension for every missing one, the leading ones too."""
    present = [name for name in names if name in own]
    code = transposed(code, [own.index(name) for name in present])
    return code + subscript([":" if name in own else "None" for name in names])


def literal(number: Number, dtype: DType) -> str:
    """A number in a format: integers wrap around as values of that format do."""
    if dtype.is_float:
        value = number.value
        whole = isinstance(value, int) and abs(value) < 2**31 and value == number.as_float(dtype)
        return number_text(value if whole else number.as_float(dtype))
    if dtype is DType.BOOL:
        return number_text(number.value != 0)
    if dtype is DType.UINT32:
        value = int(number.value) % 2**32
        return f"np.uint32({value})" if value >= 2**31 else str(value)  # JAX takes a bare number for an int32
    low = -(2 ** (dtype.bits - 1))
    return number_text(((int(number.value) - low) & (2**dtype.bits - 1)) + low)


def cast(code: str, source: DType, target: DType) -> str:
    """The array in another format; the code itself where that is its own."""
    return code if source is target else f"{code}.astype({JAX_DTYPES[target]})"


def einsum_letters(names: Sequence[str]) -> dict[str, str]:
    """A letter for each dimension: its own in lower case where that is free, else in upper case, else any."""
    letters: dict[str, str] = {}
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    for name in names:
        own = check_dimension(name)[0]
        free = [c for c in (own.lower(), own.upper(), *alphabet, *alphabet.upper()) if c not in letters.values()]
        letters.setdefault(name, free[0])
    return letters
