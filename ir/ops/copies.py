"""Copies between memories, and movements under way: `fetch`, `store`, `start` and `wait`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from shardwright.ir.operation import Arg, AxisRow, Context
from shardwright.ir.ops.indexing import wrap_static
from shardwright.ir.ops.movements import Movement
from shardwright.ir.ops.reductions import dims_static
from shardwright.ir.syntax import OptionStatic, Static, WordStatic
from shardwright.ir.types import ON_DEVICE, Placement, Shape, Tier


@dataclass(frozen=True)
class Fetch(Movement):
    """`fetch(w)`: a value that lives in host or disk memory comes to the device.

    Inside loops, `fetch[ahead=NM](k)` is not the slice of k that this trip sees but the one that the trip after it
    does, M going round fastest: what comes next in `loop[N] { loop[M] { ... } }`. After the last trip of all there is
    none, and zeros are the value, for which nothing moves; with `wrap=true` the first trip follows the last.
    """

    keyword: ClassVar[str] = "fetch"
    takes_pairs: ClassVar[bool] = False
    ahead: tuple[str, ...] = ()
    wrap: bool = False

    @property
    def statics(self) -> tuple[Static, ...]:
        if not self.ahead:
            return ()
        return (OptionStatic("ahead", dims_static(self.ahead)), *wrap_static(self.wrap))

    @property
    def communicates(self) -> bool:
        return False

    def placed(self, operand: Placement) -> Placement:
        return ON_DEVICE

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
class Store(Movement):
    """`store[host](h)`: a value on the device goes to another memory."""

    keyword: ClassVar[str] = "store"
    takes_pairs: ClassVar[bool] = False
    tier: Tier = Tier.HOST

    @property
    def statics(self) -> tuple[Static, ...]:
        return (WordStatic((str(self.tier),)),)

    @property
    def communicates(self) -> bool:
        return False

    def placed(self, operand: Placement) -> Placement:
        return Placement(((self.tier, 100.0),))


@dataclass(frozen=True)
class Start(Movement):
    """`start(store[host](h))`: a movement begins, and the value is in flight until a `wait` lands it.

    `prefetch(w)` is `start(fetch(w))`. What is moved is the operand as it is when the movement starts.
    """

    keyword: ClassVar[str] = "start"
    movement: Movement

    @property
    def moves(self) -> Movement:
        return self.movement

    @property
    def statics(self) -> tuple[Static, ...]:
        return self.movement.statics

    @property
    def named_axes(self) -> tuple[str, ...]:
        return self.movement.named_axes

    @property
    def communicates(self) -> bool:
        return self.movement.communicates

    def placed(self, operand: Placement) -> Placement:
        return self.movement.placed(operand)

    def infer(self, args: Sequence[Arg], context: Context) -> tuple[Shape, ...]:
        return self.movement.infer(args, context)

    def axis_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        return self.movement.axis_rows(args, results)

    def named_axis_rows(self, axis: str, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow] | None:
        return self.movement.named_axis_rows(axis, args, results)


@dataclass(frozen=True)
class Wait(Movement):
    """`wait(w)`: a value in flight has arrived, and is used from here on."""

    keyword: ClassVar[str] = "wait"
    takes_pairs: ClassVar[bool] = False

    @property
    def communicates(self) -> bool:
        return False
