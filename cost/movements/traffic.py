"""The bytes that an explicit program receives from other chips: bytes per chip, movement by movement, loops by their
trips."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwright.cost.movements.movement import collective_of
from shardwright.ir.digit_orders import orders_in
from shardwright.ir.digits import Order
from shardwright.ir.ops import Movement
from shardwright.ir.program import Func, Let, Program, Scope
from shardwright.ir.types import OpenType, TensorType
from shardwright.ir.walk import lets


@dataclass(frozen=True, slots=True)
class MovementTraffic:
    """A movement of a function, the type that it moves, and what one chip receives for it.

    `bytes_once` is for one execution, and `trips` how often the loops around it execute it. `communicates` says
    whether chips wait for each other, which slices and collectives over axes of one chip do not make them do.
    """

    statement: Let
    operation: Movement
    operand: TensorType
    bytes_once: int
    trips: int
    communicates: bool

    @property
    def bytes(self) -> int:
        return self.bytes_once * self.trips


@dataclass(frozen=True, slots=True)
class Traffic:
    """The movements of one call of a function, in the order of the program."""

    movements: tuple[MovementTraffic, ...]

    @property
    def bytes(self) -> int:
        """Bytes that one chip receives in all."""
        return sum(moved.bytes for moved in self.movements)


def bytes_received(program: Program, func: Func) -> Traffic:
    """The traffic that one chip receives in one call of a function of an explicit program.

    Raises TypeError where a moved value's type still has holes.
    """
    sizes, orders = program.sizes(func), orders_in(program, func)
    return Traffic(
        tuple(
            _received(program, let, let.operation, scope, sizes, orders)
            for let, scope in lets(program, func)
            if isinstance(let.operation, Movement)
        )
    )


def _received(
    program: Program,
    statement: Let,
    operation: Movement,
    scope: Scope,
    sizes: dict[str, int],
    orders: dict[str, Order],
) -> MovementTraffic:
    name = str(statement.operands[0])
    operand = scope.type_of(name)
    if isinstance(operand, OpenType):
        raise TypeError(f"{name}: {operand} still has holes")
    trips = math.prod(sizes[loop.dim] for loop in scope.loops)
    collective = collective_of(operation, operand, program.mesh, orders)
    once, axes = (0, ()) if collective is None else (collective.received, collective.axes)
    return MovementTraffic(statement, operation, operand, once, trips, bool(axes))
