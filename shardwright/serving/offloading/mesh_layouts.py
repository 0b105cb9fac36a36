"""Layouts of a model over the chips of a mesh, which are the same for blocks of every size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.mesh import Mesh
from shardwright.ir.program import Program
from shardwright.ir.types import DType, StoredFormat
from shardwright.models.importing import ImportedModel, import_model

_MAY_STAY_WHOLE = ("V=", "B=", "E=")
"""The sentences on what is left whole of which nothing follows but more bytes: tables, rows, the residual stream."""


def imported_on(
    config: Mapping[str, Any], mesh: Mesh, layout: str, rows: int, length: int, cache: int, dtype: DType | None,
    cache_format: StoredFormat | None = None,
) -> ImportedModel:  # fmt: skip
    """The model of a config.json over a mesh, for so many rows and tokens of a prompt and positions of a cache.

    Raises where there is no such layout, or the mesh would leave whole what it is there to divide: the heads, or what
    the feedforward layers are split along.
    """
    made = import_model(config, layout, mesh, rows, length, dtype, cache=cache, cache_format=cache_format)
    whole = [sentence for sentence in made.dropped if not sentence.startswith(_MAY_STAY_WHOLE)]
    if whole:
        raise fault(
            "not-divisible",
            "; ".join(whole),
            NOWHERE,
            "give axes to --mesh that divide them, or --layout open, which leaves whole what does not divide",
        )
    return made


def with_layouts_of(program: Program, chosen: Program) -> Program:
    """The program with the layouts that the weights of another one have, and with its orders of digits."""
    weights = {value.name: value for value in chosen.weights}
    orders = {dim.name: dim.order for dim in chosen.dims}
    dims = tuple(replace(dim, order=orders.get(dim.name) or dim.order) for dim in program.dims)
    return replace(program, dims=dims, weights=tuple(weights.get(value.name, value) for value in program.weights))
