"""Sizes given from outside in place of a file's own: of names that the file knows."""

from __future__ import annotations

from collections.abc import Mapping

from shardwright.ir.diagnostics import NOWHERE, fault, nearest
from shardwright.ir.settings import require_whole
from shardwright.ir.text import syntax


def check_overrides(module: syntax.Module, mesh: Mapping[str, int], dims: Mapping[str, int]) -> None:
    """Raises where a size is given for an axis or a dimension that the file neither declares nor has in a type.

    A file without a mesh takes any axes: its layouts may all be left to the compiler.
    """
    if not mesh and not dims:
        return
    for name, size in (*mesh.items(), *dims.items()):
        require_whole(f"the size of {name}", size)
    nodes = list(syntax.nodes(module))
    axes = [axis.name for node in nodes if isinstance(node, syntax.MeshItem) for axis in node.axes]
    declared = [dim.name for node in nodes if isinstance(node, syntax.DimItem) for dim in node.dims]
    written = [node for node in nodes if isinstance(node, syntax.RowDim)]
    partial = [node for node in nodes if isinstance(node, syntax.PartialExpr)]
    known_axes = dict.fromkeys([*axes, *(axis for node in (*written, *partial) for axis in node.axes or ())])
    known_dims = dict.fromkeys([*declared, *(dim.name for dim in written)])
    if axes:
        _require("axis", "axes", mesh, list(known_axes), "add it to the file's mesh")
    _require("dimension", "dimensions", dims, list(known_dims), "leave it out")


def _require(what: str, plural: str, given: Mapping[str, int], known: list[str], way_out: str) -> None:
    for name, size in given.items():
        if name not in known:
            listed = f"its {plural} are {', '.join(known)}; {way_out}" if known else f"it has none; {way_out}"
            raise fault(
                f"unknown-{what}",
                f"the file has no {what} {name}, for which {name}={size} is given",
                NOWHERE,
                nearest(name, known) or listed,
            )
