"""A compiled program with its weights and state on the devices, for calling its functions one after the other."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from shardwright.backends.foreign import check_calls
from shardwright.backends.jax.devices import arrange_devices
from shardwright.backends.jax.edges import EdgeArray, ProgramEdges
from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.module_files import load_module, orders_in
from shardwright.backends.jax.placing import MeshArrays, Progress, check_shape, global_array, placed_shape, sharding_of
from shardwright.backends.jax.source_text import Forms
from shardwright.backends.number_formats import numpy_dtype
from shardwright.ir.program import Program, Value
from shardwright.ir.weight_source import ArraySource, WeightSource, require_names

Arrays = Mapping[str, npt.ArrayLike]
"""Global arrays by name: of numpy, of JAX on the mesh, or what numpy makes arrays of."""


class Session:
    """The functions of an explicit program over weights that are placed once and a state that stays on the devices.

    Each call donates the state and keeps the new one, so that functions with layouts of their own, as prefill and
    decode, share weights and cache with no copy. Raises ValueError for an array of another shape than its type
    and for one that is missing.

    With several processes (`jax.distributed`) every process makes the session and calls the same functions with the
    same arrays in the same order; each reads only the parts of the weights that its own devices hold.
    """

    def __init__(
        self,
        program: Program,
        weights: Arrays | WeightSource,
        state: Arrays | None = None,
        *,
        progress: Progress | None = None,
        forms: Forms | None = None,
    ) -> None:
        """`weights` are read part by part; arrays of another session's `weights` are shared. Devices of the CPU may
        keep an array of numpy itself, which is not to be written to afterwards. `state` is zeros where it is None.
        `progress` is told the bytes of weights on this process's devices, and how many there will be. `forms` are those
        that the devices' compiler keeps.
        """
        self.program = program
        self._edges = ProgramEdges(program)
        check_calls(program)
        self._module = load_module(emit(program, forms=forms))
        self.mesh: Any = self._module.make_mesh(arrange_devices(program.mesh.n_chips).devices)
        self._orders = orders_in(self._module, self.mesh)
        self._functions: dict[str, _Function] = {}
        self._weights = self._loaded(program.weights, weights, progress)
        self._state: dict[str, Any] = {}
        self.reset(state)

    def _placement(self, values: Sequence[Value]) -> MeshArrays:
        return MeshArrays({value.name: self._edges.stored(value) for value in values}, self.mesh, self._orders)

    def _loaded(
        self, values: Sequence[Value], given: Arrays | WeightSource, progress: Progress | None = None
    ) -> dict[str, Any]:
        placement = self._placement(values)
        if not isinstance(given, Mapping):
            return placement.load(given, progress)
        here = {name: array for name, array in given.items() if name in placement.edges}
        there = {name: array for name, array in here.items() if is_jax(array) and placement.lies_here(name, array)}
        rest = replace(placement, edges={name: edge for name, edge in placement.edges.items() if name not in there})
        loaded = rest.load(ArraySource({name: array for name, array in here.items() if name not in there}), progress)
        return {name: there[name] if name in there else loaded[name] for name in placement.edges}

    def reset(self, state: Arrays | None = None) -> None:
        """Replaces the state, by zeros where it is None, which are made on the devices."""
        values = self.program.state
        self._state = {}  # the old one is freed first
        if values:
            self._state = self._placement(values).zeros() if state is None else self._loaded(values, state)

    def run(self, name: str, args: Arrays) -> tuple[Any, ...]:
        """The results of a function as JAX arrays, left on the devices.

        Arguments may be such results, of this program's mesh; they are not copied. Raises ValueError where one is
        missing or of another shape than its type, and for a name that no parameter has.
        """
        if name not in self._functions:
            self._functions[name] = self._function(name)
        function = self._functions[name]
        require_names(name, "argument", [param for param, _ in function.params], args)
        arrays = [self._argument(param, edge, args[param]) for param, edge in function.params]
        if self.program.weights or self.program.state:
            results, self._state = function.built(self._weights, self._state, *arrays)
        else:
            results = function.built(*arrays)
        return tuple(results) if len(function.results) != 1 else (results,)

    def call(self, name: str, args: Arrays) -> tuple[npt.NDArray[Any], ...]:
        """The results of a function as global arrays of numpy, whole in every process."""
        made = self.run(name, args)
        return tuple(
            global_array(edge, fetch(array)) for edge, array in zip(self._functions[name].results, made, strict=True)
        )

    def _function(self, name: str) -> _Function:
        func = self.program.func(name)
        results = tuple(edge for _, edge in self._edges.results(func))
        built = getattr(self._module, f"build_{name}")(self.mesh)
        return _Function(built, tuple(self._edges.params(func)), results)

    def _argument(self, name: str, edge: EdgeArray, given: Any) -> Any:
        jax = cast(Any, importlib.import_module("jax"))
        dtype = numpy_dtype(edge.kind.dtype)
        if is_jax(given) and given.sharding.device_set == set(self.mesh.devices.flat) and given.shape == edge.shape:
            return given.astype(dtype)
        array = np.array(fetch(given) if is_jax(given) else given)  # the caller may write to its own before it is read
        check_shape(name, edge, array.shape)
        array, sharding = placed_shape(edge, array.astype(dtype, copy=False)), sharding_of(edge, self.mesh)
        if sharding.is_fully_addressable:
            return jax.device_put(array, sharding)
        return jax.make_array_from_callback(edge.shape, sharding, array.__getitem__)

    @property
    def weights(self) -> dict[str, Any]:
        """The weights as they lie on the devices, which another session of the same mesh and layouts may share."""
        return dict(self._weights)

    @property
    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The state as global arrays of numpy, whole in every process."""
        return {
            value.name: global_array(self._edges.stored(value), fetch(self._state[value.name]))
            for value in self.program.state
        }


@dataclass(frozen=True)
class _Function:
    """A built function, its parameters by name and its results with how they are placed."""

    built: Any
    params: tuple[tuple[str, EdgeArray], ...]
    results: tuple[EdgeArray, ...]


def is_jax(array: object) -> bool:
    jax = cast(Any, importlib.import_module("jax"))
    return isinstance(array, jax.Array)


def fetch(array: Any) -> npt.NDArray[Any]:
    """A JAX array as numpy. If several processes hold parts of it, all of them must call this; each gets all of it."""
    if array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    multihost = cast(Any, importlib.import_module("jax.experimental.multihost_utils"))
    return np.asarray(multihost.process_allgather(array, tiled=True))


def told_by_first(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The value of process 0 in every process of JAX's, which all must call this; one alone gives its own."""
    jax = cast(Any, importlib.import_module("jax"))
    if jax.process_count() == 1:
        return list(pairs)
    multihost = cast(Any, importlib.import_module("jax.experimental.multihost_utils"))
    n = int(multihost.broadcast_one_to_all(np.int32(len(pairs))))
    given = np.zeros((n, 2), np.int32)
    if jax.process_index() == 0:
        given = np.array(pairs, np.int32).reshape(n, 2)
    return [(int(a), int(b)) for a, b in multihost.broadcast_one_to_all(given)] if n else []


def run_program(
    program: Program,
    func_name: str,
    args: Arrays | Sequence[npt.ArrayLike],
    weights: Arrays | WeightSource | None = None,
    state: Arrays | None = None,
    *,
    forms: Forms | None = None,
) -> tuple[tuple[npt.NDArray[Any], ...], dict[str, npt.NDArray[Any]]]:
    """Runs a function of an explicit program on global arrays; returns its results and the new state as numpy.

    Arrays are converted to the number formats of their types. `forms` are as for a `Session`. Raises a
    `DiagnosticError` for an unknown function, ValueError where an array is missing or of another shape than its type.
    """
    func = program.func(func_name)
    if not isinstance(args, Mapping):
        if len(args) != len(func.params):
            names = ", ".join(value.name for value in func.params) or "none"
            raise ValueError(f"{func.name}: {len(args)} arrays for the arguments {names}")
        args = {value.name: array for value, array in zip(func.params, args, strict=True)}
    session = Session(program, weights or {}, state, forms=forms)
    return session.call(func.name, args), session.state
