"""Contraction: the sum of a product over named dimensions, which is every matmul and every einsum of two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from shardwright.ir.operation import SUM, Arg, AxisRow, Context, Operation, misuse, pass_through, same_dtype
from shardwright.ir.types import Dim, DType, Shape


@dataclass(frozen=True)
class Contract(Operation):
    """`a @[D] b`: the product of a and b by name, summed over `dims`; dimensions of both that stay are batched.

    Accumulates in f32 (in int32 between integers) and rounds to the result's format. An axis on a contracted
    dimension of both operands leaves a partial sum. An operand's partial sums pass where the other is whole, save
    those of narrow integers: they wrap around at fewer bits than the result.
    """

    keyword: ClassVar[str] = "@"
    arity: ClassVar[tuple[int, int]] = (2, 2)
    is_product: ClassVar[bool] = True
    takes_f8: ClassVar[bool] = True
    dims: tuple[str, ...]

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        left, right = args[0].tensor, args[1].tensor
        dtype = same_dtype("@", args)
        for name in self.dims:
            for arg, other in ((args[0], args[1]), (args[1], args[0])):
                if name not in arg.names:
                    raise misuse(
                        "contraction-dimension",
                        f"@[{''.join(self.dims)}] sums over {name}, which {arg.text}: {arg.shape} does not have",
                        f"only dimensions of both operands can be summed; sum[{name}]({other.text}) sums one of them"
                        if name in other.names
                        else f"neither operand has {name}",
                    )
        for name in left.names:
            if name in right and left.size(name) != right.size(name):
                raise misuse(
                    "size-mismatch",
                    f"@: {name} is {left.size(name)} in {args[0].text} and {right.size(name)} in {args[1].text}",
                )
        kept = [dim for dim in left.dims if dim.name not in self.dims]
        kept += [dim for dim in right.dims if dim.name not in self.dims and dim.name not in left]
        declared = context.declared
        dtype = accumulator(dtype) if declared is None else accumulated(dtype, declared.dtype)
        return (in_declared_order(Shape(dtype, tuple(kept)), declared),)

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield from pass_through(args, results[0], results[0].names)
        for name in self.dims:
            yield AxisRow((name, name), (SUM,))
        operands, result = args[0].tensor.dtype, results[0].dtype
        if operands.is_float or (operands.bits >= result.bits and operands is not DType.BOOL) or operands is result:
            yield AxisRow((SUM, None), (SUM,))
            yield AxisRow((None, SUM), (SUM,))


def in_declared_order(made: Shape, declared: Shape | None) -> Shape:
    """A result with its dimensions as they are declared, where these are the same."""
    if declared is None or set(declared.names) != set(made.names):
        return made
    return Shape(made.dtype, tuple(sorted(made.dims, key=lambda dim: declared.names.index(dim.name))))


def accumulated(operands: DType, declared: DType) -> DType:
    """The declared format if an accumulator of these operands can be rounded to it, else that of `accumulator`. Of
    bools it is whether there is a product, or, in int32, how many there are."""
    if operands is DType.BOOL:
        return declared if declared is DType.INT32 else operands
    fits = declared.is_float and not declared.is_f8 if operands.is_float else declared is DType.INT32
    return declared if fits else accumulator(operands)


def accumulator(operands: DType) -> DType:
    """The format of a product for which none is declared: wider than operands of 8 bits."""
    return DType.INT32 if operands.is_integer else DType.F32 if operands.is_f8 else operands


def summed_dims(left: Shape, right: Shape, declared: Shape | None) -> tuple[str, ...]:
    """The dimensions that a bare `@` sums over: what the declared result lacks, else the one shared dimension.

    Raises a `DiagnosticError` without a place where that is not clear.
    """
    shared: list[Dim] = [dim for dim in left.dims if dim.name in right]
    if declared is not None:
        for operand, other in ((left, right), (right, left)):
            for name in operand.names:
                if name not in declared and name not in other:
                    raise misuse(
                        "contraction-dimension",
                        f"@: the declared result lacks {name}, which only {operand} has",
                        "only dimensions of both operands can be summed;"
                        f" keep {name} in the result, or sum it first with sum[{name}](...)",
                    )
        return tuple(dim.name for dim in shared if dim.name not in declared)
    if len(shared) == 1:
        return (shared[0].name,)
    if not shared:
        raise misuse(
            "contraction-dimension",
            "@: the operands share no dimension to sum over",
            "for an outer product declare the result's type, or multiply with *",
        )
    names = ", ".join(dim.name for dim in shared)
    raise misuse(
        "contraction-dimension",
        f"@: the operands share {names}; which of them is summed?",
        f"name them, as in @[{shared[-1].name}], or declare the result's type",
    )
