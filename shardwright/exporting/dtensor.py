"""Layouts for PyTorch's DTensor: placements of weights by name, and a plan for `parallelize_module`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shardwright.backends.jax.edges import ProgramEdges
from shardwright.exporting.module_styles import Style, styles
from shardwright.exporting.stored import Laid, laid_weights, refused
from shardwright.ir.diagnostics import DiagnosticError
from shardwright.ir.types import ON_DEVICE

if TYPE_CHECKING:
    from shardwright.ir.program import Program
    from shardwright.ir.types import Axes, Placement
    from shardwright.models.weight_map import WeightMap


def dtensor_text(program: Program, mapping: WeightMap | None) -> str:
    """A module with MESH, PLACEMENTS (a placement for each mesh dimension, by the name of the parameter), and, where
    weights are split as modules are parallelized, PLAN with the axes that it is over, in PLAN_AXES. Constants that are
    no weights of the model, as `mapping` tells, are left out. A comment says which weights are not on the device, of
    which placements say nothing.

    Raises a `DiagnosticError` where a dimension is split over axes in another order than that of the mesh.
    """
    mesh = program.mesh
    homes = {value.name: value.concrete.placement for value in program.weights}
    kept = [
        replace(value, type=replace(value.concrete, placement=ON_DEVICE))
        for value in program.weights
        if mapping is None or value.name in mapping.entries
    ]
    laid = laid_weights(replace(program, weights=tuple(kept)), ProgramEdges(program), mapping)
    plan, over, why = _plan(program, mapping, laid)
    names = ["Replicate", "Shard"]
    lines = [
        '"""Layouts for torch.distributed.tensor; ranks are numbered row by row over MESH:',
        "",
        "init_device_mesh(device_type, tuple(MESH.values()), mesh_dim_names=tuple(MESH)).",
        '"""',
        "",
        f"from torch.distributed.tensor import {', '.join(names)}",
        *([_styles_import(plan)] if plan else []),
        "",
        f"MESH = {dict(mesh)!r}",
        "",
        "PLACEMENTS = {",
        *(
            "    " + each.entry(f"[{', '.join(placements(each, tuple(mesh)))}]") + "," + _memory(homes[each.weight])
            for each in laid
        ),
        "}",
        "",
    ]
    if not plan:
        return "\n".join([*lines, f"# No plan for parallelize_module: {why}."]) + "\n"
    wide = f"mesh[{', '.join(map(repr, over))}]" + ("._flatten()" if len(over) > 1 else "")
    lines += [
        f"PLAN_AXES = {over!r}",
        f"# parallelize_module(model, {wide}, PLAN)",
        "PLAN = {",
        *(f"    {name!r}: {style.torch}," for name, style in plan.items()),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _styles_import(plan: Mapping[str, Style]) -> str:
    used = sorted({style.torch.partition("(")[0] for style in plan.values()})
    return f"from torch.distributed.tensor.parallel import {', '.join(used)}"


def _memory(home: Placement) -> str:
    return "" if home == ON_DEVICE else f"  # on {home}"


def placements(laid: Laid, mesh: Axes) -> list[str]:
    """The placement of an array for each axis of the mesh.

    DTensor cuts a dimension by one mesh axis after the other, the first into the largest blocks.
    """
    made = dict.fromkeys(mesh, "Replicate()")
    for dim, over in enumerate(laid.axes):
        if sorted(over, key=mesh.index) != list(over):
            raise refused(
                f"{laid.weight}: blocks of {laid.name} go to the chips by {' '.join(over)}, and DTensor's by the order "
                f"of the mesh, {' '.join(sorted(over, key=mesh.index))}",
                "declare that order of digits: dim ... order " + " ".join(sorted(over, key=mesh.index)),
            )
        made.update(dict.fromkeys(over, f"Shard({dim})"))
    return list(made.values())


def _plan(program: Program, mapping: WeightMap | None, laid: Sequence[Laid]) -> tuple[dict[str, Style], Axes, str]:
    """The style of each module and the axes that they are over; or why there is no plan."""
    if mapping is None:
        return {}, (), "the modules of the weights are not known: there is no OUT.weights.json"
    used = {axis for each in laid for axes in each.axes for axis in axes}
    over = tuple(axis for axis in program.mesh if axis in used)
    try:
        return styles(program, laid, over), over, "no weight is split"
    except DiagnosticError as error:
        return {}, (), error.diagnostics[0].message
