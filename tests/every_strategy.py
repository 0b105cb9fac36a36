"""Every strategy of an operation, from its rows for each axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from shardwright.ir.mesh import Mesh
from shardwright.ir.operation import Arg, Operation
from shardwright.ir.strategies import axis_table, divides
from shardwright.ir.types import Shape, TensorType

Strategy = tuple[tuple[TensorType | None, ...], tuple[TensorType, ...]]
"""Operand types (None for a literal) and result types."""


def strategies(operation: Operation, args: Sequence[Arg], results: Sequence[Shape], mesh: Mesh) -> Iterator[Strategy]:
    """Every strategy of the operation on the mesh, in a fixed order."""
    tables = [axis_table(operation, args, results, axis) for axis in mesh]
    for rows in product(*tables):
        operands: list[TensorType | None] = []
        made: list[TensorType] = []
        try:
            for i, arg in enumerate(args):
                states = {axis: row.operands[i] for axis, row in zip(mesh, rows, strict=True)}
                operands.append(None if arg.shape is None else TensorType.of_states(arg.shape, states))
            for i, shape in enumerate(results):
                states = {axis: row.results[i] for axis, row in zip(mesh, rows, strict=True)}
                made.append(TensorType.of_states(shape, states))
        except ValueError:
            continue
        if all(kind is None or divides(kind, mesh) for kind in (*operands, *made)):
            yield tuple(operands), tuple(made)
