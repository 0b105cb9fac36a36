"""Operations in which global indices matter: lookup, positions, cache update, taking and concatenating."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from shardwright.ir.memory_shares import home_of_rows, is_written
from shardwright.ir.operation import MAX, SUM, Arg, AxisRow, Context, Operation, misuse, pass_through, same_dtype
from shardwright.ir.ops.reductions import dims_static, number_static, require_dims, require_positions
from shardwright.ir.text.syntax import IntStatic, OptionStatic, RangeStatic, Static, WordStatic
from shardwright.ir.types import Dim, DType, Placement, Shape, is_short_axis


def axes_static(axes: Iterable[str]) -> WordStatic:
    """Mesh axes as a static: `yz`, or `{data,model}` where a name is longer than a letter and digits."""
    names = tuple(axes)
    if all(is_short_axis(axis) for axis in names):
        return WordStatic(("".join(names),))
    return WordStatic(names, braces=True)


def wrap_static(wrap: bool) -> tuple[Static, ...]:
    """`wrap=true`, or nothing."""
    return (OptionStatic("wrap", WordStatic(("true",))),) if wrap else ()


def page_of_row(table: Sequence[str], rows: Container[str]) -> str:
    """The dimension of a table of pages that numbers those of a row, which what has the rows lacks."""
    return next(name for name in table if name not in rows)


def require_table(keyword: str, table: Arg, pool: Sequence[str], rows: Shape) -> None:
    """Raises unless the operand is a table in int32 of the pages of `rows`, without the dimensions of a `pool`."""
    shape = table.tensor
    if shape.dtype is not DType.INT32:
        raise misuse("dtype-mismatch", f"{keyword} takes a table of pages in int32, and {table.text} is {shape.dtype}")
    for name in pool:
        if name in shape:
            raise misuse(
                "wrong-dimensions",
                f"{keyword}: {name} is a dimension of the pool's positions, and {table.text}: {shape} has it",
                "a table has dimensions of rows, and one of its own that numbers the pages of a row",
            )
    for dim in shape.dims:
        if dim.name in rows and rows.size(dim.name) != dim.size:
            raise misuse(
                "size-mismatch", f"{keyword}: {dim.name} is {dim.size} in {table.text}, {rows.size(dim.name)} elsewhere"
            )
    lacking = [name for name in shape.names if name not in rows]
    if len(lacking) != 1:
        raise misuse(
            "wrong-dimensions",
            f"{keyword}: the table {table.text}: {shape} has {len(lacking)} dimensions that {rows} lacks",
            "it has one, which numbers the pages of a row",
        )


@dataclass(frozen=True)
class Lookup(Operation):
    """`lookup[V](table, ids)`: the slices of the table along V at these indices; shared dimensions are batched.

    Result: the dimensions of the ids, then the table's others. In a table split over V a chip that does not
    hold an index contributes zeros, so the result is a partial sum. An index beyond the table gives zeros, too; with
    `wrap=true` indices count modulo the table's extent.
    """

    keyword: ClassVar[str] = "lookup"
    arity: ClassVar[tuple[int, int]] = (2, 2)
    takes_f8: ClassVar[bool] = True
    dim: str
    wrap: bool = False

    @property
    def statics(self) -> tuple[Static, ...]:
        return (dims_static([self.dim]), *wrap_static(self.wrap))

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        require_dims(self.keyword, args[0], [self.dim])
        table, ids = args[0].tensor, args[1].tensor
        if not ids.dtype.is_integer:
            raise misuse("dtype-mismatch", f"lookup takes integer indices, and {args[1].text} is {ids.dtype}")
        if self.dim in ids:
            raise misuse(
                "wrong-dimensions", f"lookup[{self.dim}]: the indices {args[1].text}: {ids} have {self.dim} too"
            )
        for dim in ids.dims:
            if dim.name in table and dim not in table.dims:
                raise misuse(
                    "size-mismatch",
                    f"lookup: {dim.name} is {table.size(dim.name)} in {args[0].text} and {dim.size} in {args[1].text}",
                )
        rest = tuple(dim for dim in table.dims if dim.name != self.dim and dim.name not in ids)
        return (Shape(table.dtype, ids.dims + rest),)

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield from pass_through(args, results[0], results[0].names)
        yield AxisRow((self.dim, None), (SUM,))
        yield AxisRow((SUM, None), (SUM,))


@dataclass(frozen=True)
class Iota(Operation):
    """`iota[T]()`: the global index along T, int32; computed from the digits, so any split is free.

    `iota[T, 24]()` is as long as a value whose extent along T is not the declared one, a part or several joined.
    """

    keyword: ClassVar[str] = "iota"
    arity: ClassVar[tuple[int, int]] = (0, 0)
    dim: str
    extent: int | None = None

    @property
    def statics(self) -> tuple[Static, ...]:
        over = dims_static([self.dim])
        return (over,) if self.extent is None else (over, IntStatic(self.extent))

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        declared = context.dim(self.dim)
        if self.extent is None:
            return (Shape(DType.INT32, (declared,)),)
        if self.extent < 1:
            raise misuse("out-of-range", f"iota: {self.extent} is no extent of {self.dim}")
        return (Shape(DType.INT32, (Dim(self.dim, self.extent),)),)

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield AxisRow((), (self.dim,))


@dataclass(frozen=True)
class Full(Operation):
    """`full[BL, f32](0.5)`: a value that is the same number everywhere; any split is free."""

    keyword: ClassVar[str] = "full"
    arity: ClassVar[tuple[int, int]] = (1, 1)
    dims: tuple[str, ...]
    dtype: DType = DType.BF16

    @property
    def statics(self) -> tuple[Static, ...]:
        over = (dims_static(self.dims),) if self.dims else ()
        return (*over, WordStatic((str(self.dtype),)))

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        if args[0].number is None:
            raise misuse("literal-operand", f"full takes a number, not the value {args[0].text}")
        return (Shape(self.dtype, tuple(context.dim(name) for name in self.dims)),)

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        for name in self.dims:
            yield AxisRow((None,), (name,))
        if args[0].is_zero:
            yield AxisRow((None,), (SUM,))


@dataclass(frozen=True)
class Rotary(Operation):
    """`rotary[D, base=10000, style=neox](x, pos)`: rotary position embedding (Su et al. 2021) of the first `rotated`
    elements of D, all of them if 0.

    `style=neox` pairs element d with d + rotated/2, `style=gptj` pairs 2d with 2d + 1. `pos` is int32: with
    dimensions of x, the positions themselves; a scalar, the position of the first element along `seq`.
    A third operand, f32 along a dimension of half the size, and maybe dimensions of x, gives the frequencies in place
    of base.
    """

    keyword: ClassVar[str] = "rotary"
    arity: ClassVar[tuple[int, int]] = (2, 3)
    dim: str
    base: float = 10000.0
    style: str = "neox"
    rotated: int = 0
    seq: str | None = None

    @property
    def statics(self) -> tuple[Static, ...]:
        made: list[Static] = [
            dims_static([self.dim]),
            OptionStatic("base", number_static(self.base)),
            OptionStatic("style", WordStatic((self.style,))),
        ]
        if self.rotated:
            made.append(OptionStatic("rotated", number_static(self.rotated)))
        if self.seq is not None:
            made.append(OptionStatic("seq", dims_static([self.seq])))
        return tuple(made)

    def positions_dim(self, args: Sequence[Arg]) -> str | None:
        """The dimension along which a scalar position advances; None where positions are given one by one."""
        if args[1].names:
            return None
        if self.seq is not None:
            return self.seq
        return "L" if "L" in args[0].names else None

    def frequency_dims(self, args: Sequence[Arg]) -> tuple[str, ...]:
        """The dimensions of x without the one whose pairs turn, and the frequencies' own in its place, the last."""
        own = (name for name in args[2].names if name not in args[0].names)
        return (*(name for name in args[0].names if name != self.dim), *own)

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        shape = args[0].tensor
        require_dims(self.keyword, args[0], [self.dim] if self.seq is None else [self.dim, self.seq])
        size = self.rotated or shape.size(self.dim)
        if size % 2 or size > shape.size(self.dim):
            raise misuse(
                "wrong-dimensions",
                f"rotary turns pairs of the {shape.size(self.dim)} elements of {self.dim}, and cannot turn {size}",
                f"rotated=N turns the first N, an even number, as in rotary[{self.dim}, rotated=2]",
            )
        if not shape.dtype.is_float:
            raise misuse("dtype-mismatch", f"rotary takes a floating-point value, and {args[0].text} is {shape.dtype}")
        if self.dim in args[1].names:
            raise misuse("wrong-dimensions", f"rotary[{self.dim}]: positions do not vary along {self.dim}")
        if self.positions_dim(args) == self.dim:
            raise misuse(
                "wrong-dimensions",
                f"rotary[{self.dim}]: a single position is that of the first element along {self.dim}, which is turned",
                "name the dimension whose pairs are turned, and with seq=L the one along which positions count",
            )
        require_positions(self.keyword, args[1], shape)
        if len(args) > 2:
            frequencies, shared = args[2].tensor, [dim for dim in shape.dims if dim.name != self.dim]
            pairs = [dim for dim in frequencies.dims if dim not in shared] or frequencies.dims
            if len(pairs) != 1 or pairs[0].size != size // 2:
                raise misuse(
                    "wrong-dimensions",
                    f"rotary: the frequencies {args[2].text}: {frequencies}"
                    f" are not {size // 2} numbers, one for each pair",
                )
            if pairs[0].name in shape:
                raise misuse(
                    "wrong-dimensions",
                    f"rotary: the frequencies' dimension {pairs[0].name} is one of"
                    f" {args[0].text}'s; give them one of their own",
                )
        return (shape,)

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        fixed = {self.dim, self.positions_dim(args)}
        yield from pass_through(args, results[0], (name for name in results[0].names if name not in fixed))
        yield AxisRow((SUM, *(None for _ in args[1:])), (SUM,))


@dataclass(frozen=True)
class Update(Operation):
    """`update[T](cache, new, pos)`: the cache with `new` written along T from position `pos` on.

    `new` has the cache's dimensions, along T as many positions as are written, or lacks T where it is one
    position, or has another dimension in T's place. `pos` is int32, a scalar or one for each element of
    dimensions of the cache. A cache split over T keeps its rows: each chip writes those it holds. What would be
    written beyond the cache is dropped; with `wrap=true` positions count modulo its extent.
    `update[TM](cache, new, pos, m)` writes at index m of M, which `new` lacks: nothing where there is no such index.

    `update[PS](pool, new, pos, pages=t)` writes into pages, as `attend` numbers them: `new` has the rows of the table t
    and in place of P and S what is written, `pos` is one for all or for each row. What would be written behind a row's
    last page, or on a page that the pool lacks, is dropped. Which of two rows stays that write to one slot is not said.
    """

    keyword: ClassVar[str] = "update"
    arity: ClassVar[tuple[int, int]] = (3, 3)
    takes_f8: ClassVar[bool] = True
    n_lying: ClassVar[int | None] = 2
    dim: str
    indexed: tuple[str, ...] = ()
    wrap: bool = False
    page: str | None = None
    """The dimension that numbers the pages of a pool; `dim` numbers the slots of a page then."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arity", (3 + len(self.indexed),) * 2)

    @property
    def keywords(self) -> tuple[str, ...]:
        return () if self.page is None else ("pages",)

    @property
    def statics(self) -> tuple[Static, ...]:
        return (dims_static(self.written_dims), *wrap_static(self.wrap))

    @property
    def written_dims(self) -> tuple[str, ...]:
        """The dimensions of the cache in which there are positions."""
        pages = () if self.page is None else (self.page,)
        return (*pages, self.dim, *self.indexed)

    def written_dim(self, args: Sequence[Arg]) -> str | None:
        """The dimension of `new` that runs along T, None where `new` is a single position."""
        if self.dim in args[1].names:
            return self.dim
        rows = () if self.page is None else args[-1].names
        extra = [name for name in args[1].names if name not in args[0].names and name not in rows]
        return extra[0] if extra else None

    def _rows(self, args: Sequence[Arg]) -> tuple[Dim, ...]:
        """The dimensions of the table of pages that number rows."""
        if self.page is None:
            return ()
        require_table(self.keyword, args[-1], self.written_dims, args[1].tensor)
        own = page_of_row(args[-1].names, args[1].names)
        return tuple(dim for dim in args[-1].tensor.dims if dim.name != own)

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        require_dims(self.keyword, args[0], self.written_dims)
        cache, new, rows = args[0].tensor, args[1].tensor, self._rows(args)
        if new.dtype != cache.dtype:
            raise misuse(
                "dtype-mismatch",
                f"update of a {cache.dtype} cache with {new.dtype}",
                f"convert it: convert[{cache.dtype}]({args[1].text})",
            )
        written = self.written_dim(args)
        expected = {dim for dim in cache.dims if dim.name not in self.written_dims}.union(rows)
        if {dim for dim in new.dims if dim.name != written} != expected:
            raise misuse(
                "wrong-dimensions",
                f"update[{self.dim}]: {args[1].text}: {new} does not fit the cache {args[0].text}: {cache}",
                f"it has the cache's other dimensions, and {self.dim}, one more in its place, or none for one position"
                if self.page is None
                else f"it has the rows of {args[-1].text} and the pool's other dimensions, and one more where it is"
                " several positions",
            )
        own = 1 if self.page is None else args[-1].tensor.size(page_of_row(args[-1].names, new))
        if written is not None and new.size(written) > own * cache.size(self.dim):
            where = f"a cache of {cache.size(self.dim)} along {self.dim}"
            if self.page is not None:
                where = f"the pages of a row, which hold {own * cache.size(self.dim)}"
            raise misuse("size-mismatch", f"update writes {new.size(written)} positions into {where}")
        over = Shape(cache.dtype, (*rows, *(dim for dim in cache.dims if dim not in rows)))
        for start in args[2 : 3 + len(self.indexed)]:
            for name in set(self.written_dims).intersection(start.names):
                what = f"update[{self.dim}]: the position {start.text} varies along {name}"
                raise misuse("wrong-dimensions", what)
            require_positions(self.keyword, start, over)
        return (cache,)

    def lies(self, home: Placement, source: Shape, result: Shape) -> Placement | None:
        return home if is_written(home, result) and not self.indexed and self.page is None else None

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield from pass_through(args, results[0], (name for name in results[0].names if name not in self.written_dims))
        starts = (None,) * len(args[2:])
        yield from (AxisRow((name, None, *starts), (name,)) for name in self.written_dims)
        yield AxisRow((SUM, SUM, *starts), (SUM,))


@dataclass(frozen=True)
class Take(Operation):
    """`take[E 0:32](x)`: a range of a dimension. `take[L, 15](x)`: one index of it, and the dimension is gone.

    With `by=yz` the range is taken out of each block of the digits y and z, chip by chip.
    """

    keyword: ClassVar[str] = "take"
    arity: ClassVar[tuple[int, int]] = (1, 1)
    takes_f8: ClassVar[bool] = True
    dim: str
    start: int
    stop: int | None = None
    by: tuple[str, ...] = ()

    @property
    def statics(self) -> tuple[Static, ...]:
        by = (OptionStatic("by", axes_static(self.by)),) if self.by else ()
        if self.stop is None:
            return (dims_static([self.dim]), IntStatic(self.start), *by)
        return (RangeStatic(self.dim, self.start, self.stop), *by)

    @property
    def named_axes(self) -> tuple[str, ...]:
        return self.by

    def range_of(self, n: int) -> tuple[int, int]:
        """The range that is taken out of each of n blocks. Raises where it does not divide into them."""
        assert self.stop is not None
        if self.start % n or self.stop % n:
            what = f"take: {self.start}:{self.stop} does not divide into the {n} blocks of {' '.join(self.by)}"
            raise misuse("not-divisible", what)
        return self.start // n, self.stop // n

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        require_dims(self.keyword, args[0], [self.dim])
        shape = args[0].tensor
        size = shape.size(self.dim)
        stop = self.start + 1 if self.stop is None else self.stop
        if not 0 <= self.start < stop <= size:
            what = f"index {self.start}" if self.stop is None else f"range {self.start}:{stop}"
            last = (
                f"the last is {size - 1}" if self.stop is None else f"a range ends at {size} at most, and is not empty"
            )
            raise misuse("out-of-range", f"take: {self.dim}={size} has no {what}", last)
        if self.stop is None:
            if self.by:
                raise misuse("bad-static", f"take: by={''.join(self.by)} goes with a range, not with a single index")
            return (Shape(shape.dtype, tuple(dim for dim in shape.dims if dim.name != self.dim)),)
        taken = Dim(self.dim, stop - self.start)
        return (Shape(shape.dtype, tuple(taken if dim.name == self.dim else dim for dim in shape.dims)),)

    def lies(self, home: Placement, source: Shape, result: Shape) -> Placement | None:
        if home.along == self.dim:
            stop = self.start + 1 if self.stop is None else self.stop
            return None if self.by else home_of_rows(home, source.size(self.dim), self.start, stop)
        return home if is_written(home, result) else None

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield from pass_through(args, results[0], (name for name in results[0].names if name != self.dim))
        yield AxisRow((SUM,), (SUM,))
        yield AxisRow((MAX,), (MAX,))

    def named_axis_rows(self, axis: str, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow] | None:
        if axis not in self.by:
            return None
        return [*self.axis_rows(args, results), AxisRow((self.dim,), (self.dim,))]


@dataclass(frozen=True)
class Concat(Operation):
    """`concat[E](a, b)`: one after the other along E.

    With `by=yz` block by block: each block of the digits y and z of the result holds that block of a, then of b,
    so that parts which share these digits are concatenated chip by chip.
    """

    keyword: ClassVar[str] = "concat"
    arity: ClassVar[tuple[int, int]] = (1, 1000)
    takes_f8: ClassVar[bool] = True
    dim: str
    by: tuple[str, ...] = ()

    @property
    def statics(self) -> tuple[Static, ...]:
        by = (OptionStatic("by", axes_static(self.by)),) if self.by else ()
        return (dims_static([self.dim]), *by)

    @property
    def named_axes(self) -> tuple[str, ...]:
        return self.by

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        first = args[0].tensor
        for arg in args:
            require_dims(self.keyword, arg, [self.dim])
            others = {dim for dim in arg.tensor.dims if dim.name != self.dim}
            if others == {dim for dim in first.dims if dim.name != self.dim} and arg.tensor.names != first.names:
                raise misuse(
                    "wrong-dimensions",
                    f"concat[{self.dim}]: {args[0].text}: {first} and {arg.text}: {arg.shape} have their dimensions in"
                    " two orders",
                    f"give {arg.text} the order of {args[0].text} first: x: {arg.tensor.dtype} {''.join(first.names)} ="
                    f" {arg.text} + 0",
                )
            if others != {dim for dim in first.dims if dim.name != self.dim}:
                raise misuse(
                    "wrong-dimensions",
                    f"concat[{self.dim}]: {args[0].text}: {first} and"
                    f" {arg.text}: {arg.shape} differ in more than {self.dim}",
                )
        joined = Dim(self.dim, sum(arg.tensor.size(self.dim) for arg in args))
        dims = tuple(joined if dim.name == self.dim else dim for dim in first.dims)
        return (Shape(same_dtype(self.keyword, args), dims),)

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield from pass_through(args, results[0], (name for name in results[0].names if name != self.dim))
        yield AxisRow((SUM,) * len(args), (SUM,))
        yield AxisRow((MAX,) * len(args), (MAX,))

    def named_axis_rows(self, axis: str, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow] | None:
        if axis not in self.by:
            return None
        return [*self.axis_rows(args, results), AxisRow((self.dim,) * len(args), (self.dim,))]
