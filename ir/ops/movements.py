"""Movements: the collectives, and the slices that need none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from shardwright.ir.operation import (
    MAX,
    SOFTMAX,
    SUM,
    Arg,
    AxisRow,
    Context,
    Operation,
    linear_rows,
    misuse,
    pass_through,
)
from shardwright.ir.ops.indexing import axes_static, wrap_static
from shardwright.ir.ops.reductions import dims_static, number_static, require_dims
from shardwright.ir.text.syntax import ArrowStatic, MoveStatic, OptionStatic, RelayoutStatic, Static, WordStatic
from shardwright.ir.types import Axes, DType, Placement, Shape, State

Scatter = tuple[Axes, str]
"""Axes, and the dimension that they come to split."""

Transfer = tuple[Axes, str, str]
"""Axes, the dimension that they split before, and the one that they split after."""

Relayout = tuple[str, Axes, Axes]
"""A dimension, the axes that split it before and no longer do, and those that come to split it."""


class Movement(Operation):
    """Leaves every number as it is and changes which chips (or memories) hold it; `Roll` alone moves indices, too."""

    arity: ClassVar[tuple[int, int]] = (1, 1)
    takes_f8: ClassVar[bool] = True
    does: ClassVar[str] = ""
    """Its effect on an axis that it names, for messages."""
    takes_pairs: ClassVar[bool] = True
    """Whether it takes what is a partial softmax over other axes."""

    def before(self, axis: str, dims: Sequence[str]) -> Sequence[State]:
        """The states that an axis which it names may have in an operand with these dimensions."""
        raise NotImplementedError(self.keyword)

    def after(self, axis: str) -> State:
        """The state of an axis that it names in the result."""
        raise NotImplementedError(self.keyword)

    @property
    def is_movement(self) -> bool:
        return True

    @property
    def communicates(self) -> bool:
        """Tells whether chips receive bytes."""
        return True

    @property
    def moves(self) -> Movement:
        """The movement that happens, where this one starts it."""
        return self

    def placed(self, operand: Placement) -> Placement:
        """Where the result lies, of an operand that lies there."""
        return operand

    def mentioned_dims(self) -> Iterable[str]:
        """The dimensions that the statics name."""
        return ()

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        require_dims(self.keyword, args[0], self.mentioned_dims())
        return (args[0].tensor,)

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        yield from pass_through(args, results[0], args[0].names)
        yield from linear_rows(args, () if self.takes_pairs else args[0].names)

    def named_axis_rows(self, axis: str, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow] | None:
        if axis not in self.named_axes:
            return None
        return [AxisRow((state,), (self.after(axis),)) for state in self.before(axis, args[0].names)]


@dataclass(frozen=True)
class Ahead(Movement):
    """A movement that loops may do for the trip that follows.

    With `ahead=NM` it is not the slice of its operand that this trip sees but the one that the trip after it does, M
    going round fastest: what comes next in `loop[N] { loop[M] { ... } }`. After the last trip of all there is none, and
    zeros are the value, for which nothing moves; with `wrap=true` the first trip follows the last.
    """

    ahead: tuple[str, ...] = field(default=(), kw_only=True)
    wrap: bool = field(default=False, kw_only=True)

    @property
    def ahead_statics(self) -> tuple[Static, ...]:
        """`ahead=NM` and `wrap=true`, where they are so."""
        return (OptionStatic("ahead", dims_static(self.ahead)), *wrap_static(self.wrap)) if self.ahead else ()

    def following(self, trips: Mapping[str, int], sizes: Mapping[str, int]) -> tuple[dict[str, int], bool]:
        """The indices of the trip after the one at these indices of loops; and whether its slice is zeros, since
        there is no such trip."""
        at = dict(trips)
        for dim in reversed(self.ahead):
            at[dim] = (at[dim] + 1) % sizes[dim]
            if at[dim]:
                return at, False
        return at, bool(self.ahead) and not self.wrap


@dataclass(frozen=True)
class AllGather(Ahead):
    """`all_gather[yz](x)`: splits over these axes are undone, on whichever dimensions they are.

    x: BLE_xyz  -->  all_gather[yz](x): BLE_x

    With `all_gather[yz, ahead=N](w)` a loop gathers what its next trip takes of w.
    """

    keyword: ClassVar[str] = "all_gather"
    does: ClassVar[str] = "gathers what is split"
    axes: Axes

    @property
    def statics(self) -> tuple[Static, ...]:
        return (axes_static(self.axes), *self.ahead_statics)

    @property
    def named_axes(self) -> tuple[str, ...]:
        return self.axes

    def before(self, axis: str, dims: Sequence[str]) -> Sequence[State]:
        return dims

    def after(self, axis: str) -> State:
        return None


@dataclass(frozen=True)
class AllReduce(Movement):
    """`all_reduce[x](h)`: partial values over these axes are combined, and every chip gets the whole.

    h: BLF_yz(partialsum-x)  -->  all_reduce[x](h): BLF_yz
    """

    keyword: ClassVar[str] = "all_reduce"
    does: ClassVar[str] = "combines partial values"
    axes: Axes

    @property
    def statics(self) -> tuple[Static, ...]:
        return (axes_static(self.axes),)

    @property
    def named_axes(self) -> tuple[str, ...]:
        return self.axes

    def before(self, axis: str, dims: Sequence[str]) -> Sequence[State]:
        return (SUM, MAX, SOFTMAX)

    def after(self, axis: str) -> State:
        return None


class _Scattering(Movement):
    targets: tuple[Scatter, ...]

    @property
    def statics(self) -> tuple[Static, ...]:
        return tuple(ArrowStatic(axes_static(axes), dims_static([dim])) for axes, dim in self.targets)

    @property
    def named_axes(self) -> tuple[str, ...]:
        return tuple(axis for axes, _ in self.targets for axis in axes)

    def mentioned_dims(self) -> Iterable[str]:
        return [dim for _, dim in self.targets]

    def after(self, axis: str) -> State:
        return next(dim for axes, dim in self.targets if axis in axes)


@dataclass(frozen=True)
class ReduceScatter(_Scattering):
    """`reduce_scatter[x -> F](h)`: partial values are combined, and each chip keeps its part of a dimension.

    h: BLF_yz(partialsum-x)  -->  reduce_scatter[x -> F](h): BLF_xyz
    """

    keyword: ClassVar[str] = "reduce_scatter"
    does: ClassVar[str] = "combines partial values"
    targets: tuple[Scatter, ...]

    def before(self, axis: str, dims: Sequence[str]) -> Sequence[State]:
        return (SUM, MAX, SOFTMAX)


@dataclass(frozen=True)
class AllToAll(Movement):
    """`all_to_all[x: H -> B](q)`: splits move from one dimension to another, several at once if asked.

    q: BLH_xyzD  -->  all_to_all[yz: H -> B](q): B_yzLH_xD
    """

    keyword: ClassVar[str] = "all_to_all"
    does: ClassVar[str] = "moves a split from one dimension to another"
    transfers: tuple[Transfer, ...]

    @property
    def statics(self) -> tuple[Static, ...]:
        return tuple(MoveStatic(axes_static(axes), dims_static([a]), dims_static([b])) for axes, a, b in self.transfers)

    @property
    def named_axes(self) -> tuple[str, ...]:
        return tuple(axis for axes, _, _ in self.transfers for axis in axes)

    def mentioned_dims(self) -> Iterable[str]:
        return [dim for _, a, b in self.transfers for dim in (a, b)]

    def before(self, axis: str, dims: Sequence[str]) -> Sequence[State]:
        return [source for axes, source, _ in self.transfers if axis in axes]

    def after(self, axis: str) -> State:
        return next(target for axes, _, target in self.transfers if axis in axes)


@dataclass(frozen=True)
class Slice(_Scattering):
    """`slice[x -> B](v)`: every chip keeps its part of what it holds whole; nothing is received.

    v: BLE  -->  slice[x -> B](v): B_xLE
    """

    keyword: ClassVar[str] = "slice"
    does: ClassVar[str] = "takes parts of what is whole"
    targets: tuple[Scatter, ...]

    @property
    def communicates(self) -> bool:
        return False

    def before(self, axis: str, dims: Sequence[str]) -> Sequence[State]:
        return (None,)


@dataclass(frozen=True)
class AsPartial(Movement):
    """`as_partial[x](v)`: what is whole or split over these axes becomes a sum of addends; nothing is received.

    A chip adds what is its own (its part of a split dimension, or all of a whole value on the chip with
    coordinate 0) and zeros elsewhere.

        v: BLE_x  -->  as_partial[x](v): BLE(partialsum-x)
    """

    keyword: ClassVar[str] = "as_partial"
    does: ClassVar[str] = "makes addends of what is whole or split"
    axes: Axes

    @property
    def statics(self) -> tuple[Static, ...]:
        return (axes_static(self.axes),)

    @property
    def named_axes(self) -> tuple[str, ...]:
        return self.axes

    @property
    def communicates(self) -> bool:
        return False

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        if args[0].tensor.dtype is DType.BOOL:
            raise misuse(
                "dtype-mismatch",
                f"as_partial makes addends, and {args[0].text} is bool",
                f"a partial maximum of bools is their or; sum them as int32: convert[int32]({args[0].text})",
            )
        return super().infer(args, context)

    def before(self, axis: str, dims: Sequence[str]) -> Sequence[State]:
        return (None, *dims)

    def after(self, axis: str) -> State:
        return SUM


@dataclass(frozen=True)
class Roll(Movement):
    """`roll[yz, over=R, shift=1](a)`: the blocks of R go round the chips along these axes, each `shift` places on.

    The axes split R and are its outermost digits; read as one number they say which chip comes after which. A chip
    sends its whole shard to the chip `shift` places after it, and the last ones send to the first. It is the one
    movement that changes a value: with K chips, what stood at index r of R comes to stand at r + shift |R|/K, modulo
    |R|.

        a: BR_yzE  -->  roll[yz, over=R, shift=1](a): BR_yzE
    """

    keyword: ClassVar[str] = "roll"
    does: ClassVar[str] = "sends blocks of a split dimension round"
    axes: Axes
    dim: str
    shift: int = 1

    @property
    def statics(self) -> tuple[Static, ...]:
        return (
            axes_static(self.axes),
            OptionStatic("over", dims_static([self.dim])),
            OptionStatic("shift", number_static(self.shift)),
        )

    @property
    def named_axes(self) -> tuple[str, ...]:
        return self.axes

    def mentioned_dims(self) -> Iterable[str]:
        return (self.dim,)

    def before(self, axis: str, dims: Sequence[str]) -> Sequence[State]:
        return (self.dim,)

    def after(self, axis: str) -> State:
        return self.dim


@dataclass(frozen=True)
class Permute(Movement):
    """`permute[E: y -> x](v)`: every chip gets from others what it lacks of a layout whose digits do not fit beside
    those of the one before.

    v: BE_y  -->  permute[E: y -> x](v): BE_x

    `{}` stands for no axes, as in `permute[E: y -> x, F: x -> {}](v)`. Axes that are not named stay as they are.

    With `to=blocks` or `from=blocks` the type stays too: `permute[E, to=blocks](y)` is what a function returns of a
    strided layout, every chip's part one contiguous block, and `permute[E, from=blocks](x)` takes such a parameter.
    """

    keyword: ClassVar[str] = "permute"
    does: ClassVar[str] = "moves splits of whole values"
    changes: tuple[Relayout, ...] = ()
    dims: tuple[str, ...] = ()
    blocks: Literal["", "to", "from"] = ""

    @property
    def statics(self) -> tuple[Static, ...]:
        if self.blocks:
            return (dims_static(self.dims), OptionStatic(self.blocks, WordStatic(("blocks",))))
        return tuple(
            RelayoutStatic(dims_static([dim]), _axes_or_none(was), _axes_or_none(becomes))
            for dim, was, becomes in self.changes
        )

    @property
    def named_axes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(axis for _, was, becomes in self.changes for axis in (*was, *becomes)))

    def mentioned_dims(self) -> Iterable[str]:
        return [*self.dims, *(dim for dim, _, _ in self.changes)]

    def before(self, axis: str, dims: Sequence[str]) -> Sequence[State]:
        return [next((dim for dim, was, _ in self.changes if axis in was), None)]

    def after(self, axis: str) -> State:
        return next((dim for dim, _, becomes in self.changes if axis in becomes), None)


def _axes_or_none(axes: Axes) -> WordStatic:
    return axes_static(axes) if axes else WordStatic((), braces=True)
