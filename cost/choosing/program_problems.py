"""The layout problems of one program: under options, in parts, and on some axes of its mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from shardwright.cost.choosing.axis_groups import axis_groups
from shardwright.cost.choosing.kernel_shares import Structure, structure_of
from shardwright.cost.choosing.layout_codes import Codes
from shardwright.cost.choosing.layout_problem import LayoutProblem, PlacementOptions, StrategyTable, Within
from shardwright.cost.choosing.problem_builder import ProblemBuilder
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Func, Program, Value
from shardwright.ir.types import Partial, ValueType, axis_set
from shardwright.ir.walk import map_program_values

Kind = TypeVar("Kind", bound=ValueType)

_KEPT = 1 << 22
"""Entries of tables that are kept, some tens of megabytes: what is beyond is made each time that it is asked for."""


@dataclass(eq=False)
class ProgramProblems:
    """The problems of a program, each made once: choosing asks for the same ones under every order of digits."""

    program: Program
    made: dict[object, LayoutProblem] = field(default_factory=dict[object, LayoutProblem])
    codes: dict[object, list[Codes]] = field(default_factory=dict[object, "list[Codes]"])
    """The rows of strategy tables, by what they depend on."""
    entries: int = 0
    """The entries of all tables that are kept."""
    parts: dict[tuple[int, ...], ProgramProblems] = field(default_factory=dict[tuple[int, ...], "ProgramProblems"])
    """The problems on some axes of the mesh, by the positions of these."""

    @cached_property
    def structure(self) -> Structure:
        """The kernels of the program."""
        return structure_of(self.program)

    def of(self, options: PlacementOptions, within: Within | None = None) -> LayoutProblem:
        """The problem of what is to be chosen for the program, weights and state included, or `within` a part of that.
        Variables have the same numbers in every part."""
        within = within or Within(axis_groups(self.program)[1])
        key = options.of_problem, within.key
        if (known := self.made.get(key)) is not None:
            return replace(known, options=options)
        problem = ProblemBuilder(self, options, within).build()
        tables = (entry for entry in problem.entries if isinstance(entry, StrategyTable))
        if self.room(sum(len(codes) for table in tables for codes in table.codes)):
            self.made[key] = problem
        return problem

    def room(self, entries: int) -> bool:
        """Tells whether so many entries more may be kept, and counts them."""
        fits = self.entries + entries <= _KEPT
        self.entries += entries * fits
        return fits

    def on(self, axes: Sequence[int]) -> ProgramProblems:
        """The problems of the program on these axes of its mesh."""
        if (key := tuple(axes)) not in self.parts:
            mesh = list(self.program.mesh.items())
            self.parts[key] = ProgramProblems(on_axes(self.program, Mesh(tuple(mesh[i] for i in key))))
        return self.parts[key]


def on_axes(program: Program, mesh: Mesh) -> Program:
    """The program on some axes of its mesh: what is demanded of these."""

    def value(_func: Func | None, before: Value) -> Value:
        return replace(before, type=type_on(before.type, mesh))

    made = map_program_values(program, value, lambda _func, before: type_on(before, mesh))
    return replace(made, mesh=mesh)


def type_on(kind: Kind, mesh: Mesh) -> Kind:
    """The type on some axes of its mesh."""
    partial = kind.partial
    if isinstance(partial, Partial):
        left = axis_set(a for a in partial.axes if a in mesh)
        partial = Partial(partial.kind, left) if left else None
    splits = tuple(None if axes is None else axis_set(a for a in axes if a in mesh) for axes in kind.splits)
    return replace(kind, splits=splits, partial=partial)
