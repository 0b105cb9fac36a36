"""Every operation of the language as functions of torch tensors, on one device.

The meanings are those of `backends.kernels`; values are rounded to their declared formats as they are computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from shardwright.backends.number_formats import integer_range
from shardwright.backends.torch.random_bits import uniform
from shardwright.backends.torch.tensors import Argument, Named, aligned, held_as, rounded
from shardwright.ir import ops
from shardwright.ir.operation import Arg, Number, Operation
from shardwright.ir.types import DType, Shape


@dataclass(frozen=True)
class Call:
    """What a kernel is given beside its operation: operands, the shapes of the results, and the device."""

    args: Sequence[Argument]
    results: Sequence[Shape]
    device: torch.device

    @property
    def result(self) -> Shape:
        return self.results[0]

    def tensor(self, at: int) -> Named:
        argument = self.args[at]
        assert isinstance(argument, Named)
        return argument


Kernel = Callable[[Any, Call], Tensor | tuple[Tensor, ...]]


def compute(
    operation: Operation, args: Sequence[Argument], results: Sequence[Shape], device: torch.device
) -> tuple[Named, ...]:
    """The results of an operation that moves nothing between chips, rounded to their formats."""
    made = KERNELS[type(operation)](operation, Call(args, results, device))
    tensors = made if isinstance(made, tuple) else (made,)
    return tuple(
        Named(rounded(tensor, shape.dtype).expand([dim.size for dim in shape.dims]), shape.names, shape.dtype)
        for tensor, shape in zip(tensors, results, strict=True)
    )


# ---------------------------------------------------------------- operands


def _literal(number: Number, dtype: DType, device: torch.device) -> Tensor:
    """A number as a scalar of the format that it meets."""
    if dtype.is_float:
        return torch.tensor(float(number.value), dtype=held_as(dtype), device=device)
    if dtype is DType.BOOL:
        return torch.tensor(number.value != 0, device=device)
    return rounded(torch.tensor(int(number.value), device=device), dtype)


def _like(argument: Argument, dtype: DType, names: Sequence[str], device: torch.device) -> Tensor:
    if isinstance(argument, Number):
        return _literal(argument, dtype, device)
    return aligned(argument, names)


def _arg(argument: Argument) -> Arg:
    if isinstance(argument, Number):
        return Arg(str(argument), None, argument)
    from shardwright.ir.types import Dim

    dims = tuple(Dim(name, size) for name, size in zip(argument.names, argument.tensor.shape, strict=True))
    return Arg("", Shape(argument.dtype, dims))


def _positions(size: int, dim: str, names: Sequence[str], device: torch.device) -> Tensor:
    """The indices along `dim`, aligned to `names`."""
    shape = [1] * len(names)
    shape[names.index(dim)] = size
    return torch.arange(size, device=device).reshape(shape)


def _axes(value: Named, dims: Sequence[str]) -> tuple[int, ...]:
    return tuple(value.names.index(name) for name in dims)


# ---------------------------------------------------------------- contraction


def contract(left: Named, right: Named, dims: Sequence[str], names: Sequence[str]) -> Tensor:
    """Sums of products over `dims`, with the dimensions `names`: one product of matrices, or a batch of them."""
    batch = [n for n in left.names if n in right.names and n not in dims]
    rows = [n for n in left.names if n not in right.names]
    columns = [n for n in right.names if n not in left.names]
    a, b = aligned(left, (*batch, *rows, *dims)), aligned(right, (*batch, *dims, *columns))
    n_summed = math.prod(a.shape[len(batch) + len(rows) :])
    outer = a.shape[: len(batch)]
    row_shape, column_shape = a.shape[len(outer) : len(outer) + len(rows)], b.shape[len(outer) + len(dims) :]
    n_rows, n_columns = math.prod(row_shape), math.prod(column_shape)
    first, second = a.reshape([*outer, n_rows, n_summed]), b.reshape([*outer, n_summed, n_columns])
    product = torch.matmul(first, second).reshape([*outer, *row_shape, *column_shape])
    made = (*batch, *rows, *columns)
    return product.permute([made.index(name) for name in names])


def _contract(operation: ops.Contract, call: Call) -> Tensor:
    return contract(call.tensor(0), call.tensor(1), operation.dims, call.result.names)


# ---------------------------------------------------------------- elementwise


def _elementwise(function: Callable[..., Tensor]) -> Kernel:
    """A function of aligned operands. Arithmetic on bool is that of 0 and 1, and what is not 0 is true."""

    def kernel(_operation: Operation, call: Call) -> Tensor:
        dtype = next(arg.dtype for arg in call.args if isinstance(arg, Named))
        tensors = [_like(arg, dtype, call.result.names, call.device) for arg in call.args]
        if dtype is DType.BOOL:
            tensors = [tensor.to(torch.int64) for tensor in tensors]
        return function(*tensors)

    return kernel


def _divide(a: Tensor, b: Tensor) -> Tensor:
    """Between integers rounded towards minus infinity; 0 where the divisor is 0."""
    if a.dtype.is_floating_point:
        return a / b
    safe = torch.where(b == 0, torch.ones_like(b), b)
    return torch.where(b == 0, torch.zeros_like(a), torch.div(a, safe, rounding_mode="floor"))


def _where(_operation: ops.Where, call: Call) -> Tensor:
    names, dtype = call.result.names, call.result.dtype
    chosen, other = (_like(arg, dtype, names, call.device) for arg in call.args[1:])
    return torch.where(aligned(call.tensor(0), names), chosen, other)


def _convert(operation: ops.Convert, call: Call) -> Tensor:
    """From floats to integers: towards zero, saturating, NaN to 0. To bool: whether it differs from 0."""
    value = call.tensor(0)
    tensor = aligned(value, call.result.names)
    if operation.dtype is DType.BOOL:
        return tensor != 0
    if operation.dtype.is_integer and value.dtype.is_float:
        low, high = integer_range(operation.dtype)
        return torch.nan_to_num(tensor.double().trunc(), nan=0.0).clamp(low, high).to(torch.int64)
    return tensor


_WORDS = {32: torch.int32, 16: torch.int16, 8: torch.int8}


def _bitcast(operation: ops.Bitcast, call: Call) -> Tensor:
    value = call.tensor(0)
    tensor = aligned(value, call.result.names).contiguous()
    if not value.dtype.is_float:
        tensor = tensor.to(_WORDS[value.dtype.bits])
    made = tensor.view(held_as(operation.dtype) if operation.dtype.is_float else _WORDS[operation.dtype.bits])
    return made if operation.dtype.is_float else made.to(torch.int64)


def _gelu(operation: ops.Gelu, call: Call) -> Tensor:
    x = aligned(call.tensor(0), call.result.names)
    return functional.gelu(x, approximate="tanh" if operation.form == "tanh" else "none")


# ---------------------------------------------------------------- reductions


def _sum(operation: ops.Sum, call: Call) -> Tensor:
    value = call.tensor(0)
    return value.tensor.sum(dim=_axes(value, operation.dims))


def _max(operation: ops.Max, call: Call) -> Tensor:
    value = call.tensor(0)
    return value.tensor.amax(dim=_axes(value, operation.dims))


def _cumsum(operation: ops.Cumsum, call: Call) -> Tensor:
    value = call.tensor(0)
    return value.tensor.cumsum(dim=value.names.index(operation.dim))


def _argmax(operation: ops.Argmax, call: Call) -> Tensor:
    """The first of the greatest, as numpy has it; `torch.argmax` promises no order."""
    value = call.tensor(0)
    at = value.names.index(operation.dim)
    indices = _positions(value.size(operation.dim), operation.dim, value.names, call.device)
    is_greatest = value.tensor == value.tensor.amax(dim=at, keepdim=True)
    first = torch.where(is_greatest | value.tensor.isnan(), indices, value.size(operation.dim)).amin(dim=at)
    return first.clamp(max=value.size(operation.dim) - 1)


def _topk(operation: ops.Topk, call: Call) -> tuple[Tensor, ...]:
    """In descending order, the first of equals first; NaN before all."""
    value = call.tensor(0)
    at = value.names.index(operation.dim)
    values, ids = torch.sort(value.tensor, dim=at, descending=True, stable=True)
    return values.narrow(at, 0, operation.k), ids.narrow(at, 0, operation.k)


def _layernorm(operation: ops.Layernorm, call: Call) -> Tensor:
    value = call.tensor(0)
    over = _axes(value, operation.dims)
    wide = value.tensor.float()
    return _scaled(wide - wide.mean(dim=over, keepdim=True), over, operation.eps, call)


def _rmsnorm(operation: ops.Rmsnorm, call: Call) -> Tensor:
    value = call.tensor(0)
    return _scaled(value.tensor.float(), _axes(value, operation.dims), operation.eps, call)


def _scaled(x: Tensor, over: tuple[int, ...], eps: float, call: Call) -> Tensor:
    normed = x * torch.rsqrt((x * x).mean(dim=over, keepdim=True) + eps)
    if len(call.args) > 1:
        normed = normed * _like(call.args[1], call.result.dtype, call.result.names, call.device)
    if len(call.args) > 2:
        normed = normed + _like(call.args[2], call.result.dtype, call.result.names, call.device)
    return normed


def _softmax(operation: ops.Softmax, call: Call) -> Tensor:
    value = call.tensor(0)
    scores, names = value.tensor.float(), value.names
    if operation.causal is not None:
        t = _positions(value.size(operation.dims[0]), operation.dims[0], names, call.device)
        l = _positions(value.size(operation.causal), operation.causal, names, call.device)  # noqa: E741
        if len(call.args) > 1:
            l = l + _like(call.args[1], DType.INT32, names, call.device)  # noqa: E741
        visible = t <= l
        if operation.window:
            visible = visible & (t > l - operation.window)
        scores = torch.where(visible, scores, -math.inf)
    over = _axes(value, operation.dims)
    powers = torch.exp(scores - scores.amax(dim=over, keepdim=True))
    return powers / powers.sum(dim=over, keepdim=True)


# ---------------------------------------------------------------- indices


def _lookup(operation: ops.Lookup, call: Call) -> Tensor:
    """An index out of range gives zeros."""
    table, ids = call.tensor(0), call.tensor(1)
    size = table.size(operation.dim)
    wanted = ids.tensor % size if operation.wrap else ids.tensor
    held = (wanted >= 0) & (wanted < size)
    at = torch.where(held, wanted, 0)
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
    return torch.arange(call.result.size(operation.dim), device=call.device)


def _uniform(operation: ops.Uniform, call: Call) -> Tensor:
    names = call.result.names
    index = torch.zeros((), dtype=torch.int64, device=call.device)
    for dim in operation.dims:
        size = call.result.size(dim)
        index = index * size + _positions(size, dim, names, call.device)
    key, at = (_like(arg, DType.UINT32, names, call.device) for arg in call.args)
    return uniform(key, at, index)


def _full(operation: ops.Full, call: Call) -> Tensor:
    number = call.args[0]
    assert isinstance(number, Number)
    return _literal(number, operation.dtype, call.device)


def _rotary(operation: ops.Rotary, call: Call) -> Tensor:
    """Pairs (x1, x2) turned by pos * base^(-2i / rotated), i the number of the pair; angles in f32."""
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
    positions = _like(call.args[1], DType.INT32, others, call.device)
    along = operation.positions_dim([_arg(arg) for arg in call.args])
    if along is not None:
        positions = positions + _positions(value.size(along), along, others, call.device)
    angles = positions[..., None].float() * frequencies
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
    cache, new = call.tensor(0), call.tensor(1)
    names, size = cache.names, cache.size(operation.dim)
    written = operation.written_dim([_arg(arg) for arg in call.args]) or operation.dim
    rows = aligned(new, [written if name == operation.dim else name for name in names])
    offset = _positions(size, operation.dim, names, call.device)
    offset = offset - _like(call.args[2], DType.INT32, names, call.device)
    if operation.wrap:
        offset = offset % size
    at = names.index(operation.dim)
    n = rows.shape[at]
    index = offset.clamp(0, n - 1)
    shape = [size if i == at else extent for i, extent in enumerate(cache.tensor.shape)]
    source = [n if i == at else extent for i, extent in enumerate(cache.tensor.shape)]
    taken = rows.expand(source).gather(at, index.expand(shape))
    return torch.where((offset >= 0) & (offset < n), taken, cache.tensor)


def _take(operation: ops.Take, call: Call) -> Tensor:
    value = call.tensor(0)
    at = value.names.index(operation.dim)
    if operation.stop is None:
        return value.tensor.select(at, operation.start)
    return value.tensor.narrow(at, operation.start, operation.stop - operation.start)


def _concat(operation: ops.Concat, call: Call) -> Tensor:
    names = call.result.names
    values = [aligned(call.tensor(i), names) for i in range(len(call.args))]
    return torch.cat(values, dim=names.index(operation.dim))


# ---------------------------------------------------------------- the same numbers under other names


def _same(_operation: Operation, call: Call) -> Tensor:
    return call.tensor(0).tensor


def _reshape(_operation: ops.Split, call: Call) -> Tensor:
    return call.tensor(0).tensor.reshape([dim.size for dim in call.result.dims])


def _merge(operation: ops.Merge, call: Call) -> Tensor:
    value = call.tensor(0)
    names: list[str] = []
    for name in value.names:
        if name == operation.parts[0]:
            names.extend(operation.parts)
        elif name not in operation.parts:
            names.append(name)
    return aligned(value, names).reshape([dim.size for dim in call.result.dims])


KERNELS: dict[type[Operation], Kernel] = {
    ops.Contract: _contract,
    ops.Add: _elementwise(torch.add),
    ops.Sub: _elementwise(torch.sub),
    ops.Mul: _elementwise(torch.mul),
    ops.Div: _elementwise(_divide),
    ops.Neg: _elementwise(torch.neg),
    ops.Maximum: _elementwise(torch.maximum),
    ops.Minimum: _elementwise(torch.minimum),
    ops.Less: _elementwise(torch.lt),
    ops.LessEqual: _elementwise(torch.le),
    ops.Equal: _elementwise(torch.eq),
    ops.LogicalAnd: _elementwise(torch.logical_and),
    ops.LogicalOr: _elementwise(torch.logical_or),
    ops.LogicalNot: _elementwise(torch.logical_not),
    ops.Where: _where,
    ops.Gelu: _gelu,
    ops.Silu: _elementwise(functional.silu),
    ops.Relu: _elementwise(functional.relu),
    ops.Exp: _elementwise(torch.exp),
    ops.Log: _elementwise(torch.log),
    ops.Log1p: _elementwise(torch.log1p),
    ops.Sqrt: _elementwise(torch.sqrt),
    ops.Rsqrt: _elementwise(torch.rsqrt),
    ops.Tanh: _elementwise(torch.tanh),
    ops.Sigmoid: _elementwise(torch.sigmoid),
    ops.Cos: _elementwise(torch.cos),
    ops.Sin: _elementwise(torch.sin),
    ops.Abs: _elementwise(torch.abs),
    ops.Convert: _convert,
    ops.Bitcast: _bitcast,
    ops.Sum: _sum,
    ops.Max: _max,
    ops.Cumsum: _cumsum,
    ops.Argmax: _argmax,
    ops.Topk: _topk,
    ops.Layernorm: _layernorm,
    ops.Rmsnorm: _rmsnorm,
    ops.Softmax: _softmax,
    ops.Lookup: _lookup,
    ops.Iota: _iota,
    ops.Full: _full,
    ops.Uniform: _uniform,
    ops.Rotary: _rotary,
    ops.Update: _update,
    ops.Take: _take,
    ops.Concat: _concat,
    ops.Alias: _same,
    ops.Rename: _same,
    ops.Split: _reshape,
    ops.Merge: _merge,
}
"""One kernel for each operation that is no movement."""
