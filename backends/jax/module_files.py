"""Loads the source of emitted modules, from a file of their own."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from shardwright.backends import foreign
from shardwright.backends.jax.source_text import check_identifier


def load_module(source: str, name: str = "compiled") -> ModuleType:
    """The module that emitted source defines, imported from a file in a temporary folder."""
    check_identifier(name)
    with tempfile.TemporaryDirectory(prefix="shardwright-") as folder:
        return import_file(Path(folder) / f"{name}.py", source)


def import_file(path: Path, source: str | None = None) -> ModuleType:
    """A module from a file, which is written first where its source is given. It has the kernels of this process."""
    if source is not None:
        path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"shardwright_compiled_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    if "KERNELS" in vars(module):
        module.KERNELS.update(foreign.functions())
    return module


def orders_in(module: ModuleType, mesh: Any) -> dict[str, tuple[int, ...]]:
    """The dimensions, from major to minor, of those weights of an emitted module that it lays in another order than
    their own on these devices."""
    sharding = cast(Any, importlib.import_module("jax.sharding"))
    laid = {name: module.laid(name, sharding.PartitionSpec(), mesh) for name in getattr(module, "ORDERS", ())}
    return {name: tuple(place.layout.major_to_minor) for name, place in laid.items() if hasattr(place, "layout")}


def abstract_arguments(module: ModuleType, name: str, mesh: Any) -> list[Any]:
    """The arguments of a function of an emitted module on a mesh, as `jax.ShapeDtypeStruct`s: tables of weights and of
    state, where there are any, then its own."""
    jax = cast(Any, importlib.import_module("jax"))
    sharding = cast(Any, importlib.import_module("jax.sharding"))

    def plain(_: str, spec: Any, mesh: Any) -> Any:
        return sharding.NamedSharding(mesh, spec)

    laid = getattr(module, "laid", plain)

    def array(key: str, shape: tuple[int, ...], dtype: Any, spec: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=(laid if key else plain)(key, spec, mesh))

    tables = [
        {key: array(key, *entry) for key, entry in getattr(module, table).items()}
        for table in ("WEIGHTS", "STATE")
        if hasattr(module, table)
    ]
    edges = zip(module.IN_SHAPES[name], module.IN_SPECS[name], strict=True)
    return [*tables, *(array("", shape, dtype, spec) for (shape, dtype), spec in edges)]
