"""The interpreter of explicit programs on one chip of a mesh: its shards, its memories, and its part in movements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from shardwright.backends.torch.chip import Chip, Held
from shardwright.backends.torch.interpreter import Interpreter, Names, slice_of
from shardwright.backends.torch.kernels import compute
from shardwright.backends.torch.movements import MOVEMENTS, Collectives, move
from shardwright.backends.torch.placed import Away, Home
from shardwright.backends.torch.tensors import Argument, Named, held_as
from shardwright.backends.torch.tiers import Tiers
from shardwright.ir.ops import Movement
from shardwright.ir.program import Func, Let, Program, SetState, Value
from shardwright.ir.types import ON_DEVICE, OpenType, Tier

if TYPE_CHECKING:
    from torch import Tensor


class ChipInterpreter(Interpreter):
    """Runs a function on one chip; all chips of the mesh run it together."""

    def __init__(self, program: Program, func: Func, chip: Chip, to: Collectives, tiers: Tiers) -> None:
        memory = tiers.memories[Tier.DEVICE]

        def counted(nbytes: int) -> None:
            memory.working_on(f"what {func.name} computes with", nbytes)

        super().__init__(program, func, tiers.device, counted)
        self.chip = chip
        self.to = to
        self.tiers = tiers
        self.accounted.add(0)  # tensors that have extents and no memory

    def held(self, value: Value) -> Held:
        assert not isinstance(value.type, OpenType)
        return Held(replace(self.chip, digits=self.chip.digits.at_edge(value.name, value.type)), value.type)

    def settled(self, name: str, tensor: Tensor, held: Held) -> Named:
        """The chip's tensor where its type says that it lives."""
        kind = held.kind
        if kind.placement in (None, ON_DEVICE):
            return Named(tensor, kind.names, kind.dtype, held)
        along = kind.names.index(kind.placement.along) if kind.placement.along is not None else 0
        home = Home(self.tiers, name, held.extents, held_as(kind.dtype), kind.placement, along)
        part = (slice(None),) * len(kind.names)
        home.save(tensor, part)
        return Away(tensor.to("meta"), kind.names, kind.dtype, held, home, part)

    # ------------------------------------------------------------ statements

    def _let(self, statement: Let, arguments: list[Argument]) -> tuple[Named, ...]:
        results = [self.held(value) for value in statement.results]
        name, held = statement.results[0].name, results[0]
        here = [a if not isinstance(a, Named) else Named(self._here(a), a.names, a.dtype, a.held) for a in arguments]
        if not isinstance(statement.operation, Movement):
            computed = compute(statement.operation, here, [v.shape for v in statement.results], self.device, results)
            return tuple(
                self.settled(value.name, made.tensor, each)
                for value, made, each in zip(statement.results, computed, results, strict=True)
            )
        value, moves = here[0], statement.operation.moves
        assert isinstance(value, Named)
        if type(moves) not in MOVEMENTS:  # between memories
            return (self.settled(name, value.tensor, held),)
        assert value.held is not None
        return (self.settled(name, move(self.to, moves, value.tensor, value.held, held), held),)

    def _here(self, value: Named) -> Tensor:
        """On the device."""
        if isinstance(value, Away):
            return value.load()
        # what follows the last trip of a loop is zeros
        return value.tensor.new_zeros(value.tensor.shape, device=self.device) if value.tensor.is_meta else value.tensor

    def set_state(self, statement: SetState, names: Names, trips: Mapping[str, int]) -> None:
        kept = names[statement.state].value
        if not isinstance(kept, Away):
            super().set_state(statement, names, trips)
            return
        part, left = slice_of(names[statement.state], trips)
        kept.sliced(part, left).save(self._here(self.read(statement.operand, names, trips)))

    def read(self, name: str, names: Names, trips: Mapping[str, int]) -> Named:
        bound = names[name]
        part, left = slice_of(bound, trips)
        if isinstance(bound.value, Away):
            return bound.value.sliced(part, left)
        value = super().read(name, names, trips)
        if bound.value.held is None:
            return value
        held = bound.value.held.without(dim for dim in bound.value.names if dim not in left)
        return Named(value.tensor, value.names, value.dtype, held)
