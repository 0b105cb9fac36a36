"""A traced function: applications of named primitives, which JAX and PyTorch share from here on."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from shardwright.ir.types import Partial, Reduction, axis_set


@dataclass(frozen=True)
class Variable:
    """A value of the traced function; its number is its own in the whole graph."""

    number: Hashable
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class Constant:
    """A single number that is the same at every index of `shape`."""

    value: float
    shape: tuple[int, ...]
    dtype: str


Operand = Variable | Constant

Layout = tuple[tuple[str, ...] | None, ...]
"""The mesh axes that split each dimension, most significant first; None where that is left open."""


Frames = tuple[tuple[str, int], ...]
"""Calls that lead to a line, the outermost first, each with its file and line."""


@dataclass(frozen=True)
class Application:
    """A primitive applied to operands, with the line of the user's file that asked for it. `frames` are the calls that
    led there, as far as they are the user's; a gradient has none. `columns` are where its expression begins and ends
    in the line."""

    primitive: str
    operands: tuple[Operand, ...]
    params: Mapping[str, Any]
    results: tuple[Variable, ...]
    place: str = ""
    frames: Frames = ()
    columns: tuple[int, int] = (0, 0)


@dataclass
class Graph:
    """The body of a function or of a loop."""

    parameters: list[Variable] = field(default_factory=list[Variable])
    applications: list[Application] = field(default_factory=list[Application])
    results: list[Operand] = field(default_factory=list[Operand])
    constants: dict[Variable, npt.NDArray[Any]] = field(default_factory=dict[Variable, npt.NDArray[Any]])
    """Arrays that the function closes over, last those that a call changes; only the outermost graph has them."""
    changed: dict[Variable, Operand | None] = field(default_factory=dict[Variable, Operand | None])
    """The values that constants have after a call, as far as it changes them; None where a loop sets each slice."""


@dataclass(frozen=True)
class GraphEdge:
    """A parameter or a result: its path in the pytree, and the example's shape and number format; the mesh axes that
    split each dimension, most significant first, where its sharding is given."""

    path: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    axes: Layout | None = None
    members: tuple[str, ...] = ()
    """The paths of the weights that are stacked along the first dimension, where the path stands for several."""
    unreduced: tuple[str, ...] = ()
    """The mesh axes along which its chips hold addends, where its sharding is given."""

    @property
    def addends(self) -> str:
        """The part of its type after the row."""
        return str(Partial(Reduction.SUM, axis_set(self.unreduced))) if self.unreduced else ""

    @property
    def name(self) -> str:
        """The path of a weight as its module has it."""
        return ".".join(self.path[1:])

    def of(self, arrays: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Its array of those by path, stacked where it stands for several."""
        return np.stack([arrays[path] for path in self.members]) if self.members else arrays[self.name]


@dataclass(frozen=True)
class TracedFunction:
    """A function as a graph, with what stands at its edges."""

    name: str
    graph: Graph
    inputs: tuple[GraphEdge, ...]
    results: tuple[GraphEdge, ...]
    weights: tuple[GraphEdge, ...] = ()
    """Of the graph's constants, in their order."""
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])
    """The mesh of the shardings that the function or its arguments name, empty without any."""
    arguments: tuple[str, ...] = ()
    """The names that the function has for its arguments, as far as each has one."""

    def split_axes(self) -> list[str]:
        """The mesh axes that the shardings at its edges name, in their order."""
        edges = (*self.weights, *self.inputs, *self.results)
        named = ([axis for axes in edge.axes or () for axis in axes or ()] for edge in edges)
        return list(dict.fromkeys(chain(*named, *(edge.unreduced for edge in edges))))

    def stored(self) -> list[tuple[Variable, GraphEdge]]:
        """Constants and parameters, each with its edge."""
        return [
            *zip(self.graph.constants, self.weights, strict=True),
            *zip(self.graph.parameters, self.inputs, strict=True),
        ]


def uniform(array: npt.NDArray[Any]) -> float | None:
    """The one number of an array, None where it has several."""
    flat = array.reshape(-1)
    if not flat.size or (flat.size > 1 and not (flat == flat[0]).all()):
        return None
    return int(flat[0]) if array.dtype.kind in "biu" else float(flat[0])  # bfloat16 is of kind V


def bodies(application: Application) -> Iterator[Graph]:
    """The graphs within an application: the body of a loop, branches."""
    for value in application.params.values():
        yield from (each for each in _listed(value) if isinstance(each, Graph))


def _listed(value: Any) -> Sequence[object]:
    return cast("Sequence[object]", value) if isinstance(value, list) else (value,)


def reads(graph: Graph) -> Iterator[Hashable]:
    """The numbers of variables that a graph reads, as often as it does, those of bodies included."""
    for application in graph.applications:
        yield from (each.number for each in variables(application.operands))
        for body in bodies(application):
            yield from reads(body)
    yield from (each.number for each in variables([*graph.results, *filter(None, graph.changed.values())]))


def variables(operands: Sequence[Operand]) -> Iterator[Variable]:
    """The operands that are variables, not numbers."""
    return (each for each in operands if isinstance(each, Variable))
