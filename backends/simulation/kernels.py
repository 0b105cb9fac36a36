"""Numpy kernels: what each operation computes on every chip from the arrays that the chip holds.

Where global indices matter they are computed from the digits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardwright.backends import foreign
from shardwright.backends.number_formats import Array, numpy_dtype
from shardwright.backends.simulation.call import Call, Kernel, arg_of, axis_of, like, positions_along, tensor_of
from shardwright.backends.simulation.local_values import Argument, KernelSetting, Local, aligned
from shardwright.backends.simulation.pages import written_pages
from shardwright.backends.simulation.products import attend, contract, grouped, join_attention
from shardwright.backends.simulation.random_bits import uniform
from shardwright.ir import ops
from shardwright.ir.digits import blocks_of
from shardwright.ir.operation import Number, Operation
from shardwright.ir.types import DType, TensorType


def compute(
    operation: Operation, args: Sequence[Argument], results: Sequence[TensorType], setting: KernelSetting
) -> tuple[Array, ...]:
    """The results of an operation that is no movement: [mesh axes..., local extents], rounded to their formats."""
    with np.errstate(all="ignore"):
        made = KERNELS[type(operation)](operation, Call(args, results, setting))
        arrays = made if isinstance(made, tuple) else (made,)
        return tuple(
            setting.formats.round(
                np.broadcast_to(array, (*setting.mesh_shape, *kind.local_shape(setting.mesh))), kind.dtype
            )
            for array, kind in zip(arrays, results, strict=True)
        )


# ---------------------------------------------------------------- elementwise


def _elementwise(operation: ops.TableOperation, call: Call) -> Array:
    entry, dtype = operation.entry, next(a.kind.dtype for a in reversed(call.args) if isinstance(a, Local))
    arrays = [like(arg, dtype, call.result.names, call.setting) for arg in call.args]
    if dtype is DType.BOOL:
        arrays = [a.astype(np.int64) if t == "value" else a for a, t in zip(arrays, entry.takes, strict=True)]
    return entry.spelled(dtype).numpy(np, *arrays)


def _convert(operation: ops.Convert, call: Call) -> Array:
    value = tensor_of(call.args[0])
    array = aligned(value, call.result.names, len(call.setting.mesh))
    return call.setting.formats.convert(array, value.kind.dtype, operation.dtype)


def _bitcast(operation: ops.Bitcast, call: Call) -> Array:
    """Floats are rounded to f32 first, also where they are held in float64."""
    value = tensor_of(call.args[0])
    array = aligned(value, call.result.names, len(call.setting.mesh))
    bits = array.astype(numpy_dtype(value.kind.dtype)).view(numpy_dtype(operation.dtype))
    return bits.astype(call.setting.formats.storage(operation.dtype))


# ---------------------------------------------------------------- reductions


def _reduce_axes(value: Local, dims: Sequence[str], setting: KernelSetting) -> tuple[int, ...]:
    return tuple(axis_of(value.kind, name, setting) for name in dims)


def _sum(operation: ops.Sum, call: Call) -> Array:
    value = tensor_of(call.args[0])
    return value.array.sum(axis=_reduce_axes(value, operation.dims, call.setting))


def _max(operation: ops.Max, call: Call) -> Array:
    value = tensor_of(call.args[0])
    return value.array.max(axis=_reduce_axes(value, operation.dims, call.setting))


def _cumsum(operation: ops.Cumsum, call: Call) -> Array:
    value = tensor_of(call.args[0])
    return value.array.cumsum(axis=axis_of(value.kind, operation.dim, call.setting))


def _argmax(operation: ops.Argmax, call: Call) -> Array:
    value = tensor_of(call.args[0])
    return value.array.argmax(axis=axis_of(value.kind, operation.dim, call.setting))


def _topk(operation: ops.Topk, call: Call) -> tuple[Array, ...]:
    value, setting = tensor_of(call.args[0]), call.setting
    at = axis_of(value.kind, operation.dim, setting)
    n, held = blocks_of(value.kind, operation.dim, operation.by, setting.axis_sizes)
    share = operation.share(n)
    ids = np.broadcast_to(positions_along(value.kind, operation.dim, value.kind.names, setting), value.array.shape)
    values, ids = (
        np.moveaxis(_in_blocks(Local(array, value.kind), operation.dim, operation.by, setting), at + 1, -1)
        for array in (value.array, ids)
    )
    keys = (-values,) if value.kind.dtype.is_integer else (-values, ~np.isnan(values))  # the last key counts most
    first = np.lexsort(keys, axis=-1)[..., :share]
    shape = value.array.shape
    return tuple(
        np.moveaxis(np.take_along_axis(array, first, -1), -1, at + 1).reshape(
            *shape[:at], held * share, *shape[at + 1 :]
        )
        for array in (values, ids)
    )


def _norm(operation: ops.Layernorm | ops.Rmsnorm, call: Call) -> Array:
    value = tensor_of(call.args[0])
    x, over = value.array, _reduce_axes(value, operation.dims, call.setting)
    if isinstance(operation, ops.Layernorm):
        x = x - x.mean(axis=over, keepdims=True)
    normed = x / np.sqrt((x * x).mean(axis=over, keepdims=True) + operation.eps)
    if len(call.args) > 1:
        normed = normed * like(call.args[1], call.result.dtype, call.result.names, call.setting)
    if len(call.args) > 2:
        normed = normed + like(call.args[2], call.result.dtype, call.result.names, call.setting)
    return normed


def _softmax(operation: ops.Softmax, call: Call) -> Array:
    value = tensor_of(call.args[0])
    names = value.kind.names
    scores = value.array
    if operation.causal is not None:
        t = positions_along(value.kind, operation.dims[0], names, call.setting)
        own = positions_along(value.kind, operation.causal, names, call.setting)
        pos = like(call.args[1], DType.INT32, names, call.setting) if len(call.args) > 1 else np.zeros((), np.int64)
        visible = t <= own + pos
        if operation.window is not None:
            visible = visible & (t > own + pos - operation.window)
        scores = np.where(visible, scores, -np.inf).astype(scores.dtype)
    over = _reduce_axes(value, operation.dims, call.setting)
    powers = np.exp(scores - scores.max(axis=over, keepdims=True))
    return powers / powers.sum(axis=over, keepdims=True)


# ---------------------------------------------------------------- indices


def _lookup(operation: ops.Lookup, call: Call) -> Array:
    """An index out of range, like one that the chip does not hold, gives zeros."""
    table, ids = tensor_of(call.args[0]), tensor_of(call.args[1])
    lead = len(call.setting.mesh)
    wanted = ids.array % table.kind.shape.size(operation.dim) if operation.wrap else ids.array
    local, held = call.setting.locate(table.kind, operation.dim, wanted)
    at = aligned(Local(local, ids.kind), call.result.names, lead)[..., None]
    mine = aligned(Local(held, ids.kind), call.result.names, lead)
    rows = aligned(table, (*call.result.names, operation.dim), lead)
    found = np.take_along_axis(rows, at, axis=-1)[..., 0]
    return np.where(mine, found, np.zeros((), found.dtype))


def _iota(operation: ops.Iota, call: Call) -> Array:
    return call.setting.positions(call.result, operation.dim)


def _uniform(operation: ops.Uniform, call: Call) -> Array:
    names = call.result.names
    index: Array = np.zeros((), np.int64)
    for dim in operation.dims:
        index = index * call.result.shape.size(dim) + positions_along(call.result, dim, names, call.setting)
    key, at = (like(arg, DType.UINT32, names, call.setting) for arg in call.args)
    return uniform(key, at, index)


def _full(operation: ops.Full, call: Call) -> Array:
    number = call.args[0]
    assert isinstance(number, Number)
    return call.setting.formats.literal(number, operation.dtype)


def _rotary(operation: ops.Rotary, call: Call) -> Array:
    """Pairs (x1, x2) turned by pos * base^(-2i / rotated), i the number of the pair; angles in f32."""
    value = tensor_of(call.args[0])
    lead, names = len(call.setting.mesh), value.kind.names
    others = tuple(name for name in names if name != operation.dim)
    x = aligned(value, (*others, operation.dim), lead)
    rotated = operation.rotated or x.shape[-1]
    if len(call.args) > 2:
        frequencies = aligned(
            tensor_of(call.args[2]), operation.frequency_dims([arg_of(arg) for arg in call.args]), lead
        )
    else:
        frequencies = operation.base ** (-np.arange(0, rotated, 2) / rotated)
    positions = like(call.args[1], DType.INT32, others, call.setting)
    along = operation.positions_dim([arg_of(arg) for arg in call.args])
    if along is not None:
        positions = (positions + positions_along(value.kind, along, others, call.setting)).astype(np.int32)
    wide = x.dtype
    angles = positions[..., None].astype(wide) * frequencies.astype(wide)
    cos, sin = np.cos(angles), np.sin(angles)
    half = rotated // 2
    neox = operation.style == "neox"
    first = slice(0, half) if neox else slice(0, rotated, 2)
    second = slice(half, rotated) if neox else slice(1, rotated, 2)
    turned = x.copy()
    turned[..., first] = x[..., first] * cos - x[..., second] * sin
    turned[..., second] = x[..., second] * cos + x[..., first] * sin
    made = (*others, operation.dim)
    return turned.transpose(*range(lead), *(lead + made.index(name) for name in names))


def _update(operation: ops.Update, call: Call) -> Array:
    """Drops what would be written before the beginning of the cache or past its end, on every layout."""
    if operation.page is not None:
        return written_pages(operation, call)
    cache, new = tensor_of(call.args[0]), tensor_of(call.args[1])
    lead, names = len(call.setting.mesh), cache.kind.names
    written = operation.written_dim([arg_of(arg) for arg in call.args])
    rows = aligned(new, [(written or operation.dim) if name == operation.dim else name for name in names], lead)
    start = like(call.args[2], DType.INT32, names, call.setting)
    offset = positions_along(cache.kind, operation.dim, names, call.setting) - start
    if operation.wrap:
        offset = offset % cache.kind.shape.size(operation.dim)
    at = axis_of(cache.kind, operation.dim, call.setting)
    n = rows.shape[at]
    taken = np.take_along_axis(rows, np.clip(offset, 0, n - 1), axis=at)
    here = (offset >= 0) & (offset < n)
    for name, index in zip(operation.indexed, call.args[3:], strict=True):
        indices = positions_along(cache.kind, name, names, call.setting)
        here = here & (indices == like(index, DType.INT32, names, call.setting))
    return np.where(here, taken, cache.array)


def _in_blocks(value: Local, dim: str, by: Sequence[str], setting: KernelSetting) -> Array:
    """The chip's array with the dimension as [its blocks, what one block holds]."""
    _, held = blocks_of(value.kind, dim, by, setting.axis_sizes)
    at = axis_of(value.kind, dim, setting)
    shape = value.array.shape
    return value.array.reshape(*shape[:at], held, shape[at] // held, *shape[at + 1 :])


def _take(operation: ops.Take, call: Call) -> Array:
    value = tensor_of(call.args[0])
    at = axis_of(value.kind, operation.dim, call.setting)
    if operation.stop is None:
        return value.array.take(operation.start, axis=at)
    n, _ = blocks_of(value.kind, operation.dim, operation.by, call.setting.axis_sizes)
    blocks = _in_blocks(value, operation.dim, operation.by, call.setting)
    within: list[slice] = [slice(None)] * blocks.ndim
    within[at + 1] = slice(*operation.range_of(n))
    return blocks[tuple(within)].reshape(*call.setting.mesh_shape, *call.result.local_shape(call.setting.mesh))


def _concat(operation: ops.Concat, call: Call) -> Array:
    values = [tensor_of(arg) for arg in call.args]
    at = axis_of(values[0].kind, operation.dim, call.setting)
    blocks = [_in_blocks(value, operation.dim, operation.by, call.setting) for value in values]
    return np.concatenate(blocks, axis=at + 1).reshape(
        *call.setting.mesh_shape, *call.result.local_shape(call.setting.mesh)
    )


# ---------------------------------------------------------------- the same numbers under other names


def _same(_operation: Operation, call: Call) -> Array:
    return tensor_of(call.args[0]).array


def _reshape(_operation: ops.Split, call: Call) -> Array:
    """Equal digits on both sides make it a reshape of what the chip holds."""
    return tensor_of(call.args[0]).array.reshape(*call.setting.mesh_shape, *call.result.local_shape(call.setting.mesh))


def _merge(operation: ops.Merge, call: Call) -> Array:
    value = tensor_of(call.args[0])
    array = aligned(value, operation.side_by_side(value.kind.names), len(call.setting.mesh))
    return array.reshape(*call.setting.mesh_shape, *call.result.local_shape(call.setting.mesh))


def _foreign(operation: ops.Foreign, call: Call) -> Array:
    """Chip by chip: the function is not ours, and takes one chip's arrays."""
    values, setting = [tensor_of(arg) for arg in call.args], call.setting
    kinds = [value.kind for value in values]
    extents = [dict(zip(k.names, k.local_shape(setting.mesh), strict=True)) for k in (*kinds, call.result)]
    sizes = {name: size for known in extents for name, size in known.items()}
    made: list[Array] = []
    for chip in np.ndindex(setting.mesh_shape):
        held = [np.asarray(value.array[chip]) for value in values]
        if operation.name == foreign.STAND_IN:
            made.append(foreign.stand_in(operation, held, [kind.names for kind in kinds], sizes))
        else:
            typed = [a.astype(numpy_dtype(kind.dtype)) for a, kind in zip(held, kinds, strict=True)]
            shape = call.result.local_shape(setting.mesh)
            made.append(foreign.call(operation, typed, shape).astype(setting.formats.storage(operation.dtype)))
    return np.stack(made).reshape((*setting.mesh_shape, *made[0].shape))


KERNELS: dict[type[Operation], Kernel] = {
    ops.Contract: contract,
    ops.Grouped: grouped,
    **dict.fromkeys((ops.Add, ops.Sub, ops.Mul, ops.Div, ops.Neg, ops.Function), _elementwise),
    ops.Convert: _convert,
    ops.Bitcast: _bitcast,
    ops.Sum: _sum,
    ops.Max: _max,
    ops.Cumsum: _cumsum,
    ops.Argmax: _argmax,
    ops.Topk: _topk,
    ops.Layernorm: _norm,
    ops.Rmsnorm: _norm,
    ops.Softmax: _softmax,
    ops.Attend: attend,
    ops.JoinAttention: join_attention,
    ops.Lookup: _lookup,
    ops.Iota: _iota,
    ops.Full: _full,
    ops.Uniform: _uniform,
    ops.Rotary: _rotary,
    ops.Foreign: _foreign,
    ops.Update: _update,
    ops.Take: _take,
    ops.Concat: _concat,
    ops.Alias: _same,
    ops.Rename: _same,
    ops.Split: _reshape,
    ops.Merge: _merge,
}
"""One kernel for each operation that is no movement."""
