"""Programs as MLIR with the dialect of Shardy: `sdy.mesh`, `sdy.sharding`, `sdy.manual_computation`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, cast

from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.module_files import load_module

if TYPE_CHECKING:
    from types import ModuleType

    from shardwright.ir.program import Program

SPLIT = "// -----\n"
"""The line between modules in one file, as mlir-opt's --split-input-file reads it."""


def shardy_text(program: Program) -> str:
    """An MLIR module for each function of an explicit program, as JAX lowers what `compile` writes.

    Arguments are the weights, then the state, both by name, then the parameters; no devices are needed.
    """
    module = load_module(emit(program))
    return SPLIT.join(_lowered(module, func.name) for func in program.funcs)


def _lowered(module: ModuleType, name: str) -> str:
    jax = cast(Any, importlib.import_module("jax"))
    sharding = cast(Any, importlib.import_module("jax.sharding"))
    mesh = sharding.AbstractMesh(tuple(module.MESH_SHAPE.values()), tuple(module.MESH_SHAPE))
    hosted: tuple[str, ...] = getattr(module, "ON_HOST", ())

    def array(key: str, shape: tuple[int, ...], dtype: Any, spec: Any) -> Any:
        memory = "pinned_host" if key in hosted else None
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding.NamedSharding(mesh, spec, memory_kind=memory))

    tables = [
        {key: array(key, *entry) for key, entry in getattr(module, table).items()}
        for table in ("WEIGHTS", "STATE")
        if hasattr(module, table)
    ]
    edges = zip(module.IN_SHAPES[name], module.IN_SPECS[name], strict=True)
    args = [array("", shape, dtype, spec) for (shape, dtype), spec in edges]
    traced = getattr(module, f"build_{name}")(mesh).trace(*tables, *args)
    return str(traced.lower(lowering_platforms=("tpu",)).as_text())
