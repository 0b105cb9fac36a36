"""The interpreter of programs on one torch device: statements in order, loops trip by trip, movements without effect.

What lives at once is counted; `free` drops a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.backends.torch.kernels import compute
from shardwright.backends.torch.tensors import Argument, Named
from shardwright.ir.diagnostics import DiagnosticError, fault, placed
from shardwright.ir.operation import Number, Operand
from shardwright.ir.ops import Ahead, Movement, Roll
from shardwright.ir.program import Free, Func, Let, Loop, Program, SetState, Statement
from shardwright.ir.types import DType

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class Bound:
    """What a name stands for, and how many loops stand around its definition."""

    value: Named
    loops: int


Names = dict[str, Bound]


class Interpreter:
    """Runs statements of one function on a device; `live_bytes` is told what the values at hand take."""

    def __init__(
        self, program: Program, func: Func, device: torch.device, live_bytes: Callable[[int], None] | None = None
    ) -> None:
        self.program = program
        self.func = func
        self.device = device
        self.sizes = program.sizes(func)
        self.state_names = program.state_names
        self.accounted: set[int] = set()
        """Addresses of storages that are counted elsewhere."""
        self._live_bytes = live_bytes

    def run(self, args: Mapping[str, Named], stored: Mapping[str, Named]) -> tuple[Named, ...]:
        """The results of the function. `stored` are weights and state; the tensors of state are written in place."""
        names = {name: Bound(value, 0) for name, value in {**stored, **args}.items()}
        self.block(self.func.body, names, {})
        return tuple(self.read(name, names, {}) for name in self.func.returns)

    def block(self, body: Sequence[Statement], names: Names, trips: Mapping[str, int]) -> None:
        """Runs the statements."""
        for statement in body:
            self.statement(statement, names, trips)
            if self._live_bytes is not None:
                self._live_bytes(self.bytes_of(names))

    def statement(self, statement: Statement, names: Names, trips: Mapping[str, int]) -> None:
        match statement:
            case Let():
                at, none = dict(trips), False
                if isinstance(statement.operation, Movement) and isinstance(statement.operation.moves, Ahead):
                    at, none = statement.operation.moves.following(trips, self.sizes)
                arguments: list[Argument] = [self._argument(operand, names, at) for operand in statement.operands]
                if none and isinstance(arguments[0], Named):
                    there = arguments[0]
                    arguments = [Named(there.tensor.new_zeros(there.tensor.shape), there.names, there.dtype)]
                try:
                    made = self._let(statement, arguments)
                except DiagnosticError:
                    with placed(statement.span):
                        raise
                for value, tensor in zip(statement.results, made, strict=True):
                    names[value.name] = Bound(tensor, len(trips))
            case SetState():
                self.set_state(statement, names, trips)
            case Free():
                for name in statement.names:
                    names.pop(name, None)
            case Loop():
                self._loop(statement, names, trips)

    def _let(self, statement: Let, arguments: list[Argument]) -> tuple[Named, ...]:
        if isinstance(statement.operation, Movement):
            if isinstance(statement.operation.moves, Roll):
                raise fault("no-roll", "the PyTorch backend runs programs of one device, where nothing rolls")
            value = arguments[0]
            assert isinstance(value, Named)
            return (value,)
        return compute(statement.operation, arguments, [v.shape for v in statement.results], self.device)

    def set_state(self, statement: SetState, names: Names, trips: Mapping[str, int]) -> None:
        value = self.read(statement.operand, names, trips)
        bound = names[statement.state]
        part, _ = slice_of(bound, trips)
        bound.value.tensor[part].copy_(value.tensor)

    def _argument(self, operand: Operand, names: Names, trips: Mapping[str, int]) -> Argument:
        return operand if isinstance(operand, Number) else self.read(operand, names, trips)

    def read(self, name: str, names: Names, trips: Mapping[str, int]) -> Named:
        """A value as the loops around see it: where they go over dimensions of what is captured, its slice."""
        bound = names[name]
        part, kept = slice_of(bound, trips)
        if len(kept) == len(bound.value.names):
            value = bound.value
        else:
            value = Named(bound.value.tensor[part], kept, bound.value.dtype)
        # State is written in place; what was read before must not change with it.
        return Named(value.tensor.clone(), value.names, value.dtype) if name in self.state_names else value

    def _loop(self, loop: Loop, names: Names, trips: Mapping[str, int]) -> None:
        import torch

        carried = [self.read(carry.initial, names, trips) for carry in loop.carries]
        for index in range(self.sizes[loop.dim]):
            inner_trips = {**trips, loop.dim: index}
            inner = dict(names)
            for carry, value in zip(loop.carries, carried, strict=True):
                inner[carry.value.name] = Bound(value, len(inner_trips))
            if loop.index is not None:
                number = torch.tensor(index, device=self.device)
                inner[loop.index] = Bound(Named(number, (), DType.INT32), len(inner_trips))
            self.block(loop.body, inner, inner_trips)
            carried = [self.read(name, inner, inner_trips) for name in loop.following]
        for result, value in zip(loop.results, carried, strict=True):
            names[result.name] = Bound(value, len(trips))

    def bytes_of(self, names: Names) -> int:
        """Of the storages that the values at hand lie in, each counted once."""
        storages = (bound.value.tensor.untyped_storage() for bound in names.values())
        return sum({s.data_ptr(): s.nbytes() for s in storages if s.data_ptr() not in self.accounted}.values())


def slice_of(bound: Bound, trips: Mapping[str, int]) -> tuple[tuple[int | slice, ...], tuple[str, ...]]:
    """Of a captured value, which part the loops around see, and the dimensions that are left."""
    loops = list(trips.items())[bound.loops :]
    at = {dim: index for dim, index in loops if dim in bound.value.names}
    part = tuple(at.get(dim, slice(None)) for dim in bound.value.names)
    return part, tuple(dim for dim in bound.value.names if dim not in at)
