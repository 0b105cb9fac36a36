"""Functions of JAX lowered for a platform, with or without its devices: what a compiler is given of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from math import prod
from time import perf_counter
from typing import Any, cast

from shardwright.backends.hlo.module import HloModule
from shardwright.backends.targets.compilers import CompiledFunction, CompiledMemory
from shardwright.backends.targets.failures import failure_of
from shardwright.backends.targets.mesh_sizes import sizes_of
from shardwright.ir.diagnostics import NOWHERE, DiagnosticError, Note, Source, fault

_MESH = re.compile(r"sdy\.mesh @mesh = <\[(.*?)\]")
_AXIS = re.compile(r'"([^"]*)"=(\d+)')
_DEVICES = re.compile(r"mhlo\.num_partitions = (\d+)")
_SHARDED = "jax.ShapeDtypeStruct(shape, dtype, sharding=jax.NamedSharding(mesh, jax.P('x')))"


@dataclass(frozen=True)
class LoweredFunction:
    """A function lowered for arguments of known shapes: `lowered` is JAX's, `mesh` names its devices, row by row."""

    name: str
    lowered: Any
    mesh: Mapping[str, int]

    @property
    def text(self) -> str:
        """StableHLO with the shardings of arguments and results, and the lines of the user's source."""
        return self.lowered.as_text(debug_info=True)


def lower(
    function: Callable[..., Any], args: Sequence[Any], mesh: Mapping[str, int] | Any, platform: str | None
) -> LoweredFunction:
    """Lowers a function for JAX's platform of this name, None for the devices that its arguments lie on.

    `mesh` is a mapping from axis to size or a mesh of JAX; None stands for that of the arguments. Raises `mesh-fit`
    where it has another number of devices than the function is lowered for, or other sizes of axes than the arguments'
    own, `no-devices` where there are none, and what the function itself raises.
    """
    jax: Any = import_module("jax")
    name = name_of(function)
    if not isinstance(args, tuple | list):
        raise _refused(name, "bad-args", f"args is a tuple of the arguments of {name}", "as in args=(x,)")
    leaves: list[tuple[Any, Any]] = jax.tree_util.tree_leaves_with_path(tuple(args))
    meshes = [leaf.sharding.mesh for _, leaf in leaves if _lies_on_mesh(leaf)]
    if platform is None and meshes and all(isinstance(each, jax.sharding.AbstractMesh) for each in meshes):
        said = f"the arguments of {name} lie on an abstract mesh, which has no devices"
        raise _refused(name, "no-devices", said, "say a target, as target='cpu'; `shardwright targets` lists all")
    if mesh is not None:
        require_sizes(name, args, sizes_of(mesh))
    jitted: Any = function if hasattr(function, "trace") else jax.jit(function)
    with under_mesh(args):
        lowered = jitted.trace(*args).lower(lowering_platforms=platform and (platform,))
    text: str = lowered.as_text()
    devices = int(_DEVICES.findall(text)[0])
    if mesh is None:
        named = _MESH.search(text)
        mesh = meshes[0] if meshes else {axis: int(size) for axis, size in _AXIS.findall(named[1] if named else "")}
    sizes = sizes_of(mesh) or {"devices": devices}
    if prod(sizes.values()) != devices:
        said = f"{name} is lowered for {devices} device{'s'[: devices > 1]}, and the mesh {_listed(sizes)} has"
        bare = [path for path, leaf in leaves if not _lies_on_mesh(leaf)]
        notes = [f"args{jax.tree_util.keystr(path)} has no sharding over a mesh: {_SHARDED}" for path in bare[:1]]
        if meshes and not bare:
            notes = [f"its arguments lie on the mesh {_listed(sizes_of(meshes[0]))}"]
        raise _refused(name, "mesh-fit", f"{said} {prod(sizes.values())}", *notes)
    return LoweredFunction(name, lowered, sizes)


def require_sizes(name: str, args: Sequence[Any], sizes: Mapping[str, int]) -> None:
    """Raises `mesh-fit` where the arguments of a function lie over an axis that has another size among these; axes of
    other names are those of the arguments, named anew."""
    jax: Any = import_module("jax")
    for leaf in filter(_lies_on_mesh, jax.tree_util.tree_leaves(tuple(args))):
        own = sizes_of(leaf.sharding.mesh)
        if other := [axis for axis, size in own.items() if sizes.get(axis, size) != size]:
            said = f"the arguments of {name} lie on the mesh {_listed(own)}, and the mesh given is {_listed(sizes)}"
            note = f"{' and '.join(other)} {'differ' if other[1:] else 'differs'}: give the mesh of the arguments"
            raise _refused(name, "mesh-fit", said, note)


def under_mesh(args: Sequence[Any], sizes: Mapping[str, int] | None = None) -> AbstractContextManager[object]:
    """The mesh that all arguments lie on as JAX's current one, so that constraints may name its axes alone; where they
    lie on none, one of these `sizes` by axis.

    Nothing where there is a current one, or they lie on several, or on none without sizes, or its axes are explicit.
    """
    jax: Any = import_module("jax")
    leaves = filter(_lies_on_mesh, jax.tree_util.tree_leaves(tuple(args)))
    meshes = {getattr(mesh, "abstract_mesh", mesh) for mesh in (leaf.sharding.mesh for leaf in leaves)}
    if not meshes and sizes:
        kinds = (jax.sharding.AxisType.Auto,) * len(sizes)
        meshes = {jax.sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)}
    auto = all(kind == jax.sharding.AxisType.Auto for mesh in meshes for kind in mesh.axis_types)
    if len(meshes) != 1 or not auto or not jax.sharding.get_abstract_mesh().empty:
        return nullcontext()
    return jax.sharding.use_abstract_mesh(*meshes)


def _listed(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{axis}={size}" for axis, size in sizes.items())


def name_of(function: Any) -> str:
    """The name of a function: of a partial application it is the applied function's, that of another object its
    class's."""
    inner = getattr(function, "func", function)
    return getattr(inner, "__name__", type(inner).__name__)


def _lies_on_mesh(leaf: Any) -> bool:
    return hasattr(getattr(leaf, "sharding", None), "mesh")


def compile_here(function: LoweredFunction) -> tuple[str, CompiledFunction]:
    """The function as it is compiled for the devices that it was lowered for, and JAX's name of their platform."""
    jax: Any = import_module("jax")
    began = perf_counter()
    try:
        compiled = function.lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        platform: str = jax.default_backend()
        failed = failure_of(platform, function.name, f"{type(error).__name__}: {error}", "")
        return platform, CompiledFunction(function.name, "", "", None, None, failed)
    taken = perf_counter() - began
    shardings = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    devices = shardings[0].device_set if shardings else jax.devices()
    memory = compiled.memory_analysis()
    if memory is not None:
        output = memory.output_size_in_bytes - memory.alias_size_in_bytes
        memory = CompiledMemory(memory.argument_size_in_bytes, memory.temp_size_in_bytes, output)
    results = result_shardings(compiled.runtime_executable())
    func = CompiledFunction(function.name, compiled.as_text(), "", memory, taken, results=results)
    return next(iter(devices)).platform, func


def without_callers(module: HloModule) -> HloModule:
    """The module without the frames of `lower` and of what calls it, which are no lines of the function."""
    frames = {number: frame for number, frame in module.frames.items() if frame[0].file != __file__}
    return replace(module, frames=frames)


def result_shardings(executable: Any) -> tuple[str, ...] | None:
    """The shardings of an executable's results, as HLO writes them; None where it does not say."""
    xla_client = cast(Any, import_module("jaxlib.xla_client"))
    told = executable.get_output_shardings()
    return None if told is None else tuple(repr(xla_client.HloSharding.from_proto(each)) for each in told)


def _refused(name: str, code: str, message: str, *notes: str | Note) -> DiagnosticError:
    refused = fault(code, message, NOWHERE, *notes)
    refused.source = Source(name, "")
    return refused
