"""Runs explicit programs under PyTorch, each process one chip of their mesh, on global arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.backends.number_formats import numpy_dtype
from shardwright.backends.torch.buffers import Buffers
from shardwright.backends.torch.chip import Rank, RankShard
from shardwright.backends.torch.homes import value_homes
from shardwright.backends.torch.movements import Collectives
from shardwright.backends.torch.running import RunningFunction, RunningOptions
from shardwright.backends.torch.shards import held_of, sharded
from shardwright.backends.torch.tensors import from_numpy, held_as
from shardwright.backends.torch.tiers import open_tiers
from shardwright.backends.torch.world import World
from shardwright.cost.programs.segments import home_of
from shardwright.ir.diagnostics import fault
from shardwright.ir.program import Program, Value
from shardwright.ir.types import ON_DEVICE, DType, Reduction, Tier, ValueType
from shardwright.ir.verification.completion import complete
from shardwright.ir.verification.verifier import Level, verify

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
    with (
        open_tiers(world.device(device), dict(caps or {}), "that of the types", spill) as tiers,
        torch.inference_mode(),
    ):
        others = (each for each in program.funcs if each is not func)
        own = sharded(replace(program, funcs=(func, *others)), world.index)
        own, to = replace(own, funcs=own.funcs[:1]), Collectives(world, own.chips[func_name])
        made, given = own.funcs[0], {**args, **(weights or {}), **(state or {})}
        here = [value for value in made.params if home_of(value.type) == ON_DEVICE]
        away = [value for value in made.params if value not in here]
        homes = value_homes(own, (*own.weights, *own.state, *away), tiers)
        for name, home in homes.items():
            home.allocate()
            home.clear()
            home.write((slice(None),) * len(home.names), _entered(home.value, np.asarray(given[name])).to(tiers.device))
        running = RunningFunction(own, made, tiers, homes, Buffers(tiers), options=RunningOptions(to=to))
        entered = {value.name: _entered(value, np.asarray(given[value.name])).to(tiers.device) for value in here}
        results = running.call(entered)
        left = tuple(_left(to, tensor, kind) for tensor, kind in zip(results, made.results, strict=True))
        kept = {value.name: _left(to, running.stored(value.name), value.type) for value in own.state}
        if peaks is not None:
            peaks.update({str(tier): memory.peak for tier, memory in tiers.memories.items()})
    return left, kept


def _entered(value: Value, array: Array) -> Tensor:
    """The chip's shard of a global array. Of a partial sum the chips with coordinate 0 hold all, others zeros."""
    held = held_of(value.type)
    assert held is not None
    extents = tuple(dim.size for dim in held.kind.dims)
    if array.shape != extents:
        raise ValueError(f"the array for {value.name}: {held.kind} is {array.shape}, not {extents}")
    own = array[np.ix_(*(held.indices(name) for name in held.kind.names))] if extents else array
    partial, at = held.kind.partial, held.chip.at
    if partial is not None and partial.kind is not Reduction.MAX and any(at[axis] for axis in partial.axes):
        own = np.zeros_like(own)
    dtype = held.kind.dtype
    numbers = own.astype(np.int64) if dtype.is_integer else own.astype(numpy_dtype(dtype))
    return from_numpy(np.array(numbers, order="C")).to(held_as(dtype))


def _left(to: Collectives, own: Tensor, kind: ValueType) -> Array:
    """The global array that the chips' parts make up."""
    held = held_of(kind)
    assert held is not None
    mesh = held.chip.digits.mesh
    parts = to.gathered(own.contiguous(), mesh.axes)
    chips = list(mesh.chips())
    made = np.zeros(tuple(dim.size for dim in held.kind.dims), _numbers(held.kind.dtype))
    partial = held.kind.partial
    for number in range(mesh.n_chips):
        place = RankShard(Rank(held.chip.digits, number), held.kind)
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
