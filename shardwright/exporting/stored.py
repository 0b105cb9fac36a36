"""Where the arrays of a checkpoint lie: weights as their files name and shape them, dimension by dimension."""

from __future__ import annotations

import fnmatch
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, fault
from shardwright.models.weight_map import NUMBERED, extents, numbered, word_of
from shardwright.models.weights import TensorRange, dims_of

if TYPE_CHECKING:
    from shardwright.backends.jax.edges import EdgeArray, ProgramEdges
    from shardwright.ir.program import Program, Value
    from shardwright.ir.types import Axes
    from shardwright.models.weight_map import WeightEntry, WeightMap

_SAFE = re.compile(rf"([A-Za-z0-9_.\-/]|{NUMBERED.pattern})+")
"""Names that may stand in the code that is written."""


@dataclass(frozen=True)
class Laid:
    """An array, or one for each number that stands for a `{layer}` or `{expert}` of its name, `counts` many, and the
    axes that split each of its dimensions into blocks, most significant first. `weight` is the program's name, `groups`
    the program's dimensions that each dimension is made of."""

    weight: str
    name: str
    counts: Mapping[str, int]
    axes: tuple[Axes, ...]
    groups: tuple[tuple[str, ...], ...]

    @property
    def dims(self) -> frozenset[str]:
        """All of the program's dimensions."""
        return frozenset(dim for group in self.groups for dim in group)

    @property
    def names(self) -> list[str]:
        """The name of every array."""
        numbers = itertools.product(*map(range, self.counts.values()))
        return [numbered(self.name, dict(zip(self.counts, each, strict=True))) for each in numbers]

    def entry(self, layout: str) -> str:
        """The layout by the array's name, or by those of all, as a dict of Python has it."""
        if not self.counts:
            return f"{self.name!r}: {layout}"
        loops = " ".join(f"for {word} in range({count})" for word, count in self.counts.items())
        return f'**{{f"{self.name}": {layout} {loops}}}'

    def patterns(self, others: Sequence[Laid]) -> list[str]:
        """The name with `*` for numbers; every array's name where that would be another's too that lies otherwise."""
        pattern = NUMBERED.sub("*", self.name)
        alike = (name for each in others if each.axes != self.axes for name in each.names)
        return self.names if self.counts and fnmatch.filter(alike, pattern) else [pattern]


def in_blocks(edges: ProgramEdges, value: Value) -> EdgeArray:
    """A weight or a state value as it is stored. Raises a `DiagnosticError` where chips hold no block each."""
    edge = edges.stored(value)
    if edge.is_strided or edge.addends:
        raise refused(
            f"{value.name}: {edge.kind} is not in blocks" + ("" if edge.addends else " under the order of its digits"),
            "demand it whole, or give its dimension the order of digits in which its axes come first",
        )
    return edge


def laid_weights(program: Program, edges: ProgramEdges, mapping: WeightMap | None) -> list[Laid]:
    """Every weight as it is stored: by the tensors of its checkpoint, or, without a mapping, under its own name.

    Raises a `DiagnosticError` for a weight whose tensors cannot be cut into blocks as its type says: layers or experts
    that chips divide between them, parts of one dimension that blocks would cut across, another layout for each part.
    """
    found: dict[str, Laid] = {}
    for value in program.weights:
        edge = in_blocks(edges, value)
        if mapping is None or value.name not in mapping.entries:
            laid = Laid(value.name, value.name, {}, edge.axes, tuple((dim,) for dim in edge.kind.names))
        else:
            laid = _laid(value.name, mapping.entries[value.name], edge, mapping.sizes, program.mesh)
        other = found.setdefault(laid.name, laid)
        if other.axes != laid.axes:
            raise refused(
                f"{other.weight} and {laid.weight} are parts of {laid.name}, and lie otherwise than each other",
                f"give both the layout of {other.weight}",
            )
    return list(found.values())


def _laid(name: str, entry: WeightEntry, edge: EdgeArray, sizes: Mapping[str, int], mesh: Mapping[str, int]) -> Laid:
    if not _SAFE.fullmatch(entry.tensor):
        raise refused(f"{entry.tensor!r}, of which {name} is made, is no name of a tensor", "mend OUT.weights.json")
    if {dim: sizes[dim] for dim in entry.dims} != {dim.name: dim.size for dim in edge.kind.dims}:
        raise refused(
            f"{name}: {edge.kind} has another shape than in the checkpoint",
            "OUT.weights.json is of another program, or of other sizes: write it with shardwright import",
        )
    split = dict(zip(edge.kind.names, edge.axes, strict=True))
    for dim in entry.stacked:
        if split[dim]:
            raise refused(
                f"{name}: {edge.kind} divides {dim} over {' '.join(split[dim])}, and {entry.tensor} is one tensor "
                f"for each index of {dim}",
                f"leave {dim} whole",
            )
    counts = {word_of(dim): sizes[dim] for dim in entry.stacked}
    axes = tuple(_group_axes(name, entry.tensor, group, split, sizes, mesh) for group in entry.stored)
    groups = tuple(tuple(dim for item in group for dim in dims_of(item)) for group in entry.stored)
    return Laid(name, entry.tensor, counts, axes, groups)


def _group_axes(
    name: str,
    tensor: str,
    group: Sequence[str | TensorRange],
    split: Mapping[str, Axes],
    sizes: Mapping[str, int],
    mesh: Mapping[str, int],
) -> Axes:
    """The axes that split a stored dimension made of several: those of its first dimensions, each but the last of
    which they must split to the end."""
    made: list[str] = []
    whole_before = True
    for item, size in zip(group, extents(group, sizes), strict=True):
        over = tuple(axis for dim in dims_of(item) for axis in split[dim])
        if over and isinstance(item, TensorRange):
            raise refused(
                f"{name} is {item.start}:{item.stop} of {item.size} in a dimension of {tensor}, and chips that split "
                "it would hold a piece of each part",
                f"leave {' and '.join(dim for dim in dims_of(item) if split[dim])} whole",
            )
        if over and not whole_before:
            raise refused(
                f"{name}: chips hold several pieces of a dimension of {tensor}, which is made of "
                f"{' '.join(map(_item_text, group))}",
                f"leave {item} whole, or split what stands before it to the end",
            )
        made.extend(over)
        whole_before = whole_before and math.prod(mesh[axis] for axis in over) == size
    return tuple(made)


def _item_text(item: str | TensorRange) -> str:
    return item if isinstance(item, str) else f"{item.start}:{item.stop} of {item.size}"


def refused(what: str, way_out: str) -> DiagnosticError:
    return fault("not-exported", what, NOWHERE, way_out)
