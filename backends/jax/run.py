"""Runs emitted modules: loads them from a file of their own, and arranges devices for their mesh."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.source_text import check_identifier
from shardwright.backends.number_formats import numpy_dtype
from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.program import Program
from shardwright.ir.types import ValueType

Arrays = Mapping[str, npt.ArrayLike]

_FORCED = "xla_force_host_platform_device_count"


@dataclass(frozen=True)
class Devices:
    """Devices for a mesh, and whether they are virtual ones of the CPU because the machine has too few."""

    devices: tuple[Any, ...]
    virtual: bool

    def __str__(self) -> str:
        kind = self.devices[0].device_kind if self.devices else "none"
        n = len(self.devices)
        if self.virtual:
            return f"{n} virtual CPU device{'s' if n != 1 else ''}: the machine has fewer than the mesh needs"
        return f"{n} device{'s' if n != 1 else ''} ({kind})"


def arrange_devices(n: int) -> Devices:
    """`n` devices: the machine's own if it has as many, else virtual ones of the CPU.

    Must be called before JAX is used for the first time if virtual devices are to be made; raises
    `too-few-devices` where it is too late and there are not enough.
    """
    jax = cast(Any, importlib.import_module("jax"))

    if _FORCED not in os.environ.get("XLA_FLAGS", ""):
        with contextlib.suppress(RuntimeError):  # JAX runs already; what it has is looked at below.
            jax.config.update("jax_num_cpu_devices", n)
    own = jax.devices()
    if len(own) >= n:
        is_cpu = own[0].platform == "cpu"
        return Devices(tuple(own[:n]), virtual=is_cpu and n > 1)
    virtual = jax.devices("cpu")
    if len(virtual) >= n:
        return Devices(tuple(virtual[:n]), virtual=True)
    raise fault(
        "too-few-devices",
        f"the mesh needs {n} devices, and JAX was started with {max(len(own), len(virtual))}",
        NOWHERE,
        f"set XLA_FLAGS=--{_FORCED}={n} before JAX is imported, or make the mesh smaller with --mesh",
    )


def load_module(source: str, name: str = "compiled") -> ModuleType:
    """The module that emitted source defines, imported from a file in a temporary folder."""
    check_identifier(name)
    with tempfile.TemporaryDirectory(prefix="shardwright-") as folder:
        return import_file(Path(folder) / f"{name}.py", source)


def import_file(path: Path, source: str | None = None) -> ModuleType:
    """A module from a file, which is written first where its source is given."""
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
    return module


def run_program(
    program: Program,
    func_name: str,
    args: Arrays | Sequence[npt.ArrayLike],
    weights: Arrays | None = None,
    state: Arrays | None = None,
) -> tuple[tuple[npt.NDArray[Any], ...], dict[str, npt.NDArray[Any]]]:
    """Runs a function of an explicit program on global arrays; returns its results and the new state as numpy.

    Arrays are converted to the number formats of their types. Raises KeyError for an unknown function or a missing
    array, ValueError for one of another shape than its type.
    """
    jax = cast(Any, importlib.import_module("jax"))

    func = program.func(func_name)
    devices = arrange_devices(program.mesh.n_chips)
    module = load_module(emit(program))
    mesh = module.make_mesh(devices.devices)
    built = getattr(module, f"build_{func.name}")(mesh)
    if not isinstance(args, Mapping):
        args = {value.name: array for value, array in zip(func.params, args, strict=True)}
    arrays = [_checked(value.name, value.type, args[value.name]) for value in func.params]
    left: dict[str, Any] = {}
    if not program.weights and not program.state:
        results = built(*arrays)
    else:
        placed = [
            module.put({v.name: _checked(v.name, v.type, (given or {})[v.name]) for v in values}, table, mesh)
            for values, given, table in (
                (program.weights, weights, module.WEIGHTS),
                (program.state, state, module.STATE),
            )
        ]
        results, left = built(*placed, *arrays)
    results = results if len(func.results) != 1 else (results,)
    shapes = {value.name: tuple(dim.size for dim in value.type.dims) for value in program.state}
    new = {name: np.asarray(jax.device_get(array)).reshape(shapes[name]) for name, array in left.items()}
    return tuple(np.asarray(jax.device_get(array)) for array in results), new


def _checked(name: str, kind: ValueType, array: npt.ArrayLike) -> npt.NDArray[Any]:
    given = np.asarray(array).astype(numpy_dtype(kind.dtype))
    shape = tuple(dim.size for dim in kind.dims)
    if given.shape != shape:
        raise ValueError(f"{name}: an array of shape {given.shape} for {kind}, whose shape is {shape}")
    return given
