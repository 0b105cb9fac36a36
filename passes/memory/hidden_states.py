"""Hidden states: what loops over layers carry is state in a block schedule, so that batches take turns with it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwright.ir.program import Carry, DimInfo, Loop, Marking, Program, Value
from shardwright.ir.rewriter import Namer
from shardwright.ir.types import Dim
from shardwright.passes.micro_batches import MicroBatches, fresh_dim


class HiddenStates:
    """The values that loops over layers carried, as state: values that each function sets before it reads them."""

    def __init__(self, program: Program, made: MicroBatches) -> None:
        self.program = program
        self.made = made
        self.values: list[Value] = []
        self.dims: list[DimInfo] = []
        self.carried: dict[tuple[str, str], CarriedState] = {}
        self._overridden = {name for func in program.funcs for name, _ in func.overrides}
        namer = Namer.of(program, *program.funcs)
        for func in program.funcs:
            for statement, _ in func.walk():
                if isinstance(statement, Loop) and over_layers(statement, program, made):
                    for carry in statement.carries:
                        alone = len(program.funcs) == 1
                        name = f"{carry.value.name}_state" if alone else f"{func.name}_{carry.value.name}"
                        self.carried[func.name, carry.value.name] = self._of(carry, namer.fresh(name))

    def _of(self, carry: Carry, name: str) -> CarriedState:
        """The state of what is carried, typed as before the division.

        A dimension to which a function gives another size cannot be one of state: it has another name there.
        """
        renamed: list[tuple[str, str]] = []
        dims: list[Dim] = []
        for dim, axes in zip(carry.value.type.dims, carry.value.type.splits, strict=True):
            own = dim.name
            if own in self._overridden:
                own = fresh_dim(self.program, {self.made.outer, *(d.name for d in self.dims)}, own)
                order = self.program.dim(dim.name).order if axes else None
                self.dims.append(DimInfo(own, dim.size, None, order))
                renamed.append((dim.name, own))
            dims.append(Dim(own, dim.size))
        value = Value(name, replace(carry.value.type, dims=tuple(dims)), Marking.DEMANDED)
        self.values.append(self.made.whole_value(value))
        return CarriedState(carry, value, tuple(renamed))


@dataclass(frozen=True)
class CarriedState:
    """A carry of a loop over layers: its old name, the state it is now, and dimensions renamed on the way there."""

    carry: Carry
    state: Value
    renamed: tuple[tuple[str, str], ...]


def over_layers(loop: Loop, program: Program, made: MicroBatches) -> bool:
    """Tells whether a loop carries rows of the batch over a dimension of the weights."""
    carries = any(made.has_rows(carry.value.type) for carry in loop.carries)
    return carries and any(loop.dim in value.type.names for value in program.weights)
