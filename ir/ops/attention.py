"""Attention as one operation, and the join of what two pieces of keys and values give."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from shardwright.ir.operation import SOFTMAX, SUM, Arg, AxisRow, Context, Operation, misuse, same_dtype
from shardwright.ir.ops.indexing import page_of_row, require_table
from shardwright.ir.ops.reductions import dims_static, number_static, require_dims, require_positions
from shardwright.ir.text.syntax import OptionStatic, Static, WordStatic
from shardwright.ir.types import ON_DEVICE, ON_HOST, Dim, DType, Placement, Shape, State, TensorType


@dataclass(frozen=True)
class Attend(Operation):
    """`attend[T, D, causal=L, window=w, scale=s, softcap=c](q, k, v, pos=p, length=n)`: attention over the positions T.

    With the scores a = s (q @[D] k), or c tanh(a / c) under a `softcap`, it is `softmax[T](a) @[T] v`: in f32 up to the
    weights, which are rounded to the format of v before they are multiplied with it. `causal=L` lets query l see
    position t where t <= l + pos, `window=w` of those the last w, `length=n` those with t < n; `pos` and `length` are
    int32, scalars or one for each element of dimensions of q, `pos` 0 if left out. So is w where it is an operand:
    `attend[T, D, causal=L](q, k, v, window=w)`. A query that sees no position gives zeros. With `lse` a second result
    has, in f32, the logarithm of the sum of exp(a) for each query, -inf where it sees none: log-sum-exp.

    q has D and no T, k has both, v has T. All else that k and v have, q has too, but for the width of the result: the
    one other dimension of v, D again or any that q lacks. The result has q's dimensions and then the width.

    `attend[PS, D](q, k, v, pages=t)` reads pages: k and v are pools of P pages of S slots. The table t, int32, numbers
    for each row, by dimensions of q, the pages of the row, by one of its own: slot s of its page m is position m S + s.
    An entry that is no page of the pool hides its positions.

    Where q, k and v lie on the host it is computed there, and leaves its results there; positions are on the device,
    and so is all of attention over pages.
    """

    keyword: ClassVar[str] = "attend"
    arity: ClassVar[tuple[int, int]] = (3, 3)
    result_words: ClassVar[tuple[str, ...]] = ("o", "lse")
    n_lying: ClassVar[int | None] = 3
    along: str
    contracted: str
    causal: str | None = None
    window: int | None = None
    scale: float = 1.0
    softcap: float = 0.0
    lse: bool = False
    given: tuple[str, ...] = ()
    """The operands behind q, k and v: `pos`, `length`, `window`, `pages`."""
    page: str | None = None
    """The dimension of k and v that numbers the pages of the pool; `along` numbers the slots of a page then."""

    @property
    def keywords(self) -> tuple[str, ...]:
        return self.given

    @property
    def statics(self) -> tuple[Static, ...]:
        made: list[Static] = [dims_static(self.pool), dims_static([self.contracted])]
        if self.causal is not None:
            made.append(OptionStatic("causal", dims_static([self.causal])))
        for name, value, default in (
            ("window", self.window, None), ("scale", self.scale, 1.0), ("softcap", self.softcap, 0.0),
        ):  # fmt: skip
            if value is not None and value != default:
                made.append(OptionStatic(name, number_static(value)))
        return (*made, WordStatic(("lse",))) if self.lse else tuple(made)

    def at(self, name: str) -> int | None:
        """The number of the operand `pos`, `length`, `window` or `pages`, None where it is left out."""
        return 3 + self.given.index(name) if name in self.given else None

    @property
    def pool(self) -> tuple[str, ...]:
        """The dimensions of keys and values that number positions: T, or those of pages and of slots."""
        return (self.along,) if self.page is None else (self.page, self.along)

    @property
    def has_window(self) -> bool:
        return self.window is not None or "window" in self.given

    def rows(self, q: Shape) -> Shape:
        """One number for each query: the log-sum-exp."""
        return Shape(DType.F32, tuple(dim for dim in q.dims if dim.name != self.contracted))

    def seen(self, q: Shape, k: Shape, windows: Sequence[int] = ()) -> tuple[int, int]:
        """The share of positions that a query sees on average, as numerator and denominator. Queries are at the last
        positions: a single query sees all of them, as many queries as positions see half on average. `windows` are the
        known values of the operand `window`, one for each layer."""
        positions = k.size(self.along)
        if self.causal is None:
            return 2 * positions, 2 * positions
        on_average = max(2 * positions - q.size(self.causal) + 1, positions + 1)
        each = [min(on_average, 2 * window) for window in windows or (self.window or positions,)]
        return sum(each), 2 * positions * len(each)

    def read(self, q: Shape, k: Shape, windows: Sequence[int] = ()) -> int:
        """Positions of keys and values that are read: those that queries see, on average of `windows`."""
        positions = k.size(self.along)
        if self.causal is None:
            return positions
        seen = q.size(self.causal) - 1
        each = [min(positions, window + seen) for window in windows or (self.window or positions,)]
        return -(-sum(each) // len(each))

    def gathered(self, q: Shape, pool: Shape, table: Shape | None) -> Shape:
        """The shape of keys or values once the pages of each row stand one after another. Rows come first, and among
        them those that the pool has too. Without pages it is the shape of the pool."""
        if table is None:
            return pool
        own = page_of_row(table.names, q)
        rows = [dim for dim in table.dims if dim.name != own]
        rows.sort(key=lambda dim: dim.name not in pool)
        positions = Dim(self.along, pool.size(self.along) * table.size(own))
        rest = [positions if dim.name == self.along else dim for dim in pool.dims if dim.name != self.page]
        return Shape(pool.dtype, (*rows, *(dim for dim in rest if dim not in rows)))

    def held(self, pool: Shape, table: Shape | None) -> tuple[int, int]:
        """The share of the table's entries, as two numbers, that can be pages where no two rows have the same: no more
        than the pool has, which rows that it numbers have each to themselves. One where there are no pages."""
        if table is None:
            return 1, 1
        entries = math.prod(dim.size for dim in table.dims if dim not in pool.dims)
        return min(pool.size(str(self.page)), entries), entries

    def gathered_type(self, q: TensorType, pool: TensorType, table: TensorType) -> TensorType:
        """The type of `gathered` keys or values on chips; of pages that chips have apart each has what is its own."""
        shape = self.gathered(q.shape, pool.shape, table.shape)
        splits = ((pool if name in pool.names else table).split(name) for name in shape.names)
        return TensorType(shape.dtype, shape.dims, tuple(splits))

    def width(self, args: Sequence[Arg]) -> str:
        """The dimension of v that is the result's last."""
        return next(name for name in args[2].names if name not in self.pool and name not in self._kept(args))

    def _kept(self, args: Sequence[Arg]) -> set[str]:
        return set(args[0].names) - {self.contracted}

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        same_dtype(self.keyword, args[:3])
        table = self.at("pages")
        if table is not None:
            args = self._gathered_args(args, args[table])
        (q, k, v), T, D = (arg.tensor for arg in args[:3]), self.along, self.contracted
        if not q.dtype.is_float:
            raise misuse("dtype-mismatch", f"attend takes floating-point values, and {args[0].text} is {q.dtype}")
        if T == D:
            raise misuse(
                "wrong-dimensions",
                f"attend[{T}, {D}] names the positions of keys, then what scores are summed over: they differ",
            )
        if T in q:
            raise misuse(
                "wrong-dimensions",
                f"attend[{T}, {D}]: {T} numbers the positions of keys and values, and {args[0].text}: {q} has it",
                f"give the positions of queries another name, as in attend[{T}, {D}, causal=L]",
            )
        require_dims(self.keyword, args[0], [D])
        require_dims(self.keyword, args[1], [T, D])
        require_dims(self.keyword, args[2], [T])
        kept = {dim.name: dim.size for dim in q.dims if dim.name != D}
        for arg, own in ((args[1], {T, D}), (args[2], {T})):
            for dim in arg.tensor.dims:
                if dim.name in kept and kept[dim.name] != dim.size:
                    raise misuse(
                        "size-mismatch",
                        f"attend: {dim.name} is {kept[dim.name]} in {args[0].text} and {dim.size} in {arg.text}",
                    )
            lacking = [name for name in arg.names if name not in own and name not in kept]
            if arg is args[1] and lacking:
                raise misuse(
                    "wrong-dimensions", f"attend: {arg.text}: {k} has {lacking[0]}, which {args[0].text} lacks"
                )
            if arg is args[2] and len(lacking) != 1:
                raise misuse(
                    "wrong-dimensions",
                    f"attend: {arg.text}: {v} has {len(lacking)} dimensions beside {T} and those of {args[0].text}",
                    f"it has one, the width of the result: {D}, or another name where that is another width",
                )
        for name, one, other in ((D, args[0], args[1]), (T, args[1], args[2])):
            if one.tensor.size(name) != other.tensor.size(name):
                sizes = f"{one.tensor.size(name)} in {one.text} and {other.tensor.size(name)} in {other.text}"
                raise misuse("size-mismatch", f"attend: {name} is {sizes}")
        self._check_masks(args, q)
        width = next(dim for dim in v.dims if dim.name == self.width(args))
        rows = self.rows(q)
        result = Shape(q.dtype, (*rows.dims, width))
        return (result, rows) if self.lse else (result,)

    def _gathered_args(self, args: Sequence[Arg], table: Arg) -> Sequence[Arg]:
        """The operands with keys and values as `gathered`."""
        q, pools = args[0].tensor, args[1:3]
        for arg in pools:
            require_dims(self.keyword, arg, self.pool)
        if pools[0].tensor.size(str(self.page)) != pools[1].tensor.size(str(self.page)):
            n = [pool.tensor.size(str(self.page)) for pool in pools]
            raise misuse(
                "size-mismatch",
                f"attend: {pools[0].text} has {n[0]} pages and {pools[1].text} {n[1]}",
                "one table numbers the pages of both",
            )
        require_table(self.keyword, table, self.pool, self.rows(q))
        if str(self.page) in q:
            raise misuse(
                "wrong-dimensions",
                f"attend: {self.page} numbers the pages of the pool, and {args[0].text}: {q} has it",
                "give the dimension of queries another name",
            )
        own = page_of_row(table.names, q)
        for arg in pools:
            if own in arg.names:
                raise misuse(
                    "wrong-dimensions",
                    f"attend: {own} numbers the pages of a row in {table.text}, and {arg.text}: {arg.shape} has it",
                    "give the table a dimension of its own",
                )
        for name in table.names:
            if (name in pools[0].names) != (name in pools[1].names):
                raise misuse(
                    "wrong-dimensions",
                    f"attend: of {pools[0].text} and {pools[1].text} one alone has {name}, which numbers rows of"
                    f" {table.text}",
                    "both have it, where each row has pools of its own, or neither",
                )
        gathered = (Arg(arg.text, self.gathered(q, arg.tensor, table.tensor)) for arg in pools)
        return (args[0], *gathered, *args[3:])

    def _check_masks(self, args: Sequence[Arg], q: Shape) -> None:
        for name in self.given:
            at = self.at(name)
            assert at is not None
            if name != "pages":
                require_positions(self.keyword, args[at], self.rows(q))
        if self.causal is not None:
            if self.causal == self.contracted or self.causal not in q:
                raise misuse(
                    "wrong-dimensions",
                    f"attend: causal={self.causal} numbers the queries, and {args[0].text}: {q} has no such dimension",
                )
            if self.window is not None and "window" in self.given:
                raise misuse("wrong-operands", f"attend has two windows: window={self.window}, and the operand")
        elif self.has_window or "pos" in self.given:
            what = "a window" if self.has_window else "positions"
            raise misuse(
                "wrong-operands", f"attend has {what} only where it is causal: attend[{self.along}, ..., causal=L]"
            )
        if not (math.isfinite(self.scale) and math.isfinite(self.softcap) and self.softcap >= 0):
            raise misuse("bad-static", "attend: scale is a finite number, softcap one that is not negative")

    def lies(self, home: Placement, source: Shape, result: Shape) -> Placement | None:
        return home if home == ON_DEVICE or (home == ON_HOST and self.page is None) else None

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        more = len(args) - 3
        for name in results[0].names[:-1]:
            states = tuple(name if name in self._own(args, i) else None for i in range(len(args)))
            yield AxisRow(states, (name,) * len(results))
        rest: tuple[State, ...] = (None,) * more
        whole = (None,) * (len(results) - 1)
        yield AxisRow((None, None, self.width(args), *rest), (self.width(args), *whole))
        yield AxisRow((None, None, SUM, *rest), (SUM, *whole))
        if not self.lse:
            yield from (AxisRow((None, name, name, *rest), (SOFTMAX,)) for name in self.pool)

    def _own(self, args: Sequence[Arg], at: int) -> set[str]:
        """The dimensions of an operand that a query's row has too: not the width of values."""
        return set(args[at].names) & self._kept(args)


@dataclass(frozen=True)
class JoinAttention(Operation):
    """`o, lse = join_attention(o1, lse1, o2, lse2)`: attention over two pieces of keys and values, of what each gives.

    With w_i = exp(lse_i) it is (w_1 o1 + w_2 o2) / (w_1 + w_2) and log(w_1 + w_2), zeros and -inf where both are 0.
    The log-sum-exps have the results' dimensions but for the last.
    """

    keyword: ClassVar[str] = "join_attention"
    arity: ClassVar[tuple[int, int]] = (4, 4)
    result_words: ClassVar[tuple[str, ...]] = ("o", "lse")

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        (first, lse, second, other) = (arg.tensor for arg in args)
        rows = Shape(DType.F32, first.dims[:-1])
        if not first.dims or not first.dtype.is_float or first != second or lse != rows or other != rows:
            raise misuse(
                "wrong-operands",
                f"join_attention: {', '.join(f'{arg.text}: {arg.shape}' for arg in args)} are not two results of equal"
                " types, each with its log-sum-exp",
                f"of {first} the log-sum-exp is {rows}, as `o, lse = attend[T, D, lse](q, k, v)` gives it",
            )
        return first, rows

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        for name in results[1].names:
            yield AxisRow((name,) * 4, (name,) * 2)
        width = results[0].names[-1]
        yield AxisRow((width, None, width, None), (width, None))
