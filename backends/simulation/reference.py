"""The unsharded meaning of a program: every value one global array, movements but `roll`, and placements, without
effect."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from shardwright.backends.number_formats import Array, Formats, Precision
from shardwright.backends.simulation.interpreter import Arrays, Interpreter
from shardwright.backends.simulation.local_values import KernelSetting, Local
from shardwright.ir.mesh import Mesh
from shardwright.ir.ops import Movement, Roll
from shardwright.ir.program import Let, Program
from shardwright.ir.types import TensorType, ValueType


class _Unsharded(Interpreter):
    def kind(self, written: ValueType) -> TensorType:
        return TensorType.whole(written.shape)

    def enter(self, name: str, array: npt.ArrayLike, kind: TensorType) -> Array:
        return self.setting.formats.enter(array, kind.dtype)

    def leave(self, name: str, array: Array, kind: TensorType) -> Array:
        return self.setting.formats.leave(array, kind.dtype)

    def movement(self, statement: Let, value: Local, result: TensorType) -> Array:
        assert isinstance(statement.operation, Movement)
        moves = statement.operation.moves
        if isinstance(moves, Roll):
            return rolled(moves, value, self.setting)
        return value.array


def evaluate(
    program: Program,
    func_name: str,
    args: Arrays,
    weights: Arrays | None = None,
    state: Arrays | None = None,
    precision: Precision = "exact",
) -> tuple[tuple[Array, ...], dict[str, Array]]:
    """The meaning of a function of a program, surface or explicit: its results and the new state.

    Takes and returns global arrays by name, weights and state in full; floats come back in float64 under `exact`,
    in their declared format under `declared`. Raises a `DiagnosticError` for an unknown function, ValueError where
    an array is missing, superfluous or of another shape than its type.
    """
    func = program.func(func_name)
    setting = KernelSetting(Mesh(()), {}, Formats(precision), program.mesh)
    return _Unsharded(program, func, setting).run(args, weights or {}, state or {})


def rolled(operation: Roll, value: Local, setting: KernelSetting) -> Array:
    """The meaning of `roll` unsharded: the dimension's K blocks moved on by `shift`, K the chips along its axes."""
    at = value.kind.names.index(operation.dim)
    K = math.prod(setting.axis_sizes[axis] for axis in operation.axes)
    return np.roll(value.array, operation.shift * (value.array.shape[at] // K), axis=at)
