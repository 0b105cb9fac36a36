"""Functions of surface programs under PyTorch on one device, compiled to one block."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from shardwright.backends.number_formats import numpy_dtype
from shardwright.backends.torch.blocks import CompiledBlock, Values
from shardwright.backends.torch.shards import held_of, sharded
from shardwright.backends.torch.tensors import from_numpy, held_as
from shardwright.ir import ops
from shardwright.ir.program import Func, Program, Value
from shardwright.ir.types import TensorType, ValueType
from shardwright.ir.walk import lets_in, map_program_values


def tensor_of(array: Any, value: Value) -> torch.Tensor:
    dtype = value.shape.dtype
    held = np.asarray(array).astype(numpy_dtype(dtype) if not dtype.is_integer else np.int64)
    return from_numpy(held).clone().to(held_as(dtype))


def computed(program: Program, func: Func, arrays: Mapping[str, Any], runs: int = 1) -> list[torch.Tensor]:
    """The results, of the last of several runs, given parameters, weights and state. That there are several shows if
    the first has written to what is not its own."""
    if any(
        isinstance(let.operation, ops.Take | ops.Concat | ops.Topk) and let.operation.by for let in lets_in(func.body)
    ):
        program = on_one_of_its_chips(program, func)
        (func,) = program.funcs
    given = (*program.globals.values(), *func.params)
    held = {value.name: kept for value in given if (kept := held_of(value.type)) is not None}
    shapes = {value.name: value.shape for value in given}
    block = CompiledBlock(
        func.body, shapes, program.state_names, func.returns, program.sizes(func), torch.device("cpu"), held=held
    )
    tensors = {value.name: tensor_of(arrays[value.name], value) for value in given}
    state = {name: tensors[name].clone() for name in program.state_names}
    values = Values({})
    for _ in range(runs):
        values = Values({**tensors, **{name: tensor.clone() for name, tensor in state.items()}})
        block.run(values)
    return block.outputs(values)


def on_one_of_its_chips(program: Program, func: Func) -> Program:
    """The function as each chip of its mesh runs it where every value is whole: blocks are those of the mesh."""

    def whole(kind: ValueType) -> TensorType:
        return TensorType(kind.dtype, kind.dims, ((),) * len(kind.dims))

    alone = replace(program, funcs=(func,))
    made = map_program_values(alone, lambda _, v: replace(v, type=whole(v.type)), lambda _, kind: whole(kind))
    return sharded(made, 0)
