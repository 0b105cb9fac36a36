"""Random numbers as a function of a key and of the global index, hence the same on every layout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from shardwright.ir.operation import Arg, AxisRow, Context, Operation, misuse, pass_through
from shardwright.ir.ops.elementwise import broadcast_dims
from shardwright.ir.ops.reductions import dims_static
from shardwright.ir.text.syntax import Static
from shardwright.ir.types import DType, Shape

_WORDS = (DType.INT32, DType.UINT32)


@dataclass(frozen=True)
class Uniform(Operation):
    """`uniform[V](key, at)`: random numbers between 0 and 1, both exclusive, f32: the operands' dimensions, then V.

    The element at index i along V (row by row where several dimensions are named) is made of the first word that
    the generator threefry2x32 with 20 rounds (Salmon et al. 2011) gives for the key (key, at) and the counter (0, i):
    of its bits w, (w + 1/2) / 2^32 rounded to f32, and at most 1 - 2^-24. `key` and `at` are int32 or uint32.
    """

    keyword: ClassVar[str] = "uniform"
    arity: ClassVar[tuple[int, int]] = (2, 2)
    dims: tuple[str, ...]

    @property
    def statics(self) -> tuple[Static, ...]:
        return (dims_static(self.dims),)

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        for arg, role in zip(args, ("key", "position in its stream"), strict=True):
            if arg.shape is not None and arg.shape.dtype not in _WORDS:
                raise misuse(
                    "dtype-mismatch",
                    f"uniform: the {role} is int32 or uint32, and {arg.text} is {arg.shape.dtype}",
                    f"convert it: convert[uint32]({arg.text})",
                )
            for name in self.dims:
                if name in arg.names:
                    raise misuse(
                        "wrong-dimensions",
                        f"uniform[{''.join(self.dims)}]: {arg.text}: {arg.shape} has {name} too",
                        "numbers differ along the dimensions between the brackets by themselves",
                    )
        over = broadcast_dims(self.keyword, args, None)
        made = Shape(DType.F32, (*over, *(context.dim(name) for name in self.dims)))
        counters = made.elements // max(Shape(DType.F32, over).elements, 1)
        if counters > 2**31:
            raise misuse("too-large", f"uniform[{''.join(self.dims)}]: {counters} numbers for a key, more than 2^31")
        return (made,)

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield from pass_through(args, results[0], results[0].names)
