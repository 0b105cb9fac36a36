"""`optimize`: a function of JAX with the layouts that are found for it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwright.backends.jax.devices import arrange_devices
from shardwright.backends.jax.module_files import load_module
from shardwright.backends.targets.functions import name_of, require_sizes, under_mesh
from shardwright.backends.targets.names import target_of
from shardwright.compiling.compile_program import Compiled, compile_program, print_program
from shardwright.cost.hardware.chips import REFERENCE
from shardwright.explaining.explain import explain_text
from shardwright.ir.diagnostics import Source
from shardwright.tracing.random_keys import as_given, numbers_of
from shardwright.tracing.trace import Trace, trace
from shardwright.tracing.writer import WRAPPED


class Optimized:
    """A function that computes what the traced one does, each array laid out as was chosen; `jit` may contain it.

    `traced` is the program of the function, `compiled` the one that was made of it: its text, its layouts and how far
    they are proved. Where `is_plain`, the plain function runs, since XLA's own partitioning of it receives fewer bytes.
    """

    def __init__(self, traced: Trace, compiled: Compiled, mesh: Any, args: Sequence[Any], results: Any) -> None:
        import jax

        self.traced, self.compiled, self.mesh, self.is_plain = traced, compiled, mesh, False
        module = load_module(compiled.text)
        (func,) = compiled.program.funcs
        built = getattr(module, f"build_{func.name}")(mesh)
        self._tables = (module.put(traced.weights, module.WEIGHTS, mesh), {}) if traced.weights else ()
        self._built, self._results = built, results
        leaves, self._arguments = jax.tree_util.tree_flatten(tuple(args))
        self._shapes = [_shape(leaf) for leaf in leaves]

    def __call__(self, *args: Any) -> Any:
        """The function's results, in its own tree. Raises ValueError for arguments of another tree, shape or format."""
        import jax

        results = self._built(*self._tables, *self._leaves(args))
        if self._tables:
            results, _ = results
        leaves = results if isinstance(results, tuple | list) else (results,)
        shapes, tree = jax.tree_util.tree_flatten(self._results)
        return tree.unflatten([as_given(leaf, shape, self.mesh) for leaf, shape in zip(leaves, shapes, strict=True)])

    def lower(self, *args: Any) -> Any:
        """JAX's `lower` of the function as it runs, for `compile` and its text."""
        return self._built.lower(*self._tables, *self._leaves(args))

    def unless_plain_receives_less(self, function: Callable[..., Any], args: Sequence[Any]) -> Optimized:
        """Runs the plain function from here on where a chip receives fewer bytes by XLA's partitioning of it."""
        import jax

        if not any(isinstance(getattr(leaf, "sharding", None), jax.NamedSharding) for leaf in jax.tree.leaves(args)):
            return self  # the plain function runs on one device
        with under_mesh(args):
            plain = jax.jit(function).lower(*args)
        if _bytes(plain, self.mesh) < _bytes(self.lower(*args), self.mesh):
            leaves = self._arguments.unflatten

            def on_leaves(*given: Any) -> list[Any]:
                with under_mesh(args):
                    return jax.tree_util.tree_leaves(function(*leaves(given)))

            self._built = jax.jit(on_leaves)
            self._tables, self.is_plain = (), True
        return self

    def _leaves(self, args: Any) -> list[Any]:
        import jax

        leaves, tree = jax.tree_util.tree_flatten(tuple(args))
        if tree != self._arguments:
            raise ValueError(f"arguments are {tree}, and the function was optimized for {self._arguments}")
        for (path, _, _), shape, leaf in zip(self.traced.inputs, self._shapes, leaves, strict=True):
            if (given := _shape(leaf)) != shape:
                raise ValueError(
                    f"argument {path} is {given}, and the function was optimized for {shape}: optimize it for that"
                )
        if self.is_plain:
            return leaves
        return [_widened(numbers_of(leaf)) for leaf in leaves]

    def __repr__(self) -> str:
        return print_program(self.compiled.program)

    def _repr_html_(self) -> str | None:
        return self.compiled.program.html()


def optimize(
    function: Callable[..., Any],
    args: Sequence[Any],
    mesh: Any,
    chip: str = "",
    *,
    objective: str = "time",
    solver: str = "auto",
) -> Optimized:
    """Traces a function of JAX at example arguments, chooses layouts on a mesh, and returns a function with these.

    `args` are arrays or `jax.ShapeDtypeStruct`; a `NamedSharding` of one is a demand, as are the function's own
    (`jit`, `with_sharding_constraint`), and all else is chosen: the least predicted time on `chip`, or with `objective`
    "bytes" the fewest bytes received. Then, if arguments have shardings, both are compiled, and the plain function is
    kept where it receives less, as where blocks go to other blocks that digits do not express (`Optimized.is_plain`).
    For TPUs it is written as their compiler keeps it.
    `mesh` is a `jax.sharding.Mesh`, or one without devices, or sizes by axis; constraints may name its axes alone.
    Raises a `DiagnosticError` where the function cannot be traced, does not mean what its program does, or demands
    cannot be met, as where arguments lie on a mesh of other sizes.
    """
    import jax

    if isinstance(mesh, Mapping | jax.sharding.AbstractMesh):
        shape = mesh.shape if isinstance(mesh, jax.sharding.AbstractMesh) else mesh
        sizes = {str(axis): int(size) for axis, size in shape.items()}
        devices = arrange_devices(math.prod(sizes.values())).devices
        kinds = (jax.sharding.AxisType.Auto,) * len(sizes)
        mesh = jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds, devices=devices)
    require_sizes(name_of(function), args, mesh.shape)
    traced = trace(function, args, mesh=dict(mesh.shape))
    if traced.not_compared:
        said = f"the traced program was not compared: {traced.not_compared}"
        raise traced.refused("not-compared", said, "give smaller example arguments")
    traced.require_agreement()
    target = target_of(list(mesh.devices.flat))
    chip = chip or REFERENCE.name
    compiled = compile_program(traced.program, objective=objective, chip=chip, solver=solver, target=target)
    with under_mesh(args, mesh.shape):
        results = jax.eval_shape(function, *args)
    made = Optimized(traced, compiled, mesh, args, results)
    return made.unless_plain_receives_less(function, _over(mesh, args)) if objective == "bytes" else made


def _widened(leaf: Any) -> Any:
    """An argument in the program's format, of those that the language keeps wider."""
    import jax

    if str(getattr(leaf, "dtype", "")) not in WRAPPED:
        return leaf
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, "int32", sharding=leaf.sharding)
    return leaf.astype("int32")


def _shape(leaf: Any) -> str:
    """The shape and the format of an argument, as `f32[8,16]`."""
    import jax
    import numpy as np

    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.result_type(leaf)
    if not jax.numpy.issubdtype(dtype, jax.dtypes.extended):  # a key of random numbers
        dtype = jax.dtypes.canonicalize_dtype(dtype)
    return f"{dtype}[{','.join(map(str, np.shape(leaf)))}]"


def _over(mesh: Any, args: Sequence[Any]) -> Any:
    """Arguments that lie over a mesh without devices, laid over those of `mesh`, to be compiled for it."""
    import jax

    def placed(leaf: Any) -> Any:
        sharding: Any = getattr(leaf, "sharding", None)
        abstract = getattr(sharding, "mesh", None)
        if not isinstance(abstract, jax.sharding.AbstractMesh):
            return leaf
        over = jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=abstract.axis_types)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=jax.NamedSharding(over, sharding.spec))

    return jax.tree_util.tree_map(placed, tuple(args))


def _bytes(lowered: Any, mesh: Any) -> int:
    """Bytes that a chip receives, as compiled."""
    (func,) = explain_text(Source("compiled", lowered.compile().as_text()), dict(mesh.shape)).functions
    return func.bytes_received or 0
