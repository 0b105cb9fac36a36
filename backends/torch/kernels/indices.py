"""Kernels in which the index matters: lookups, positions, random numbers, rotary embeddings, and caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.backends.torch.kernels.call import Call, Kernel, as_arg, operand, positions, whole_size
from shardwright.backends.torch.random_bits import uniform
from shardwright.backends.torch.tensors import Named, aligned
from shardwright.ir import ops
from shardwright.ir.operation import Operation
from shardwright.ir.types import DType

if TYPE_CHECKING:
    from torch import Tensor


def _lookup(operation: ops.Lookup, call: Call) -> Tensor:
    """An index out of range, like one that the chip does not hold, gives zeros."""
    import torch

    table, ids = call.tensor(0), call.tensor(1)
    size = whole_size(table, operation.dim)
    wanted = ids.tensor % size if operation.wrap else ids.tensor
    held = (wanted >= 0) & (wanted < size)
    at = torch.where(held, wanted, 0)
    if table.held is not None and table.held.kind.split(operation.dim):
        here = table.held.indices_on(call.device, operation.dim)
        found_at = torch.searchsorted(here, at).clamp(max=len(here) - 1)
        held = held & (here[found_at] == at)
        at = torch.where(held, found_at, 0)
    names = call.result.names
    if not set(ids.names) & set(table.names):
        rows = table.tensor.movedim(table.names.index(operation.dim), 0)[at]
        made = (*ids.names, *(name for name in table.names if name != operation.dim))
        found = rows.permute([made.index(name) for name in names])
    else:
        rows = aligned(table, (*names, operation.dim))
        index = aligned(Named(at, ids.names, ids.dtype), names)[..., None]
        shape = [max(a, b) for a, b in zip(rows.shape[:-1], index.shape[:-1], strict=True)]
        found = rows.expand(*shape, rows.shape[-1]).gather(-1, index.expand(*shape, 1))[..., 0]
    mine = aligned(Named(held, ids.names, DType.BOOL), names)
    return torch.where(mine, found, torch.zeros((), dtype=found.dtype, device=call.device))


def _iota(operation: ops.Iota, call: Call) -> Tensor:
    dim = operation.dim
    return positions(call.result.size(dim), dim, (dim,), call.device, call.held)


def _uniform(operation: ops.Uniform, call: Call) -> Tensor:
    import torch

    names = call.result.names
    index = torch.zeros((), dtype=torch.int64, device=call.device)
    for dim in operation.dims:
        size = call.result.size(dim) if call.held is None else call.held.size(dim)
        index = index * size + positions(call.result.size(dim), dim, names, call.device, call.held)
    key, at = (operand(arg, DType.UINT32, names, call.device) for arg in call.args)
    return uniform(key, at, index)


def _rotary(operation: ops.Rotary, call: Call) -> Tensor:
    """Pairs (x1, x2) turned by pos * base^(-2i / rotated), i the number of the pair; angles in f32."""
    import torch

    value = call.tensor(0)
    names = value.names
    others = tuple(name for name in names if name != operation.dim)
    x = aligned(value, (*others, operation.dim)).float()
    rotated = operation.rotated or x.shape[-1]
    if len(call.args) > 2:
        frequencies = call.tensor(2).tensor.float()
    else:
        exponents = torch.arange(0, rotated, 2, dtype=torch.float64, device=call.device) / rotated
        frequencies = (operation.base**-exponents).float()
    at = operand(call.args[1], DType.INT32, others, call.device)
    along = operation.positions_dim([as_arg(arg) for arg in call.args])
    if along is not None:
        at = at + positions(value.size(along), along, others, call.device, value.held)
    angles = at[..., None].float() * frequencies
    cos, sin = torch.cos(angles), torch.sin(angles)
    half, neox = rotated // 2, operation.style == "neox"
    first = slice(0, half) if neox else slice(0, rotated, 2)
    second = slice(half, rotated) if neox else slice(1, rotated, 2)
    turned = x.clone()
    turned[..., first] = x[..., first] * cos - x[..., second] * sin
    turned[..., second] = x[..., second] * cos + x[..., first] * sin
    made = (*others, operation.dim)
    return turned.permute([made.index(name) for name in names])


def _update(operation: ops.Update, call: Call) -> Tensor:
    """What would be written before the beginning of the cache or past its end is dropped."""
    import torch

    cache, new = call.tensor(0), call.tensor(1)
    names, size = cache.names, cache.size(operation.dim)
    written = operation.written_dim([as_arg(arg) for arg in call.args]) or operation.dim
    rows = aligned(new, [written if name == operation.dim else name for name in names])
    offset = positions(size, operation.dim, names, call.device, cache.held)
    offset = offset - operand(call.args[2], DType.INT32, names, call.device)
    if operation.wrap:
        offset = offset % whole_size(cache, operation.dim)
    at = names.index(operation.dim)
    n = rows.shape[at]
    index = offset.clamp(0, n - 1)
    shape = [size if i == at else extent for i, extent in enumerate(cache.tensor.shape)]
    source = [n if i == at else extent for i, extent in enumerate(cache.tensor.shape)]
    taken = rows.expand(source).gather(at, index.expand(shape))
    return torch.where((offset >= 0) & (offset < n), taken, cache.tensor)


KERNELS: dict[type[Operation], Kernel] = {
    ops.Lookup: _lookup,
    ops.Iota: _iota,
    ops.Uniform: _uniform,
    ops.Rotary: _rotary,
    ops.Update: _update,
}
