"""What one mesh axis may do in a program, whatever the others do and whatever the sizes are.

The layout problem (`cost.layout_problem`) of the program on a mesh of that axis alone: as rows of states that the
operands and results of each statement can have together, reduced to those that go with the demanded types.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from shardwright.cost.layout_problem import (
    Entry,
    Equal,
    LayoutProblem,
    MadeTree,
    NotPartial,
    PlacementOptions,
    Slice,
    Table,
    UsesTree,
)
from shardwright.cost.layouts import FIRST_DIM, Coding
from shardwright.cost.program_layouts import layout_problem
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Func, Let, Program, Value
from shardwright.ir.types import OpenType, Partial, ValueType, axis_set
from shardwright.ir.walk import map_program_values

Bools = NDArray[np.bool_]


class StuckError(Exception):
    """An axis has no choice that fits the others', or too many to be seen together."""


Rows = tuple[list[int], NDArray[np.int64]]
"""Variables, and the states (numbers of `Coding`) that they can have together."""


@dataclass(eq=False)
class AxisProblem:
    """What one axis may do, sizes apart: for each entry of the layout problem its rows (None for trees), and for each
    variable the states that occur in them."""

    problem: LayoutProblem
    rows: list[Rows | None]
    domain: Bools


def axis_problems(program: Program, coding: Coding) -> Iterator[AxisProblem]:
    """For each axis; those of axes that are demanded alike are one."""
    named = any(dim.order is not None for dim in program.dims) or any(
        isinstance(s, Let) and s.operation.named_axes for func in program.funcs for s, _ in func.walk()
    )
    known: list[tuple[Program, AxisProblem]] = []
    for axis in program.mesh:
        alone = _alone(program, axis, axis if named else "a")
        found = next((problem for other, problem in known if other == alone), None)
        if found is None:
            found = _axis_problem(alone, coding)
            known.append((alone, found))
        yield found


def _axis_problem(alone: Program, coding: Coding) -> AxisProblem:
    problem = layout_problem(alone, PlacementOptions())
    rows = [_rows(entry, coding) for entry in problem.entries]
    domain = np.zeros((len(problem.variables), coding.radix), np.bool_)
    domain[:, :FIRST_DIM] = True
    for variable, node in enumerate(problem.variables):
        domain[variable, [coding.number_of_dim(name) for name in node.shape.names]] = True
    touching = entries_of(problem)
    make_consistent(problem.entries, rows, domain, touching, {entry for some in touching for entry in some})
    return AxisProblem(problem, rows, domain)


def entries_of(problem: LayoutProblem) -> list[list[int]]:
    """For each variable the numbers of the entries that it is in."""
    made: list[list[int]] = [[] for _ in problem.variables]
    for i, entry in enumerate(problem.entries):
        match entry:
            case Table() | Equal() | NotPartial():
                variables = entry.variables
            case Slice():
                variables = [entry.outer, entry.view.home]
            case UsesTree():
                rigid = [variable for _, variable, stays in entry.node.uses if stays]
                variables = [entry.node.home, *rigid] if rigid else []
            case MadeTree():
                variables = []
        for variable in dict.fromkeys(variables):
            made[variable].append(i)
    return made


def _rows(entry: Entry, coding: Coding) -> Rows | None:
    """With one axis the codes of layouts are its states."""
    match entry:
        case Table():
            return list(entry.variables), np.stack(entry.codes, axis=1)
        case Equal():
            states = np.arange(coding.radix, dtype=np.int64)
            return list(entry.variables), np.repeat(states[:, None], len(entry.variables), axis=1)
        case NotPartial():
            states = np.arange(coding.radix, dtype=np.int64)
            return list(entry.variables), states[~coding.partial(states)][:, None]
        case Slice():
            dim = coding.number_of_dim(entry.view.loops[-1].dim)
            states = np.delete(np.arange(coding.radix, dtype=np.int64), dim)
            return [entry.outer, entry.view.home], np.stack([states, states], axis=1)
        case _:
            return None


def make_consistent(
    entries: Sequence[Entry], rows: list[Rows | None], domain: Bools, touching: list[list[int]], dirty: set[int]
) -> None:
    """Drops rows without support and states without rows until nothing changes (arc consistency), in place. `dirty`
    are the entries that may have such.

    Raises `StuckError` where nothing is left.
    """
    queue, waiting = sorted(dirty), set(dirty)
    while queue:
        i = heapq.heappop(queue)
        waiting.discard(i)
        entry, row = entries[i], rows[i]
        changed: list[int] = []
        if row is None:
            assert isinstance(entry, UsesTree)
            home = entry.node.home
            for variable in [v for _, v, stays in entry.node.uses if stays]:
                both = domain[home] & domain[variable]
                changed += [v for v in (home, variable) if (both != domain[v]).any()]
                domain[home] = domain[variable] = both
        else:
            variables, states = row
            keep = domain[variables[0], states[:, 0]]
            for k, variable in enumerate(variables[1:], 1):
                keep = keep & domain[variable, states[:, k]]
            if not keep.all():
                states = states[keep]
                rows[i] = variables, states
            for k, variable in enumerate(variables):
                left = np.zeros(domain.shape[1], np.bool_)
                left[states[:, k]] = True
                left &= domain[variable]
                if left.tobytes() != domain[variable].tobytes():
                    domain[variable] = left
                    changed.append(variable)
        for variable in changed:
            if not domain[variable].any():
                raise StuckError
            for other in touching[variable]:
                if other not in waiting:
                    waiting.add(other)
                    heapq.heappush(queue, other)


def _alone(program: Program, axis: str, name: str) -> Program:
    """The program on a mesh of one axis, of a size that divides everything: what is demanded of it, and no sizes."""
    return on_axes(program, {axis: name}, Mesh(((name, 1),)))


def on_axes(program: Program, names: Mapping[str, str], mesh: Mesh) -> Program:
    """The program on some axes of its mesh, under other names: what is demanded of these."""

    def kind(before: ValueType) -> ValueType:
        splits = tuple(
            None if axes is None else axis_set(names[a] for a in axes if a in names) for axes in before.splits
        )
        partial = before.partial
        if isinstance(partial, Partial):
            left = axis_set(names[a] for a in partial.axes if a in names)
            partial = Partial(partial.kind, left) if left else None
        if isinstance(before, OpenType):
            return replace(before, splits=splits, partial=partial)
        return replace(before, splits=splits, partial=partial)

    def value(_func: Func | None, before: Value) -> Value:
        return replace(before, type=kind(before.type))

    made = map_program_values(program, value, lambda _func, before: kind(before))
    return replace(made, mesh=mesh)
