"""A program as one chip of a mesh runs it: every value has the extents of the chip's shard.

Its type also has what of the whole value the chip holds, by which kernels number elements and chips exchange parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardwright.backends.simulation.digit_factors import Digits
from shardwright.backends.torch.chip import Rank, RankShard
from shardwright.cost.programs.segments import SegmentRead
from shardwright.ir.program import Func, Program, Value
from shardwright.ir.types import TensorType, ValueType
from shardwright.ir.walk import map_program_values

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ShardType(TensorType):
    """The type of a shard: `dims` are as long as on the chip, which has `held` them of the whole value."""

    held: RankShard | None = field(default=None, compare=False)

    def without_dim(self, name: str) -> TensorType:
        held = self.held.without((name,)) if self.held is not None and name in self.names else self.held
        return replace(super().without_dim(name), held=held)  # pyright: ignore[reportCallIssue]


@dataclass(frozen=True, repr=False)
class ShardedProgram(Program):
    """A program as one chip runs it: `chips` is that one, with the digits in force in each function."""

    chips: Mapping[str, Rank] = field(default_factory=dict[str, Rank], compare=False)


def held_of(kind: ValueType) -> RankShard | None:
    return kind.held if isinstance(kind, ShardType) else None


def entered(tensor: Tensor, kind: ValueType) -> Tensor:
    """The chip's part of the elements of a whole value of this type, which may have other dimensions."""
    held = held_of(kind)
    if held is None:
        return tensor.reshape([dim.size for dim in kind.dims])
    whole = tensor.reshape([dim.size for dim in held.kind.dims])
    for axis, name in enumerate(held.kind.names):
        if held.kind.split(name):
            whole = whole.index_select(axis, held.indices_on(whole.device, name))
    return whole


def held_in(reads: Mapping[str, SegmentRead]) -> dict[str, RankShard]:
    """The part of values that the chip holds, as statements see them."""
    found = {name: held_of(read.kind) for name, read in reads.items()}
    return {name: held for name, held in found.items() if held is not None}


def sharded(program: Program, number: int) -> ShardedProgram:
    """The program as the chip of this number runs it. Its types have no holes.

    Weights and state have the digits of the first function, as all do: the order of a dimension is the program's.
    """
    chips = {func.name: Rank(Digits.of(program, func), number) for func in program.funcs}
    outside = chips[program.funcs[0].name]

    def shard(own: Rank, name: str, whole: ValueType) -> ShardType:
        assert isinstance(whole, TensorType)
        held = RankShard(replace(own, digits=own.digits.at_edge(name, whole)), whole)
        dims, placement = held.shape.dims, whole.placement
        return ShardType(whole.dtype, dims, whole.splits, whole.partial, placement, whole.in_flight, held)

    def change(func: Func | None, value: Value) -> Value:
        own = outside if func is None else chips[func.name]
        return replace(value, type=shard(own, value.name, value.type))

    def results(func: Func) -> tuple[ShardType, ...]:
        named = zip(func.returns, func.results, strict=True)
        return tuple(shard(chips[func.name], name, kind) for name, kind in named)

    made = map_program_values(program, change)
    funcs = zip(made.funcs, program.funcs, strict=True)
    typed = tuple(replace(own, results=results(whole)) for own, whole in funcs)
    return ShardedProgram(made.mesh, made.dims, made.weights, made.state, typed, made.chip, made.chip_span, chips)
