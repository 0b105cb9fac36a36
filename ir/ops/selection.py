"""The greatest elements along a dimension, with their indices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from shardwright.ir.operation import Arg, AxisRow, Context, Operation, misuse
from shardwright.ir.ops.indexing import axes_static
from shardwright.ir.ops.reductions import dims_static, number_static, require_dims
from shardwright.ir.text.syntax import ArrowStatic, OptionStatic, Static
from shardwright.ir.types import Dim, DType, Shape


@dataclass(frozen=True)
class Topk(Operation):
    """`values, ids = topk[V -> C, k=40](l)`: the 40 greatest elements along V, greatest first, and their indices.

    C stands in the place of V and has extent k; the indices are int32 and global. Of equal elements the one with the
    lower index comes first; NaN counts as greater than every number, and zeros of either sign are equal.

    With `by=yz` block by block: each block of the digits y and z gives an equal share of the k elements, one block
    after the other, so that a chip chooses among the elements that it holds. `decompose` lets V be split so.
    """

    keyword: ClassVar[str] = "topk"
    arity: ClassVar[tuple[int, int]] = (1, 1)
    result_words: ClassVar[tuple[str, ...]] = ("values", "ids")
    dim: str
    target: str
    k: int
    by: tuple[str, ...] = ()

    @property
    def statics(self) -> tuple[Static, ...]:
        by = (OptionStatic("by", axes_static(self.by)),) if self.by else ()
        arrow = ArrowStatic(dims_static([self.dim]), dims_static([self.target]))
        return (arrow, OptionStatic("k", number_static(self.k)), *by)

    @property
    def named_axes(self) -> tuple[str, ...]:
        return self.by

    def share(self, n: int) -> int:
        """How many elements each of n blocks gives. Raises where that is no whole number."""
        if self.k % n:
            raise misuse("not-divisible", f"topk: k={self.k} is not divisible by the {n} blocks of {' '.join(self.by)}")
        return self.k // n

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        require_dims(self.keyword, args[0], [self.dim])
        context.dim(self.target)
        shape = args[0].tensor
        if shape.dtype is DType.BOOL:
            raise misuse("dtype-mismatch", f"topk of bool: convert it first, convert[int32]({args[0].text})")
        if self.target != self.dim and self.target in shape:
            raise misuse(
                "wrong-dimensions", f"topk would give {args[0].text}: {shape} the dimension {self.target} twice"
            )
        if not 1 <= self.k <= shape.size(self.dim):
            raise misuse("out-of-range", f"topk: {self.dim}={shape.size(self.dim)} has no {self.k} greatest elements")
        dims = tuple(Dim(self.target, self.k) if dim.name == self.dim else dim for dim in shape.dims)
        return Shape(shape.dtype, dims), Shape(DType.INT32, dims)

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        for name in args[0].names:
            if name != self.dim:
                yield AxisRow((name,), (name, name))

    def named_axis_rows(self, axis: str, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow] | None:
        if axis not in self.by:
            return None
        return [*self.axis_rows(args, results), AxisRow((self.dim,), (self.target, self.target))]
