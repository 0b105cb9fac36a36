"""The arguments that a kernel is given: operands on every chip, the types of its results, and where it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shardwright.backends.number_formats import Array
from shardwright.backends.simulation.local_values import Argument, KernelSetting, Local, aligned
from shardwright.ir.operation import Arg, Number
from shardwright.ir.types import DType, TensorType


@dataclass(frozen=True)
class Call:
    """The arguments that a kernel is given beside its operation: operands, the types of the results, and where it
    runs."""

    args: Sequence[Argument]
    results: Sequence[TensorType]
    setting: KernelSetting

    @property
    def result(self) -> TensorType:
        return self.results[0]


Kernel = Callable[[Any, Call], Array | tuple[Array, ...]]


def tensor_of(argument: Argument) -> Local:
    assert isinstance(argument, Local)
    return argument


def like(argument: Argument, dtype: DType, names: Sequence[str], setting: KernelSetting) -> Array:
    """An operand aligned to the result, a literal in the format of the values beside it."""
    if isinstance(argument, Number):
        return setting.formats.literal(argument, dtype)
    return aligned(argument, names, len(setting.mesh))


def axis_of(kind: TensorType, name: str, setting: KernelSetting) -> int:
    return len(setting.mesh) + kind.names.index(name)


def arg_of(argument: Argument) -> Arg:
    if isinstance(argument, Number):
        return Arg(str(argument), None, argument)
    return Arg("", argument.kind.shape)


def positions_along(kind: TensorType, dim: str, names: Sequence[str], setting: KernelSetting) -> Array:
    """Global indices along `dim`, aligned to `names`."""
    indices = setting.positions(kind, dim)
    at = names.index(dim)
    shape = [1] * len(names)
    shape[at] = indices.shape[-1]
    return indices.reshape(*setting.mesh_shape, *shape)
