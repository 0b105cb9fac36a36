"""The simulator: one array per chip, collectives executed literally, bytes counted. It defines what a program means.

A value on all chips is one array whose first axes are those of the mesh. Explicit programs only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy.typing as npt

from shardwright.backends.number_formats import Array, Formats, Precision
from shardwright.backends.simulation.collectives import move, permute, received_bytes, roll
from shardwright.backends.simulation.digit_factors import Digits
from shardwright.backends.simulation.interpreter import Arrays, Interpreter
from shardwright.backends.simulation.local_values import KernelSetting, Local
from shardwright.backends.simulation.sharding import ReplicaError, shard, unshard
from shardwright.ir.digit_orders import in_blocks, orders_in
from shardwright.ir.ops import Movement, Permute, Roll
from shardwright.ir.program import Func, Let, Program
from shardwright.ir.types import OpenType, TensorType, ValueType
from shardwright.ir.verification.completion import complete
from shardwright.ir.verification.verifier import Level, verify

__all__ = ["ReplicaError", "SimulationResult", "shard", "simulate", "unshard"]


@dataclass(frozen=True)
class SimulationResult:
    """Global arrays gathered back from the chips, and the bytes that each chip received.

    `bytes_received` has an entry for each statement that is a movement, by the name of its result, summed over the
    trips of the loops around it; the largest over chips, which in these collectives is what every chip receives.
    """

    results: tuple[Array, ...]
    state: dict[str, Array]
    bytes_received: Mapping[str, int]

    @property
    def total(self) -> int:
        """Bytes that each chip received in the whole function."""
        return sum(self.bytes_received.values())


class _OnChips(Interpreter):
    def __init__(self, program: Program, func: Func, setting: KernelSetting) -> None:
        super().__init__(program, func, setting)
        self.bytes_received: dict[str, int] = {}
        self.digits = Digits(setting.mesh, setting.orders, in_blocks(func))

    def kind(self, written: ValueType) -> TensorType:
        assert not isinstance(written, OpenType), "the verifier has seen to it"
        return written

    def enter(self, name: str, array: npt.ArrayLike, kind: TensorType) -> Array:
        held = self.setting.formats.enter(array, kind.dtype)
        return shard(held, kind, self.digits.at_edge(name, kind).orders, self.setting.mesh)

    def leave(self, name: str, array: Array, kind: TensorType) -> Array:
        formats = self.setting.formats
        whole = unshard(array, kind, self.digits.at_edge(name, kind).orders, self.setting.mesh, formats)
        return formats.leave(whole, kind.dtype)

    def movement(self, statement: Let, value: Local, result: TensorType) -> Array:
        assert isinstance(statement.operation, Movement)
        moves = statement.operation.moves
        name, mesh = statement.result.name, self.setting.mesh
        if isinstance(moves, Permute):
            array, received = permute(moves, value, result, self.setting)
        else:
            array = roll(moves, value, self.setting) if isinstance(moves, Roll) else move(value, result, self.setting)
            received = received_bytes(moves, value.kind, result, mesh)
        self.bytes_received[name] = self.bytes_received.get(name, 0) + received
        return array


def simulate(
    program: Program,
    func_name: str,
    args: Arrays,
    weights: Arrays | None = None,
    state: Arrays | None = None,
    precision: Precision = "exact",
) -> SimulationResult:
    """Runs a function of an explicit program on all chips of its mesh.

    Takes and returns global arrays by name, as `reference.evaluate` does; types that nobody wrote are completed.
    Raises a `DiagnosticError` where the program is not well typed at the explicit level or has no such function,
    `ReplicaError` where chips that should hold the same do not, and ValueError for wrong arrays.
    """
    program = complete(program)
    verify(program, Level.EXPLICIT)
    func = program.func(func_name)
    setting = KernelSetting(program.mesh, orders_in(program, func), Formats(precision), program.mesh)
    chips = _OnChips(program, func, setting)
    results, kept = chips.run(args, weights or {}, state or {})
    return SimulationResult(results, kept, chips.bytes_received)
