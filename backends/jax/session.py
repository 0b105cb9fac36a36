"""A compiled program with its weights and state on the devices, for calling its functions one after the other."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from shardwright.backends.jax.emit import emit
from shardwright.backends.jax.run import Arrays, arrange_devices, load_module
from shardwright.backends.number_formats import numpy_dtype
from shardwright.ir.program import Program, Value


class Session:
    """The functions of an explicit program over weights that are placed once and a state that stays on the devices.

    Each call donates the state and keeps the new one, so that functions with layouts of their own, as prefill and
    decode, share weights and cache with no copy. Global arrays go in and come out as numpy. Raises ValueError for an
    array of another shape than its type, KeyError for one that is missing.
    """

    def __init__(self, program: Program, weights: Arrays, state: Arrays | None = None) -> None:
        """`state` is zeros where it is None."""
        self.program = program
        self._module = load_module(emit(program))
        self._mesh = self._module.make_mesh(arrange_devices(program.mesh.n_chips).devices)
        self._built: dict[str, Callable[..., Any]] = {}
        zeros = {value.name: np.zeros(_shape(value)) for value in program.state}
        self._weights = self._put(program.weights, weights, "WEIGHTS")
        self._state = self._put(program.state, zeros if state is None else state, "STATE")

    def _put(self, values: tuple[Value, ...], given: Arrays, table: str) -> Any:
        if not self.program.weights and not self.program.state:
            return {}
        arrays = {value.name: _checked(value, given[value.name]) for value in values}
        return self._module.put(arrays, getattr(self._module, table), self._mesh)

    def call(self, name: str, args: Mapping[str, npt.ArrayLike]) -> tuple[npt.NDArray[Any], ...]:
        """The results of a function."""
        jax = cast(Any, importlib.import_module("jax"))
        func = self.program.func(name)
        if name not in self._built:
            self._built[name] = getattr(self._module, f"build_{name}")(self._mesh)
        arrays = [_checked(value, args[value.name]) for value in func.params]
        if self.program.weights or self.program.state:
            results, self._state = self._built[name](self._weights, self._state, *arrays)
        else:
            results = self._built[name](*arrays)
        results = results if len(func.results) != 1 else (results,)
        return tuple(np.asarray(jax.device_get(array)) for array in results)

    @property
    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The state as global arrays."""
        jax = cast(Any, importlib.import_module("jax"))
        return {
            value.name: np.asarray(jax.device_get(self._state[value.name])).reshape(_shape(value))
            for value in self.program.state
        }


def _shape(value: Value) -> tuple[int, ...]:
    return tuple(dim.size for dim in value.type.dims)


def _checked(value: Value, array: npt.ArrayLike) -> npt.NDArray[Any]:
    given = np.asarray(array).astype(numpy_dtype(value.type.dtype))
    if given.shape != _shape(value):
        raise ValueError(
            f"{value.name}: an array of shape {given.shape} for {value.type}, whose shape is {_shape(value)}"
        )
    return given
