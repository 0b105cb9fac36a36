"""Pipeline stages: weights and state that are split along the dimension of a loop (`N_p`), and the program of one.

    mesh p=2 x=4                    mesh x=4
    weights { w: N_pE_xF }   -->    weights { w: NE_xF }      2 stages, each with half of the layers

Layouts are chosen for one stage; the pass `pipeline-layers` then writes what all of them run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from shardwright.ir.diagnostics import fault
from shardwright.ir.text.syntax import (
    Decl,
    FuncItem,
    Item,
    LoopStmt,
    MeshItem,
    Module,
    RowDim,
    StateItem,
    Stmt,
    WeightsItem,
)

if TYPE_CHECKING:
    from shardwright.ir.program import Program


@dataclass(frozen=True)
class Stages:
    """The axes that the loop's dimension `dim` is split over, with their sizes; P is their product."""

    dim: str
    axes: Mapping[str, int]

    @property
    def count(self) -> int:
        return prod(self.axes.values())

    def layers(self, program: Program) -> int:
        """The number of layers of each stage of a program with all. Raises where the stages do not divide them."""
        dim = program.dim(self.dim)
        if dim.size % self.count:
            raise fault(
                "not-divisible",
                f"{self.dim}={dim.size} does not divide over {self.count} stages",
                dim.span,
                f"give {self.dim} a size that is a multiple of {self.count}",
            )
        return dim.size // self.count


def one_stage(module: Module, mesh: Mapping[str, int]) -> tuple[Module, Stages | None]:
    """The program without the axes that split a looped dimension of weights and state, and these; None where none do.

    `mesh` has sizes in place of the file's own.
    """
    looped = {dim for item in module.items if isinstance(item, FuncItem) for dim in _looped(item.body)}
    rows = [row for item in module.items for decl in _declared(item) for row in _dims(decl)]
    split = {(row.name, axis) for row in rows if row.name in looped for axis in row.axes or ()}
    if not split:
        return module, None
    dim = min(name for name, _ in split)
    axes = {axis for name, axis in split if name == dim}
    sizes = {axis.name: axis.size for item in module.items if isinstance(item, MeshItem) for axis in item.axes}
    items = tuple(_without(item, dim, axes) for item in module.items)
    items = tuple(item for item in items if not isinstance(item, MeshItem) or item.axes)  # all chips may be stages
    return replace(module, items=items), Stages(
        dim, {axis: mesh.get(axis, sizes.get(axis, 1)) for axis in sorted(axes)}
    )


def _looped(body: tuple[Stmt, ...]) -> Iterator[str]:
    for statement in body:
        if isinstance(statement, LoopStmt):
            yield statement.dim
            yield from _looped(statement.body)


def _declared(item: Item) -> tuple[Decl, ...]:
    return item.decls if isinstance(item, WeightsItem | StateItem) else ()


def _dims(decl: Decl) -> tuple[RowDim, ...]:
    return decl.type.row.dims if decl.type.row is not None else ()


def _without(item: Item, dim: str, axes: set[str]) -> Item:
    if isinstance(item, MeshItem):
        return replace(item, axes=tuple(axis for axis in item.axes if axis.name not in axes))
    if isinstance(item, WeightsItem | StateItem):
        return replace(item, decls=tuple(_bare(decl, dim, axes) for decl in item.decls))
    return item


def _bare(decl: Decl, dim: str, axes: set[str]) -> Decl:
    if decl.type.row is None:
        return decl
    dims = tuple(
        replace(row, axes=tuple(axis for axis in row.axes or () if axis not in axes)) if row.name == dim else row
        for row in decl.type.row.dims
    )
    return replace(decl, type=replace(decl.type, row=replace(decl.type.row, dims=dims)))
