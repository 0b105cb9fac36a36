"""A program as one chip of a mesh runs it: every value has the extents of the chip's shard.

Its type also has what of the whole value the chip holds, by which kernels number elements and chips exchange parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shardwright.backends.torch.chip import Rank, RankShard
from shardwright.cost.programs.segments import SegmentRead
from shardwright.ir.program import Func, Program, Value
from shardwright.ir.types import TensorType, ValueType
from shardwright.ir.walk import map_program_values


@dataclass(frozen=True)
class ShardType(TensorType):
    """The type of a shard: `dims` are as long as on the chip, which has `held` them of the whole value."""

    held: RankShard | None = field(default=None, compare=False)

    def without_dim(self, name: str) -> TensorType:
        held = self.held.without((name,)) if self.held is not None and name in self.names else self.held
        return replace(super().without_dim(name), held=held)  # pyright: ignore[reportCallIssue]


def held_of(kind: ValueType) -> RankShard | None:
    return kind.held if isinstance(kind, ShardType) else None


def held_in(reads: Mapping[str, SegmentRead]) -> dict[str, RankShard]:
    """The part of values that the chip holds, as statements see them."""
    found = {name: held_of(read.kind) for name, read in reads.items()}
    return {name: held for name, held in found.items() if held is not None}


def sharded(program: Program, func: Func, chip: Rank) -> Program:
    """The program with this function alone, as the chip runs it. Its types have no holes."""

    def shard(name: str, whole: ValueType) -> ShardType:
        assert isinstance(whole, TensorType)
        held = RankShard(replace(chip, digits=chip.digits.at_edge(name, whole)), whole)
        dims, placement = held.shape.dims, whole.placement
        return ShardType(whole.dtype, dims, whole.splits, whole.partial, placement, whole.in_flight, held)

    def change(_: Func | None, value: Value) -> Value:
        return replace(value, type=shard(value.name, value.type))

    results = tuple(shard(name, kind) for name, kind in zip(func.returns, func.results, strict=True))
    made = map_program_values(replace(program, funcs=(func,)), change)
    return replace(made, funcs=tuple(replace(each, results=results) for each in made.funcs))
