"""Runs explicit programs under PyTorch, each process one chip of their mesh, on global arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.backends.digit_factors import Digits
from shardwright.backends.number_formats import numpy_dtype
from shardwright.backends.torch.chip import Chip, Held
from shardwright.backends.torch.chip_interpreter import ChipInterpreter
from shardwright.backends.torch.interpreter import Bound, Names
from shardwright.backends.torch.movements import Collectives
from shardwright.backends.torch.placed import Away
from shardwright.backends.torch.tensors import Named, from_numpy, held_as
from shardwright.backends.torch.tiers import Tiers, open_tiers
from shardwright.backends.torch.world import World
from shardwright.ir.completion import complete
from shardwright.ir.diagnostics import fault
from shardwright.ir.program import Program, Value
from shardwright.ir.types import DType, Reduction, Tier
from shardwright.ir.verifier import Level, verify

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

    Arrays = Mapping[str, npt.ArrayLike]
    Array = npt.NDArray[Any]


def run_program(
    program: Program,
    func_name: str,
    args: Arrays,
    weights: Arrays | None = None,
    state: Arrays | None = None,
    *,
    world: World,
    caps: Mapping[Tier, int | None] | None = None,
    spill: str | None = None,
    device: str | None = None,
    peaks: dict[str, int] | None = None,
) -> tuple[tuple[Array, ...], dict[str, Array]]:
    """The results and the new state of a function of an explicit program, as global arrays, the same in all processes.

    Each process of `world` is one chip of the mesh and takes of every array only what its chip holds, in the memory
    that the value's type names, within `caps` in bytes; `peaks` is filled with the most that was taken of each.
    Raises a `DiagnosticError` where the program is not explicit, the processes are not as many as the mesh has chips,
    or memory does not suffice.
    """
    import torch

    program = complete(program)
    verify(program, Level.EXPLICIT)
    mesh, func = program.mesh, program.func(func_name)
    if mesh.n_chips != world.count:
        raise fault(
            "bad-processes", f"mesh {mesh} has {mesh.n_chips} chips, and there are {world.count} processes for them"
        )
    chip = Chip(Digits.of(program, func), world.index)
    to = Collectives(world, chip)
    with (
        open_tiers(world.device(device), dict(caps or {}), "that of the types", spill) as tiers,
        torch.inference_mode(),
    ):
        interpreter = ChipInterpreter(program, func, chip, to, tiers)
        names: Names = {}
        for declared, given in ((func.params, args), (program.weights, weights or {}), (program.state, state or {})):
            for value in declared:
                names[value.name] = Bound(_entered(interpreter, value, np.asarray(given[value.name]), tiers), 0)
        interpreter.block(func.body, names, {})
        results = tuple(_left(to, interpreter.read(name, names, {})) for name in func.returns)
        kept = {value.name: _left(to, interpreter.read(value.name, names, {})) for value in program.state}
        if peaks is not None:
            peaks.update({str(tier): memory.peak for tier, memory in tiers.memories.items()})
        names.clear()
    return results, kept


def _entered(interpreter: ChipInterpreter, value: Value, array: Array, tiers: Tiers) -> Named:
    """What the chip holds of a global array. Of a partial sum the chips with coordinate 0 hold all, others zeros."""
    held = interpreter.held(value)
    extents = tuple(dim.size for dim in held.kind.dims)
    if array.shape != extents:
        raise ValueError(f"the array for {value.name}: {held.kind} is {array.shape}, not {extents}")
    own = array[np.ix_(*(held.indices(name) for name in held.kind.names))] if extents else array
    partial, at = held.kind.partial, held.chip.at
    if partial is not None and partial.kind is not Reduction.MAX and any(at[axis] for axis in partial.axes):
        own = np.zeros_like(own)
    dtype = held.kind.dtype
    numbers = own.astype(np.int64) if dtype.is_integer else own.astype(numpy_dtype(dtype))
    tensor = from_numpy(np.array(numbers, order="C")).to(held_as(dtype)).to(tiers.device)
    return interpreter.settled(value.name, tensor, held)


def _left(to: Collectives, value: Named) -> Array:
    """The global array that the chips' parts make up."""
    held = value.held
    assert held is not None
    own = value.load() if isinstance(value, Away) else value.tensor
    mesh = held.chip.digits.mesh
    parts = to.gathered(own.contiguous(), mesh.axes)
    chips = list(mesh.chips())
    made = np.zeros(tuple(dim.size for dim in held.kind.dims), _numbers(held.kind.dtype))
    partial = held.kind.partial
    for number in range(mesh.n_chips):
        place = Held(Chip(held.chip.digits, number), held.kind)
        part = _array(parts[number])
        at = np.ix_(*(place.indices(name) for name in held.kind.names)) if made.ndim else ()
        if partial is None or not any(chips[number][axis] for axis in partial.axes):
            made[at] = part
        elif partial.kind is Reduction.MAX:
            made[at] = np.maximum(made[at], part)
        else:
            made[at] += part
    return made.astype(numpy_dtype(held.kind.dtype))


def _numbers(dtype: DType) -> Any:
    """In which parts are put together: addends are summed exactly enough."""
    return np.bool_ if dtype is DType.BOOL else np.int64 if dtype.is_integer else np.float64


def _array(tensor: Tensor) -> Array:
    return (tensor.double() if tensor.dtype.is_floating_point else tensor).cpu().numpy()
