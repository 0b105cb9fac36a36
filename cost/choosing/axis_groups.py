"""The axes of a mesh that a program does not tell apart, and those that it has no use for."""

from __future__ import annotations

from shardwright.ir.digit_orders import typed_values
from shardwright.ir.program import Program
from shardwright.ir.types import Partial
from shardwright.ir.walk import lets

MOST_AXES = 3
"""With more axes of more than one chip, those that the program never tells apart are chosen for together."""


def axis_groups(program: Program, most: int = MOST_AXES) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Positions of axes that need not be chosen for: idle ones, of one chip and never written; and groups chosen for
    together, because no written type and no operation tells them apart, where there are more than `most`.
    """
    mesh = program.mesh
    roles: dict[str, list[object]] = {axis: [] for axis in mesh}
    for func in program.funcs:
        for use in typed_values(program, func):
            for axis in mesh:
                split = [
                    d.name for d, axes in zip(use.type.dims, use.type.splits, strict=True) if axes and axis in axes
                ]
                partial = isinstance(use.type.partial, Partial) and axis in use.type.partial.axes
                roles[axis].append((split, partial))
        for let, _ in lets(program, func):
            for axis in mesh:
                roles[axis].append(str(let.operation) if axis in let.operation.named_axes else None)
    for dim in program.dims:
        for axis in mesh:
            roles[axis].append(dim.order is not None and axis in dim.order)
    idle = tuple(
        i
        for i, axis in enumerate(mesh)
        if mesh[axis] == 1 and all(role in (None, False, ([], False)) for role in roles[axis])
    )
    if sum(size > 1 for size in mesh.values()) <= most:
        return idle, ()
    groups: dict[str, list[int]] = {}
    for i, axis in enumerate(mesh):
        if mesh[axis] > 1:
            groups.setdefault(repr(roles[axis]), []).append(i)
    return idle, tuple(tuple(group) for group in groups.values() if len(group) > 1)
