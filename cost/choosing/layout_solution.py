"""Solved layout problems, the effort that solving them may take, and their tables of costs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.choosing.factor_graph import GraphSolution
from shardwright.cost.choosing.factors import Factor
from shardwright.cost.choosing.layout_problem import Entry, Group, Location, UseKey, ValueNode
from shardwright.cost.choosing.layouts import Moves
from shardwright.cost.choosing.work_limit import WorkLimit
from shardwright.ir.digits import Order
from shardwright.ir.mesh import Mesh
from shardwright.ir.types import TensorType


@dataclass(frozen=True)
class LayoutSolution:
    """A solved layout problem."""

    nodes: list[ValueNode]
    defined: dict[tuple[Location, str], ValueNode]
    """Nodes by the statement (or function) that defines them, by identity, and their name."""
    kinds: dict[int, TensorType]
    """The chosen type of each variable."""
    by_use: dict[UseKey, tuple[ValueNode, int]]
    trees: dict[ValueNode, list[tuple[TensorType, TensorType]]]
    """For each node (by identity) the movements from home, parents first."""
    bytes_received: float
    solution: GraphSolution
    steps: float
    bound_bytes: float | None
    """Bytes received at least, whatever the layouts; None where nothing is proved of that."""
    orders: Mapping[str, Order] = field(default_factory=dict[str, Order])
    """The first digits of dimensions that cost and bound are of, edges included; `bytes_received` has no edges."""
    shared_edges: bool = True
    """Tells whether with edges apart (`PlacementOptions`) cost and choice might be others."""
    counted: Mapping[tuple[TensorType, TensorType], tuple[float, float, float]] = field(
        default_factory=dict[tuple[TensorType, TensorType], tuple[float, float, float]]
    )
    """The bytes received, the steps and the seconds that each movement counts."""
    relaxed: LayoutSolution | None = None
    """The best layouts regardless of digits, where digits conflict. Only some of the layouts whose digits agree were
    looked at; the bound of these layouts holds for all of them."""

    def moves_unevenly(self, mesh: Mesh) -> bool:
        """Tells whether what moves has dimensions that some axes divide and not all chips: beside digits that others
        have of these, a movement may cost more than it does alone, which is what is counted."""
        return any(
            dim.size % mesh.n_chips and any(dim.size % size == 0 for size in mesh.values() if size > 1)
            for node in self.nodes
            if self.trees.get(node) or (node.made >= 0 and self.kinds[node.made] != self.kinds[node.home])
            for dim in node.shape.dims
        )


@dataclass(frozen=True)
class Effort:
    """How much choosing may do: `limit` bounds the work of a proof, `end` the time, in seconds of the monotonic clock.
    Without `proof` what a few axes at a time find has to do, with those in two groups first where it is to be
    `thorough`. Where it is `needed` a first choice may take longer than to the `end`. `start` is a choice to begin
    with, if there is one. What costs the `cutoff` or more does not matter, however much more."""

    limit: WorkLimit = field(default_factory=WorkLimit)
    end: float = math.inf
    proof: bool = True
    thorough: bool = False
    needed: bool = True
    start: LayoutSolution | None = None
    cutoff: float = math.inf


@dataclass(frozen=True)
class CostTables:
    """A problem in costs, but for those at edges: what each variable can be, the movements in each group, and factors,
    each with what it is of."""

    choices: list[NDArray[np.int64]]
    moves: dict[Group, Moves]
    factors: list[tuple[Entry | None, Factor]]
