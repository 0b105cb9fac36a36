"""Grouped products: contraction in which an index says for each row which of several matrices it meets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from shardwright.ir.operation import SUM, Arg, AxisRow, Context, Operation, misuse, pass_through, same_dtype
from shardwright.ir.ops.contraction import accumulated, in_declared_order
from shardwright.ir.ops.reductions import dims_static, require_dims
from shardwright.ir.text.syntax import Static
from shardwright.ir.types import Dim, Shape


@dataclass(frozen=True)
class Grouped(Operation):
    """`grouped[X, E](x, w, expert)`: sum over e of x[..., e] * w[expert[...], e, f], a grouped matrix product.

    Result: the dimensions of x but those summed, then the others of `expert`, then the others of w. Accumulates in f32
    as contraction does; an index beyond w gives zeros. In a w split over X a chip computes the rows of its own indices,
    and has zeros for the others, so the result is a partial sum. It is linear in x and in w.
    """

    keyword: ClassVar[str] = "grouped"
    arity: ClassVar[tuple[int, int]] = (3, 3)
    is_product: ClassVar[bool] = True
    dim: str
    dims: tuple[str, ...]

    @property
    def statics(self) -> tuple[Static, ...]:
        return (dims_static([self.dim]), dims_static(self.dims))

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        require_dims(self.keyword, args[0], self.dims)
        require_dims(self.keyword, args[1], [self.dim, *self.dims])
        x, w, expert = (arg.tensor for arg in args)
        dtype = same_dtype(self.keyword, args[:2])
        if not dtype.is_float:
            raise misuse(
                "dtype-mismatch",
                f"grouped multiplies floats, and {args[0].text} is {dtype}",
                f"convert them first: convert[bf16]({args[0].text})",
            )
        if not expert.dtype.is_integer:
            raise misuse(
                "dtype-mismatch",
                f"grouped takes integer indices, and {args[2].text} is {expert.dtype}",
                f"its operands are rows, matrices and indices; or convert these, convert[int32]({args[2].text})",
            )
        for arg, summed in ((args[0], self.dims), (args[2], ())):
            for name in w.names:
                if name in arg.names and (name == self.dim or name not in summed):
                    raise misuse(
                        "wrong-dimensions",
                        f"grouped[{self.dim}, {''.join(self.dims)}]: {arg.text}: {arg.shape} has {name} as"
                        f" {args[1].text}: {w} has",
                        f"rows have dimensions of their own; rename[{name} -> ...] one of the two",
                    )
        for first, second in ((args[0], args[1]), (args[0], args[2])):
            for dim in first.tensor.dims:
                if dim.name in second.names and second.tensor.size(dim.name) != dim.size:
                    raise misuse(
                        "size-mismatch",
                        f"grouped: {dim.name} is {dim.size} in {first.text} and"
                        f" {second.tensor.size(dim.name)} in {second.text}",
                    )
        declared = context.declared
        dtype = dtype if declared is None else accumulated(dtype, declared.dtype)
        columns = tuple(dim for dim in w.dims if dim.name not in (self.dim, *self.dims))
        return (in_declared_order(Shape(dtype, (*self.rows(x, expert), *columns)), declared),)

    def rows(self, x: Shape, expert: Shape) -> tuple[Dim, ...]:
        """The dimensions of the rows: those of x that are not summed, then the others of the indices."""
        own = tuple(dim for dim in x.dims if dim.name not in self.dims)
        return (*own, *(dim for dim in expert.dims if dim.name not in x))

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield from pass_through(args, results[0], results[0].names)
        for name in self.dims:
            yield AxisRow((name, name, None), (SUM,))
        yield AxisRow((None, self.dim, None), (SUM,))
        yield AxisRow((SUM, None, None), (SUM,))
        yield AxisRow((None, SUM, None), (SUM,))
