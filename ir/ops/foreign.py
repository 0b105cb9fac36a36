"""Functions that the language has no words for, called by name with whole operands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from shardwright.ir.operation import Arg, AxisRow, Context, Operation, misuse, pass_through
from shardwright.ir.ops.reductions import dims_static, number_static
from shardwright.ir.text.syntax import OptionStatic, Static, TextStatic, WordStatic
from shardwright.ir.types import Dim, DType, Shape


@dataclass(frozen=True)
class Foreign(Operation):
    """`foreign[cumprod, BT, f32, splits=B, params='{"axis": 1}'](x)`: one of `jax.lax`, or a kernel of one's own.

    The result has these dimensions, as long as an operand's or as declared, and this number format. An axis may split
    the dimensions of `splits`, wherever they stand; along all others operands are whole. `flops` are all that it
    computes, which with its bytes is its price. `params` are its other arguments, as JSON; `result=1` is the second of
    several results. Kernels of one's own are declared with `shardwright.kernel`.
    """

    keyword: ClassVar[str] = "foreign"
    arity: ClassVar[tuple[int, int]] = (1, 16)
    takes_f8: ClassVar[bool] = True
    name: str
    dims: tuple[str, ...]
    dtype: DType
    splits: tuple[str, ...] = ()
    flops: float = 0
    params: str = ""
    result: int = 0

    @property
    def statics(self) -> tuple[Static, ...]:
        over = (dims_static(self.dims),) if self.dims else ()
        made: list[Static] = [WordStatic((self.name,)), *over, WordStatic((str(self.dtype),))]
        if self.splits:
            made.append(OptionStatic("splits", dims_static(self.splits)))
        if self.flops:
            made.append(OptionStatic("flops", number_static(self.flops)))
        if self.result:
            made.append(OptionStatic("result", number_static(self.result)))
        if self.params:
            made.append(OptionStatic("params", TextStatic(self.params)))
        return tuple(made)

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        known: dict[str, Dim] = {}
        for arg in args:
            for dim in arg.tensor.dims:
                if known.setdefault(dim.name, dim) != dim:
                    before = known[dim.name].size
                    raise misuse("size-mismatch", f"{self.name}: {dim.name} is {before} and {dim.size} in its operands")
        for name in self.splits:
            if name not in self.dims or name not in known:
                where = "an operand" if name in self.dims else "the result"
                raise misuse("wrong-dimensions", f"{self.name}: splits={name}, and {where} has no {name}")
        return (Shape(self.dtype, tuple(known.get(name) or context.dim(name) for name in self.dims)),)

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield from pass_through(args, results[0], self.splits)
