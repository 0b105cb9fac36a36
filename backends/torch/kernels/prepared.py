"""Operations prepared for operands whose shapes are known: which dimension goes where is settled once, and what is left
is a function of tensors.

What has no such form here is computed by its kernel (`kernels.compute`), which finds out anew each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from shardwright.backends.torch.tensors import Argument, NamedTensor, held_as, rounded
from shardwright.ir import ops
from shardwright.ir.operation import Arg, Number, Operation
from shardwright.ir.types import DType, Shape

if TYPE_CHECKING:
    from torch import Tensor

Common = dict[Any, Any]
"""Values that the layers of a pass have in common, made by the first that asks for it: angles, masks."""

Prepared = Callable[..., "Tensor"]
"""A function of the common values and of the operands that are no numbers."""

Operands = Sequence[Shape | Number]
Prepare = Callable[[Any, Operands, Shape], Prepared | None]

_CHOOSING = (ops.Take, ops.Argmax)
"""Operations whose integers need not wrap around; of floats torch's own result needs no rounding beside its own."""


def prepared(operation: Operation, operands: Operands, result: Shape, sparse: float = 1.0) -> Prepared | None:
    """The operation for operands of these shapes, None where it is not known here. With `sparse` attention of one query
    looks at that share of the positions before it."""
    if isinstance(operation, ops.Attend):
        return _attend(operation, operands, result, sparse)
    prepare = PREPARED.get(type(operation))
    if prepare is None or not (result.dtype.is_float or isinstance(operation, _CHOOSING)):
        return None
    floats = [o.dtype for o in operands if isinstance(o, Shape) and o.dtype.is_float]
    if result.dtype.is_float and any(dtype is not result.dtype for dtype in floats):
        return None
    return prepare(operation, operands, result)


def in_place(operation: Operation, others: Sequence[Shape], result: Shape) -> Prepared | None:
    """The operation with its result in the memory of an operand, which has its shape; the `others` come after it."""
    import torch
    from torch.nn import functional

    def onto(function: Callable[[Tensor, Tensor], Tensor]) -> Prepared:
        if all(shape.names == result.names for shape in others):
            return _of_tensors(function)
        arranged = _arranged(others[0], result.names)

        def run(_: Common, donor: Tensor, other: Tensor) -> Tensor:
            return function(donor, arranged(other))

        return run

    match operation:
        case ops.Add():
            return onto(torch.Tensor.add_)
        case ops.Mul():
            return onto(torch.Tensor.mul_)
        case ops.Function("relu"):
            return _of_tensors(torch.Tensor.relu_)
        case ops.Function("silu"):
            return _of_tensors(partial(functional.silu, inplace=True))
        case _:
            return None


def unless_spread(reusing: Prepared, run: Prepared, places: Sequence[int]) -> Prepared:
    """`reusing`, but `run` where one number in the donor's memory stands for several; `run` has its operands at these
    places."""

    def either(common: Common, donor: Tensor, *others: Tensor) -> Tensor:
        spread = any(step == 0 and n > 1 for step, n in zip(donor.stride(), donor.shape, strict=True))
        if not spread:
            return reusing(common, donor, *others)
        given = (donor, *others)
        return run(common, *(given[at] for at in places))

    return either


def _of_tensors(function: Callable[..., Tensor]) -> Prepared:
    """A function that asks for nothing in common."""

    def run(_: Common, *tensors: Tensor) -> Tensor:
        return function(*tensors)

    return run


def _arranged(shape: Shape, names: Sequence[str]) -> Callable[[Tensor], Tensor]:
    """A function that brings a tensor's dimensions into the order of `names`, extent 1 where it lacks one."""
    order = [shape.names.index(name) for name in names if name in shape]
    permuted = order != list(range(len(order)))
    if len(order) == len(names):
        return (lambda t: t.permute(order)) if permuted else lambda t: t
    index = tuple(slice(None) if name in shape else None for name in names)
    return (lambda t: t.permute(order)[index]) if permuted else lambda t: t[index]


# ---------------------------------------------------------------- products


def _contract(operation: ops.Contract, operands: Operands, result: Shape) -> Prepared | None:
    """One product of matrices, or a batch of them: dimensions of both operands, rows, what is summed, columns. A weight
    that is no matrix as it lies is laid so in parts."""
    import torch

    from shardwright.backends.torch.functions import product_in_parts
    from shardwright.backends.torch.kernels.reductions import sums_by_name

    left, right = operands
    if not isinstance(left, Shape) or not isinstance(right, Shape) or left.dtype is not right.dtype:
        return None
    dims = operation.dims
    batch = [n for n in left.names if n in right.names and n not in dims]
    rows = [n for n in left.names if n not in right.names]
    columns = [n for n in right.names if n not in left.names]
    made = (*batch, *rows, *columns)
    sums = sums_by_name(left.names, right.names, result.names)
    first, second = _arranged(left, (*batch, *rows, *dims)), _arranged(right, (*batch, *dims, *columns))
    outer = [math.prod(left.size(n) for n in batch)] if batch else []
    n_rows, n_summed = math.prod(left.size(n) for n in rows), math.prod(left.size(n) for n in dims)
    n_columns = math.prod(right.size(n) for n in columns)
    a_shape, b_shape = [*outer, n_rows, n_summed], [*outer, n_summed, n_columns]
    made_shape = [*(left.size(n) for n in (*batch, *rows)), *(right.size(n) for n in columns)]
    product = torch.bmm if batch else torch.mm
    order = [made.index(name) for name in result.names]
    permuted = order != list(range(len(order)))

    def run(_: Common, a: Tensor, b: Tensor) -> Tensor:
        matrix = second(b)
        if not _views(matrix, b_shape):
            return product_in_parts(sums, a, b, b.dtype)
        found = product(first(a).reshape(a_shape), matrix.view(b_shape)).view(made_shape)
        return found.permute(order) if permuted else found

    return run


def _views(tensor: Tensor, shape: Sequence[int]) -> bool:
    """True if the tensor has this shape as it lies."""
    try:
        tensor.view(shape)
    except RuntimeError:
        return False
    return True


# ---------------------------------------------------------------- element by element


def _elementwise(operation: ops.TableOperation, operands: Operands, result: Shape) -> Prepared | None:
    """The table's function. A number stands beside an operator, and is one that the format has as it is written, or
    nearly."""
    import torch

    function = partial(operation.entry.spelled(result.dtype).torch, torch)
    shapes = [o for o in operands if isinstance(o, Shape)]
    if any(shape.dtype is not result.dtype for shape in shapes):
        return None
    if len(shapes) < len(operands) and (isinstance(operation, ops.Function) or result.dtype is not DType.F32):
        return None
    if all(isinstance(o, Shape) and o.names == result.names for o in operands):
        return _of_tensors(function)
    given = [_arranged(o, result.names) if isinstance(o, Shape) else float(o.value) for o in operands]

    def run(_: Common, *tensors: Tensor) -> Tensor:
        rest = iter(tensors)
        return function(*(each(next(rest)) if callable(each) else each for each in given))

    return run


# ---------------------------------------------------------------- norms


def _rms_norm(x: Tensor, sizes: Sequence[int], *scale: Tensor, eps: float) -> Tensor:
    """torch's own norm, which goes over the numbers five times on a CPU; in f32 over one dimension three passes do."""
    import torch
    from torch.nn import functional

    if x.device.type != "cpu" or x.dtype is not torch.float32 or len(sizes) > 1:
        return functional.rms_norm(x, [*sizes], *scale, eps=eps)
    linalg: Any = torch.linalg
    norm: Tensor = linalg.vector_norm(x, dim=-1, keepdim=True)
    made = x * torch.rsqrt(norm * norm / sizes[0] + eps)
    return made.mul_(scale[0]) if scale else made


def _layer_norm(x: Tensor, sizes: Sequence[int], *scales: Tensor, eps: float) -> Tensor:
    from torch.nn import functional

    return functional.layer_norm(x, [*sizes], *scales, eps=eps)


def _norm(function: Callable[..., Tensor], most: int) -> Prepare:
    """A norm over the last dimensions, with a scale of these dimensions, and a bias maybe."""

    def prepare(operation: Any, operands: Operands, result: Shape) -> Prepared | None:
        value, *scales = operands
        if not isinstance(value, Shape) or value.names != result.names or len(scales) > most:
            return None
        if result.names[len(result.names) - len(operation.dims) :] != tuple(operation.dims):
            return None
        for scale in scales:
            if not isinstance(scale, Shape) or scale.names != tuple(operation.dims) or scale.dtype is not result.dtype:
                return None
        sizes, eps = [result.size(n) for n in operation.dims], operation.eps

        def run(_: Common, x: Tensor, *given: Tensor) -> Tensor:
            return function(x, sizes, *given, eps=eps)

        return run

    return prepare


# ---------------------------------------------------------------- positions


def _rotary(operation: ops.Rotary, operands: Operands, result: Shape) -> Prepared | None:
    """As `indices._rotary`; the angles of a tensor of positions are made once for all layers, or for those in a row
    that have the same frequencies."""
    from shardwright.backends.torch import functions

    value, at = operands[:2]
    if not isinstance(value, Shape) or not isinstance(at, Shape) or value.names != result.names:
        return None
    if any(len(given.names) > 1 for given in operands[2:] if isinstance(given, Shape)):
        return None
    if value.names[-1] != operation.dim or operation.positions_dim([Arg("", value), Arg("", at)]) is not None:
        return None
    others, neox = value.names[:-1], operation.style == "neox"
    rotated = operation.rotated or value.size(operation.dim)
    arranged = _arranged(at, others)
    key = ("angles", operation.base, rotated, others)

    def run(common: Common, x: Tensor, positions: Tensor, *given: Tensor) -> Tensor:
        own, pointer = (*key, positions.data_ptr()), given[0].data_ptr() if given else 0
        if own not in common or common[own][0] != pointer:
            frequencies = given[0] if given else functions.frequencies(operation.base, rotated, positions.device)
            angles = functions.angles(arranged(positions), frequencies)
            common[own] = pointer, (positions, given), angles  # which stay where they are while pointers are compared
        return functions.turned(x, common[own][2], rotated, neox)

    return run


def _take(operation: ops.Take, operands: Operands, _result: Shape) -> Prepared | None:
    (value,) = operands
    if operation.stop is not None or not isinstance(value, Shape):
        return None
    at, start = value.names.index(operation.dim), operation.start

    def run(_: Common, x: Tensor) -> Tensor:
        return x.select(at, start)

    return run


def _argmax(operation: ops.Argmax, operands: Operands, _result: Shape) -> Prepared:
    import numpy as np
    import torch

    (value,) = operands
    assert isinstance(value, Shape)
    axis = value.names.index(operation.dim)

    def run(_: Common, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and value.dtype is DType.F32:  # torch compares one number after the other there
            return torch.as_tensor(np.argmax(x.numpy(), axis=axis)).to(held_as(DType.INT32))
        return x.argmax(dim=axis).to(held_as(DType.INT32))

    return run


def _attend(operation: ops.Attend, operands: Operands, result: Shape, sparse: float) -> Prepared | None:
    """Attention over what queries can see: positions behind them are left out before a kernel is asked, and where all
    rows are at one position the kernel needs no mask."""
    from shardwright.backends.torch.kernels import compute
    from shardwright.backends.torch.kernels.attention import sparse_attention

    if operation.lse or operation.given[:1] != ("pos",) or "length" in operation.given or operation.causal is None:
        return None
    if operation.page is not None:
        return None
    shapes = [o for o in operands if isinstance(o, Shape)]
    if len(shapes) != len(operands):
        return None
    q, k, v, pos, *windows = shapes
    if windows and windows[0].dims:
        return None
    T, L = operation.along, q.size(operation.causal)
    axes = k.names.index(T), v.names.index(T)

    def run(common: Common, *tensors: Tensor) -> Tensor:
        given, at = tensors[:3], tensors[3]
        key = "span", at.data_ptr()
        if key not in common:
            common[key] = at, int(at.min()), int(at.max())
        _, first, last = common[key]
        stop = max(1, min(last + L, k.size(T)))
        start, made = 0, operation
        if windows:
            key = "window", tensors[4].data_ptr()
            if key not in common:
                common[key] = tensors[4], int(tensors[4])
            if (width := common[key][1]) > 0:
                made = replace(operation, window=width, given=("pos",))
        window = made.window
        chosen = sparse < 1.0 and L == 1
        inside = first >= 0 and (window is None or last + L <= k.size(T)) and "window" not in made.given
        if not chosen and inside and first == last and (L == 1 or (not first and (window is None or window >= L))):
            start = 0 if window is None else max(0, stop - window)
            made = replace(made, window=None, given=(), causal=operation.causal if L > 1 else None)
        pieces = (given[0], *(t.narrow(a, start, stop - start) for t, a in zip(given[1:], axes, strict=True)))
        named = [NamedTensor(t, s.names, s.dtype) for t, s in zip(pieces, (q, k, v), strict=True)]
        args: list[Argument] = [*named]
        if chosen:
            return rounded(
                sparse_attention(made, named, NamedTensor(at, pos.names, pos.dtype), sparse, result.names), result.dtype
            )
        masks = list(zip(tensors[3:], (pos, *windows), strict=True))[: len(made.given)]
        args += [NamedTensor(tensor, shape.names, shape.dtype) for tensor, shape in masks]
        return compute(made, args, [result], at.device)[0].tensor

    return run


PREPARED: dict[type[Operation], Prepare] = {
    ops.Contract: _contract,
    **dict.fromkeys((ops.Add, ops.Sub, ops.Mul, ops.Function), _elementwise),
    ops.Layernorm: _norm(_layer_norm, 2),
    ops.Rmsnorm: _norm(_rms_norm, 1),
    ops.Rotary: _rotary,
    ops.Take: _take,
    ops.Argmax: _argmax,
}
"""The function that prepares each operation that is known here."""
