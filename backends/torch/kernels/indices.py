"""Kernels in which the index matters: lookups, positions, random numbers, rotary embeddings, and caches."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from shardwright.backends import foreign
from shardwright.backends.number_formats import Array, numpy_dtype
from shardwright.backends.torch.kernels.call import Kernel, TensorCall, as_arg, on_chip, whole_size
from shardwright.backends.torch.kernels.pages import written_pages
from shardwright.backends.torch.tensors import NamedTensor, aligned, held_as
from shardwright.ir import ops
from shardwright.ir.diagnostics import NOWHERE, fault
from shardwright.ir.operation import Operation
from shardwright.ir.types import DType

if TYPE_CHECKING:
    from torch import Tensor


def _lookup(operation: ops.Lookup, call: TensorCall) -> Tensor:
    """An index out of range, like one that the chip does not hold, gives zeros."""
    table, ids = call.tensor(0), call.tensor(1)
    names = call.result.names
    index = ids.tensor % whole_size(table, operation.dim) if operation.wrap else ids.tensor
    index = on_chip(index, table, operation.dim, call)
    if not set(ids.names) & set(table.names):
        made = (*ids.names, *(name for name in table.names if name != operation.dim))
        found = call.functions.rows(table.tensor, index, table.names.index(operation.dim))
        return aligned(NamedTensor(found, made, table.dtype), names)
    at = aligned(NamedTensor(index, ids.names, ids.dtype), names)
    return call.functions.picked(aligned(table, (*names, operation.dim)), at)


def _grouped(operation: ops.Grouped, call: TensorCall) -> Tensor:
    """Multiplies each row by the matrix that its index says, in f32 where the result is."""
    x, w, expert = call.tensor(0), call.tensor(1), call.tensor(2)
    index = on_chip(expert.tensor, w, operation.dim, call)
    rows = [name for name in x.names if name not in operation.dims]
    rows += [name for name in expert.names if name not in x.names]
    columns = [name for name in w.names if name not in (operation.dim, *operation.dims)]
    extents = [call.result.size(name) for name in (*rows, *columns)]
    summed = math.prod(x.size(name) for name in operation.dims)
    n_rows, n_columns = math.prod(extents[: len(rows)]), math.prod(extents[len(rows) :])
    wide = call.result.dtype is DType.F32 and x.dtype is not DType.F32
    a, b = aligned(x, (*rows, *operation.dims)), aligned(w, (operation.dim, *operation.dims, *columns))
    a, b = (a.float(), b.float()) if wide else (a, b)
    a = a.expand([*extents[: len(rows)], *(x.size(name) for name in operation.dims)]).reshape(n_rows, summed)
    chosen = aligned(NamedTensor(index, expert.names, expert.dtype), rows).expand(extents[: len(rows)])
    b = b.reshape(w.size(operation.dim), summed, n_columns)
    made = call.functions.grouped(a, b, chosen.reshape(n_rows)).reshape(extents)
    return aligned(NamedTensor(made, (*rows, *columns), x.dtype), call.result.names)


def _iota(operation: ops.Iota, call: TensorCall) -> Tensor:
    return call.own_positions(operation.dim, (operation.dim,))


def _uniform(operation: ops.Uniform, call: TensorCall) -> Tensor:
    names, index = call.result.names, None
    for dim in operation.dims:
        size = call.result.size(dim) if call.held is None else call.held.size(dim)
        own = call.own_positions(dim, names)
        index = own if index is None else index * size + own
    if index is None:
        index = call.torch.zeros((), dtype=call.torch.int64, device=call.device)
    return call.functions.uniform(call.operand(0, DType.UINT32), call.operand(1, DType.UINT32), index)


def _rotary(operation: ops.Rotary, call: TensorCall) -> Tensor:
    """Pairs (x1, x2) turned by pos * base^(-2i / rotated), i the number of the pair; angles in f32."""
    value, functions = call.tensor(0), call.functions
    others = tuple(name for name in value.names if name != operation.dim)
    last = (*others, operation.dim)
    rotated = operation.rotated or value.size(operation.dim)
    if len(call.args) > 2:
        frequencies = aligned(call.tensor(2), operation.frequency_dims([as_arg(arg) for arg in call.args]))
    else:
        frequencies = functions.frequencies(operation.base, rotated, call.device)
    at = call.operand(1, DType.INT32, others)
    along = operation.positions_dim([as_arg(arg) for arg in call.args])
    if along is not None:
        at = (at + call.positions(value, along, others)).to(call.torch.int32)
    angles = functions.angles(at, frequencies)
    made = functions.turned(aligned(value, last), angles, rotated, operation.style == "neox")
    return aligned(NamedTensor(made, last, value.dtype), value.names)


def _update(operation: ops.Update, call: TensorCall) -> Tensor:
    """Drops what would be written before the beginning of the cache or past its end."""
    if operation.page is not None:
        return written_pages(operation, call)
    cache, new = call.tensor(0), call.tensor(1)
    names = cache.names
    written = operation.written_dim([as_arg(arg) for arg in call.args]) or operation.dim
    rows = aligned(new, [written if name == operation.dim else name for name in names])
    t = call.named(call.positions(cache, operation.dim, names), "t")
    offset = call.named(t - call.index(2, names), "offset")
    if operation.wrap:
        offset = offset % whole_size(cache, operation.dim)
    for at, name in enumerate(operation.indexed, 3):
        here = call.named(call.positions(cache, name, names) == call.index(at, names), "here")
        offset = call.torch.where(here, offset, -1)
    return call.functions.updated(cache.tensor, rows, offset, names.index(operation.dim))


def _foreign(operation: ops.Foreign, call: TensorCall) -> Tensor:
    """An operation of PyTorch as it is; a function of JAX on the host."""
    from types import ModuleType

    if path := foreign.torch_path(operation.name):
        return _torch_operation(operation, call, path)
    if not isinstance(call.torch, ModuleType):
        message = f"{operation.name} is a function of JAX, which a module of PyTorch does not call"
        raise fault("unsupported", message, NOWHERE, "emit JAX, or run the program: `run` calls it on the host")
    arrays: list[Array] = []
    for value in (call.tensor(i) for i in range(len(call.args))):
        tensor = value.tensor.detach().cpu()
        plain: Array = (tensor.float() if value.dtype.is_float else tensor).numpy()
        arrays.append(plain.astype(numpy_dtype(value.dtype)))
    made = foreign.call(operation, arrays, [dim.size for dim in call.result.dims])
    if operation.dtype is not DType.BOOL:
        made = made.astype("float32" if operation.dtype.is_float else "int64")
    return call.torch.from_numpy(made.copy()).to(call.device, held_as(operation.dtype, call.torch))


def _torch_operation(operation: ops.Foreign, call: TensorCall, path: str) -> Tensor:
    import torch

    from shardwright.backends.torch_operations import schema_arguments

    values = [call.tensor(i) for i in range(len(call.args))]
    tensors = [value.tensor.to(call.torch.int64) if value.dtype is DType.INT32 else value.tensor for value in values]
    overload: Any = attrgetter(path)(torch.ops)
    args, words = schema_arguments(overload, tensors, foreign.params_of(operation), call.torch)
    made: Any = attrgetter(path)(call.torch.ops)(*args, **words)
    several = len(overload._schema.returns) > 1  # pyright: ignore[reportPrivateUsage]
    return made[operation.result] if several else made


KERNELS: dict[type[Operation], Kernel] = {
    ops.Lookup: _lookup,
    ops.Grouped: _grouped,
    ops.Iota: _iota,
    ops.Uniform: _uniform,
    ops.Rotary: _rotary,
    ops.Foreign: _foreign,
    ops.Update: _update,
}
