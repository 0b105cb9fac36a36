"""Copies between memories, and movements under way: `fetch`, `store`, `start` and `wait`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from shardwright.ir.operation import Arg, AxisRow, Context
from shardwright.ir.ops.movements import Ahead, Movement
from shardwright.ir.text.syntax import Static, WordStatic
from shardwright.ir.types import ON_DEVICE, Placement, Shape, Tier


@dataclass(frozen=True)
class Fetch(Ahead):
    """`fetch(w)`: a value that lives in host or disk memory comes to the device; with `fetch[ahead=N](w)` what a loop's
    next trip takes of it."""

    keyword: ClassVar[str] = "fetch"
    takes_pairs: ClassVar[bool] = False

    @property
    def statics(self) -> tuple[Static, ...]:
        return self.ahead_statics

    @property
    def communicates(self) -> bool:
        return False

    def placed(self, operand: Placement) -> Placement:
        return ON_DEVICE


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

    def active_rows(self, args: Sequence[Arg], results: Sequence[Shape]) -> Iterable[AxisRow]:
        return self.movement.active_rows(args, results)

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
