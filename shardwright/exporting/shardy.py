"""Programs as MLIR with the dialect of Shardy: `sdy.mesh`, `sdy.sharding`, `sdy.manual_computation`."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.module_files import abstract_arguments, load_module
from shardwright.ir.mesh import Mesh

if TYPE_CHECKING:
    from types import ModuleType

    from shardwright.ir.program import Program

SPLIT = "// -----\n"
"""The line between modules in one file, as mlir-opt's --split-input-file reads it."""


def shardy_text(program: Program) -> str:
    """An MLIR module for each function of an explicit program, as JAX lowers what `compile` writes.

    Arguments are the weights, then the state, both by name, then the parameters, those that nothing reads too; results
    are the function's, then the state. Each has its sharding; no devices are needed. A program without a mesh has one
    of a single chip.
    """
    if not program.mesh:
        program = replace(program, mesh=Mesh.of(chips=1))
    module = load_module(emit(program))
    return SPLIT.join(_lowered(module, func.name) for func in program.funcs)


def _lowered(module: ModuleType, name: str) -> str:
    jax = cast(Any, importlib.import_module("jax"))
    sharding = cast(Any, importlib.import_module("jax.sharding"))
    mesh = sharding.AbstractMesh(tuple(module.MESH_SHAPE.values()), tuple(module.MESH_SHAPE))
    arguments = abstract_arguments(module, name, mesh)
    shardings = tuple(sharding.NamedSharding(mesh, spec) for spec in module.OUT_SPECS[name])
    returned: Any = shardings[0] if len(shardings) == 1 else shardings
    donated: tuple[int, ...] = ()
    if hasattr(module, "STATE"):
        donated = (int(hasattr(module, "WEIGHTS")),)
        returned = returned, {key: array.sharding for key, array in arguments[donated[0]].items()}
    function = getattr(module, f"build_{name}")(mesh).__wrapped__
    jitted = jax.jit(function, keep_unused=True, out_shardings=returned, donate_argnums=donated)
    # Not for TPUs: attention would be a kernel that no other compiler reads.
    return str(jitted.trace(*arguments).lower(lowering_platforms=("cpu",)).as_text())
