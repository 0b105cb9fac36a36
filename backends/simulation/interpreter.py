"""The interpreter of programs: statements in order, loops trip by trip, state replaced as it is set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shardwright.backends.number_formats import Array
from shardwright.backends.simulation.kernels import compute
from shardwright.backends.simulation.local_values import Argument, KernelSetting, Local
from shardwright.ir.diagnostics import fault
from shardwright.ir.operation import Number, Operand
from shardwright.ir.ops import Ahead, Movement
from shardwright.ir.program import Free, Func, Let, Loop, Program, SetState, Statement, Value
from shardwright.ir.types import DType, TensorType, ValueType
from shardwright.ir.weight_source import require_names

Arrays = Mapping[str, npt.ArrayLike]


@dataclass
class _Bound:
    """The value that a name stands for, and how many loops stand around its definition."""

    array: Array
    kind: TensorType
    loops: int


@dataclass(frozen=True)
class _Trip:
    """Where a loop is."""

    loop: Loop
    index: int


class Interpreter(ABC):
    """Runs one function of a program; subclasses say how arrays lie on chips and what a movement does."""

    def __init__(self, program: Program, func: Func, setting: KernelSetting) -> None:
        self.program = program
        self.func = func
        self.setting = setting
        self.sizes = program.sizes(func)
        self.trips: tuple[_Trip, ...] = ()

    @abstractmethod
    def kind(self, written: ValueType) -> TensorType:
        """The type that a value has here."""

    @abstractmethod
    def enter(self, name: str, array: npt.ArrayLike, kind: TensorType) -> Array:
        """A caller's global array on the chips, under its name; the interpreter may write into it."""

    @abstractmethod
    def leave(self, name: str, array: Array, kind: TensorType) -> Array:
        """A value on the chips as the global array that the caller gets."""

    @abstractmethod
    def movement(self, statement: Let, value: Local, result: TensorType) -> Array:
        """The arrays that a movement leaves on the chips."""

    def run(self, args: Arrays, weights: Arrays, state: Arrays) -> tuple[tuple[Array, ...], dict[str, Array]]:
        """The results and the new state, as global arrays.

        Raises ValueError where an array is missing, superfluous or of another shape than its type.
        """
        names: dict[str, _Bound] = {}
        for what, declared, given in (
            ("weight", self.program.weights, weights),
            ("state", self.program.state, state),
            ("argument", self.func.params, args),
        ):
            self._bind(what, declared, given, names)
        self._block(self.func.body, names)
        results = tuple(self._leave(name, self._read(name, names)) for name in self.func.returns)
        kept = {v.name: self.leave(v.name, names[v.name].array, names[v.name].kind) for v in self.program.state}
        return results, kept

    def _leave(self, name: str, value: Local) -> Array:
        return self.leave(name, value.array, value.kind)

    def _bind(self, what: str, declared: tuple[Value, ...], given: Arrays, names: dict[str, _Bound]) -> None:
        require_names(self.func.name, what, [value.name for value in declared], given)
        for value in declared:
            kind = self.kind(value.type)
            shape, extents = np.shape(given[value.name]), tuple(dim.size for dim in kind.dims)
            if shape != extents:
                raise ValueError(f"{self.func.name}: the {what} {value.name}: {kind} is {extents}, not {shape}")
            names[value.name] = _Bound(self.enter(value.name, given[value.name], kind), kind, 0)

    # ------------------------------------------------------------ statements

    def _block(self, body: tuple[Statement, ...], names: dict[str, _Bound]) -> None:
        for statement in body:
            match statement:
                case Let():
                    kinds = tuple(self.kind(value.type) for value in statement.results)
                    arrays = self._let(statement, kinds, names)
                    for value, array, kind in zip(statement.results, arrays, kinds, strict=True):
                        names[value.name] = _Bound(array, kind, len(self.trips))
                case SetState():
                    self._set(statement, names)
                case Free():
                    for name in statement.names:
                        del names[name]
                case Loop():
                    self._loop(statement, names)

    def _let(self, statement: Let, kinds: tuple[TensorType, ...], names: dict[str, _Bound]) -> tuple[Array, ...]:
        arguments = [self._argument(operand, names) for operand in statement.operands]
        operation = statement.operation
        if isinstance(operation, Movement):
            value = arguments[0]
            assert isinstance(value, Local)
            if isinstance(operation.moves, Ahead) and operation.moves.ahead:
                name = statement.operands[0]
                assert isinstance(name, str)
                value = self._read_ahead(name, operation.moves, names)
            return (self.movement(statement, value, kinds[0]),)
        return compute(statement.operation, arguments, kinds, self.setting)

    def _argument(self, operand: Operand, names: dict[str, _Bound]) -> Argument:
        return operand if isinstance(operand, Number) else self._read(operand, names)

    def _slice(self, bound: _Bound, name: str) -> tuple[tuple[int | slice, ...], TensorType]:
        """Which part of a captured value the loops around see, and its type."""
        kind = bound.kind
        at: dict[str, int] = {}
        for trip in self.trips[bound.loops :]:
            if trip.loop.dim in kind.names:
                if kind.split(trip.loop.dim):
                    raise fault(
                        "split-loop",
                        f"the loop over {trip.loop.dim} takes slices of {name}: {bound.kind}, and"
                        f" {trip.loop.dim} is split over chips",
                        trip.loop.span,
                    )
                at[trip.loop.dim] = trip.index
                kind = kind.without_dim(trip.loop.dim)
        chips = (slice(None),) * len(self.setting.mesh)
        return (*chips, *(at.get(dim, slice(None)) for dim in bound.kind.names)), kind

    def _read(self, name: str, names: dict[str, _Bound]) -> Local:
        bound = names[name]
        part, kind = self._slice(bound, name)
        array = np.asarray(bound.array[part])
        # State is written in place; what was read before must not change with it.
        return Local(array.copy() if name in self.program.state_names else array, kind)

    def _read_ahead(self, name: str, operation: Ahead, names: dict[str, _Bound]) -> Local:
        """The slice that the trip after this one sees of a captured value, zeros after the last."""
        trips = self.trips
        at, none = operation.following({trip.loop.dim: trip.index for trip in trips}, self.sizes)
        self.trips = tuple(_Trip(trip.loop, at[trip.loop.dim]) for trip in trips)
        value = self._read(name, names)
        self.trips = trips
        return Local(np.zeros_like(value.array), value.kind) if none else value

    def _set(self, statement: SetState, names: dict[str, _Bound]) -> None:
        value = self._read(statement.operand, names)
        bound = names[statement.state]
        part, _ = self._slice(bound, statement.state)
        bound.array[part] = value.array

    def _loop(self, loop: Loop, names: dict[str, _Bound]) -> None:
        carried = [self._read(carry.initial, names) for carry in loop.carries]
        outside = self.trips
        for index in range(self.sizes[loop.dim]):
            self.trips = (*outside, _Trip(loop, index))
            inner = dict(names)
            for carry, value in zip(loop.carries, carried, strict=True):
                inner[carry.value.name] = _Bound(value.array, self.kind(carry.value.type), len(self.trips))
            if loop.index is not None:
                kind = TensorType(DType.INT32, (), ())
                inner[loop.index] = _Bound(self.enter(loop.index, np.asarray(index), kind), kind, len(self.trips))
            self._block(loop.body, inner)
            carried = [self._read(name, inner) for name in loop.following]
        self.trips = outside
        for result, value in zip(loop.results, carried, strict=True):
            names[result.name] = _Bound(value.array, self.kind(result.type), len(outside))
