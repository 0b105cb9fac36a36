"""The operations of PyTorch's export, as functions of JAX's arrays that take the same arguments."""

# Imported by `capture_torch` alone, and only when a module is traced.
# pyright: basic
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_DTYPES = {
    "bool": "bool", "uint8": "uint8", "int8": "int8", "int16": "int16", "int32": "int32", "int64": "int32",
    "float16": "float16", "bfloat16": "bfloat16", "float32": "float32", "float64": "float32",
}  # fmt: skip


def dtype_of(dtype: Any) -> Any:
    """The format of a torch dtype; numbers of 64 bits have 32."""
    return None if dtype is None else jnp.dtype(_DTYPES[str(dtype).removeprefix("torch.")])


OPERATIONS: dict[str, Callable[..., Any]] = {}
"""By the name of the operation without its overload."""


def _op(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        OPERATIONS.update(dict.fromkeys(names or (function.__name__.strip("_"),), function))
        return function

    return add


def _dims(rank: int, dims: Any) -> tuple[int, ...]:
    if dims is None or dims == []:
        return tuple(range(rank))
    return tuple(d % max(rank, 1) for d in (dims if isinstance(dims, Sequence) else [dims]))


# ---------------------------------------------------------------- elementwise

OPERATIONS |= {
    "abs": jnp.abs, "neg": jnp.negative, "exp": jnp.exp, "expm1": jnp.expm1, "log": jnp.log, "log1p": jnp.log1p,
    "sin": jnp.sin, "cos": jnp.cos, "tanh": jnp.tanh, "erf": jax.scipy.special.erf, "rsqrt": jax.lax.rsqrt,
    "sqrt": jnp.sqrt, "sigmoid": jax.nn.sigmoid, "silu": jax.nn.silu, "relu": jax.nn.relu, "square": jnp.square,
    "reciprocal": jnp.reciprocal, "floor": jnp.floor, "ceil": jnp.ceil, "round": jnp.round, "sign": jnp.sign,
    "log_sigmoid": jax.nn.log_sigmoid, "logical_not": jnp.logical_not, "bitwise_not": jnp.bitwise_not,
    "isnan": jnp.isnan, "isinf": jnp.isinf, "atan2": jnp.arctan2, "maximum": jnp.maximum, "minimum": jnp.minimum,
    "logical_and": jnp.logical_and, "logical_or": jnp.logical_or, "__and__": jnp.bitwise_and,
    "__or__": jnp.bitwise_or, "bitwise_and": jnp.bitwise_and, "bitwise_or": jnp.bitwise_or,
    "bitwise_xor": jnp.bitwise_xor, "eq": jnp.equal, "ne": jnp.not_equal, "lt": jnp.less, "le": jnp.less_equal,
    "gt": jnp.greater, "ge": jnp.greater_equal, "mul": jnp.multiply, "floor_divide": jnp.floor_divide,
    "remainder": jnp.remainder, "relu6": jax.nn.relu6, "hardtanh": jax.nn.hard_tanh, "tan": jnp.tan,
    "where": jnp.where, "mish": jax.nn.mish,
}  # fmt: skip


@_op()
def add(a: Any, b: Any, *, alpha: float = 1) -> Any:
    return a + (b if alpha == 1 else b * alpha)


@_op()
def sub(a: Any, b: Any, *, alpha: float = 1) -> Any:
    return a - (b if alpha == 1 else b * alpha)


@_op()
def rsub(a: Any, b: Any, alpha: float = 1) -> Any:
    return b - (a if alpha == 1 else a * alpha)


@_op()
def div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return jnp.floor_divide(a, b)
    made = jnp.true_divide(a, b)
    return made if rounding_mode is None else jnp.trunc(made).astype(a.dtype)


@_op("pow")
def power(a: Any, b: Any) -> Any:
    return a ** (int(b) if isinstance(b, float) and b.is_integer() else b)


@_op()
def gelu(a: Any, *, approximate: str = "none") -> Any:
    return jax.nn.gelu(a, approximate=approximate == "tanh")


@_op()
def leaky_relu(a: Any, negative_slope: float = 0.01) -> Any:
    return jnp.where(a > 0, a, a * negative_slope)


@_op()
def elu(a: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    return scale * jnp.where(a > 0, a, alpha * jnp.expm1(input_scale * a))


@_op()
def softplus(a: Any, beta: float = 1, threshold: float = 20) -> Any:
    return jnp.where(a * beta > threshold, a, jnp.logaddexp(a * beta, 0.0) / beta)


@_op()
def clamp(a: Any, low: Any = None, high: Any = None) -> Any:
    a = a if low is None else jnp.maximum(a, low)
    return a if high is None else jnp.minimum(a, high)


@_op()
def clamp_min(a: Any, low: Any) -> Any:
    return jnp.maximum(a, low)


@_op()
def masked_fill(a: Any, mask: Any, value: Any) -> Any:
    return jnp.where(mask, jnp.asarray(value, a.dtype), a)


@_op("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "dropout", "detach_")
def same(a: Any, *_: Any, **__: Any) -> Any:
    return a


@_op("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range_for_size")
def nothing(*_: Any, **__: Any) -> None:
    return None


@_op("_to_copy", "to")
def to_copy(a: Any, *_: Any, dtype: Any = None, **__: Any) -> Any:
    return a if dtype is None else a.astype(dtype_of(dtype))


@_op()
def type_as(a: Any, b: Any) -> Any:
    return a.astype(b.dtype)


@_op()
def copy(a: Any, b: Any, *_: Any) -> Any:
    return jnp.broadcast_to(b.astype(a.dtype), a.shape)


# ---------------------------------------------------------------- products


@_op("matmul", "mm", "bmm")
def matmul(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b)


@_op()
def linear(a: Any, weight: Any, bias: Any = None) -> Any:
    made = jnp.einsum("...i,oi->...o", a, weight)
    return made if bias is None else made + bias


@_op()
def addmm(c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    made = a @ b
    return (c if beta == 1 else c * beta) + (made if alpha == 1 else made * alpha)


@_op()
def baddbmm(c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return addmm(c, a, b, beta=beta, alpha=alpha)


@_op()
def einsum(text: str, operands: Sequence[Any], **_: Any) -> Any:
    return jnp.einsum(text, *operands)


@_op()
def scaled_dot_product_attention(
    q: Any, k: Any, v: Any, attn_mask: Any = None, _dropout: float = 0.0, is_causal: bool = False, *,
    scale: float | None = None, enable_gqa: bool = False
) -> Any:  # fmt: skip
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    groups = q.shape[-3] // k.shape[-3] if enable_gqa else 1
    grouped = q.reshape(*q.shape[:-3], k.shape[-3], groups, *q.shape[-2:]) if groups > 1 else q[..., :, None, :, :]
    scores = jnp.einsum("...kgld,...ktd->...kglt", grouped, k) * scale
    if is_causal:
        rows, columns = jnp.arange(q.shape[-2]), jnp.arange(k.shape[-2])
        scores = jnp.where(rows[:, None] >= columns, scores, jnp.finfo(scores.dtype).min)
    if attn_mask is not None:
        if attn_mask.ndim >= 3 and attn_mask.shape[-3] != 1:
            attn_mask = attn_mask.reshape(*attn_mask.shape[:-3], k.shape[-3], groups, *attn_mask.shape[-2:])
        elif attn_mask.ndim >= 3:
            attn_mask = attn_mask[..., None, :, :]
        scores = (
            jnp.where(attn_mask, scores, jnp.finfo(scores.dtype).min) if attn_mask.dtype == bool else scores + attn_mask
        )
    made = jnp.einsum("...kglt,...ktd->...kgld", jax.nn.softmax(scores.astype(jnp.float32), -1).astype(v.dtype), v)
    return made.reshape(*q.shape[:-1], v.shape[-1])


@_op()
def conv1d(a: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
           groups: int = 1) -> Any:  # fmt: skip
    """Tap by tap, one channel to one (`groups` as many as channels) or all to all; others as one call."""
    steps = [each[0] if isinstance(each, Sequence) else each for each in (stride, padding, dilation)]
    if steps[0] != 1 or steps[2] != 1 or (groups > 1 and not groups == a.shape[-2] == weight.shape[0]):
        return _convolved(a, weight, bias, stride, padding, dilation, groups)
    a = jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(steps[1], steps[1])])
    length = a.shape[-1] - weight.shape[-1] + 1
    taps = [a[..., at : at + length] for at in range(weight.shape[-1])]
    if groups == 1:
        made = sum(jnp.einsum("...il,oi->...ol", tap, weight[..., at]) for at, tap in enumerate(taps))
    else:
        made = sum(tap * weight[:, 0, at, None] for at, tap in enumerate(taps))
    return made if bias is None else made + bias[:, None]


def _convolved(a: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    rank = weight.ndim - 2
    steps, padded, apart = (
        list(each) * (rank // len(each)) if isinstance(each, Sequence) else [each] * rank
        for each in (stride, padding, dilation)
    )
    batched = a if a.ndim == weight.ndim else a[None]
    spec = ("NCHWD"[: rank + 2], "OIHWD"[: rank + 2], "NCHWD"[: rank + 2])
    made = jax.lax.conv_general_dilated(
        batched, weight, steps, [(each, each) for each in padded], rhs_dilation=apart, dimension_numbers=spec,
        feature_group_count=groups,
    )  # fmt: skip
    made = made if a.ndim == weight.ndim else made[0]
    return made if bias is None else made + bias.reshape(-1, *[1] * rank)


@_op()
def conv2d(a: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
           groups: int = 1) -> Any:  # fmt: skip
    """Patches beside each other, which are a product; others as one call."""
    high, wide = weight.shape[-2:]
    steps, padded, apart = ([each] * 2 if isinstance(each, int) else list(each) for each in (stride, padding, dilation))
    if [steps, padded, apart, groups] != [[high, wide], [0, 0], [1, 1], 1]:
        return _convolved(a, weight, bias, stride, padding, dilation, groups)
    rows, columns = a.shape[-2] // high, a.shape[-1] // wide
    patches = a[..., : rows * high, : columns * wide].reshape(*a.shape[:-2], rows, high, columns, wide)
    made = jnp.einsum("...irhcw,oihw->...orc", patches, weight)
    return made if bias is None else made + bias[:, None, None]


# ---------------------------------------------------------------- reductions and norms


@_op("softmax", "_softmax")
def softmax(a: Any, dim: int, dtype: Any = None) -> Any:
    a = a.astype(dtype_of(dtype)) if dtype is not None and not isinstance(dtype, bool) else a
    return jax.nn.softmax(a, dim)


@_op("log_softmax", "_log_softmax")
def log_softmax(a: Any, dim: int, dtype: Any = None) -> Any:
    a = a.astype(dtype_of(dtype)) if dtype is not None and not isinstance(dtype, bool) else a
    return jax.nn.log_softmax(a, dim)


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(a: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        a = a if dtype is None else a.astype(dtype_of(dtype))
        return function(a, axis=_dims(a.ndim, dim), keepdims=keepdim)

    return reduced


for _name, _function in {"sum": jnp.sum, "mean": jnp.mean, "amax": jnp.max, "amin": jnp.min, "any": jnp.any,
                         "all": jnp.all, "logsumexp": jax.nn.logsumexp}.items():  # fmt: skip
    OPERATIONS[_name] = _reduction(_function)


@_op("max")
def maximum_along(a: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    if dim is None:
        return jnp.max(a)
    return jnp.max(a, dim, keepdims=keepdim), jnp.argmax(a, dim, keepdims=keepdim)


@_op()
def argmax(a: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    return jnp.argmax(a, dim, keepdims=keepdim)


@_op()
def var(a: Any, dim: Any = None, *, correction: int = 1, keepdim: bool = False) -> Any:
    return jnp.var(a, axis=_dims(a.ndim, dim), ddof=correction, keepdims=keepdim)


@_op()
def cumsum(a: Any, dim: int, *, dtype: Any = None) -> Any:
    a = a.astype(jnp.int32) if a.dtype == bool else a
    return jnp.cumsum(a, dim, dtype_of(dtype))


@_op()
def diff(a: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    return jnp.diff(a, n, dim, prepend, append)


@_op()
def layer_norm(a: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Any:
    axes = tuple(range(a.ndim - len(shape), a.ndim))
    wide = a.astype(jnp.float32)
    mean = wide.mean(axes, keepdims=True)
    made = ((wide - mean) * jax.lax.rsqrt(jnp.square(wide - mean).mean(axes, keepdims=True) + eps)).astype(a.dtype)
    made = made if weight is None else made * weight
    return made if bias is None else made + bias


@_op()
def rms_norm(a: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    axes = tuple(range(a.ndim - len(shape), a.ndim))
    eps = float(jnp.finfo(a.dtype).eps) if eps is None else eps
    made = a * jax.lax.rsqrt(jnp.square(a).mean(axes, keepdims=True) + eps)
    return made if weight is None else made * weight


@_op("_native_batch_norm_legit_no_training")
def batch_norm_of_inference(
    a: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[Any, None, None]:
    return batch_norm(a, weight, bias, mean, var, False, momentum, eps), None, None


@_op("batch_norm")
def batch_norm(a: Any, weight: Any, bias: Any, mean: Any, var: Any, _training: bool, _momentum: float, eps: float,
               *_: Any) -> Any:  # fmt: skip
    shape = (1, -1, *(1,) * (a.ndim - 2))
    made = (a - mean.reshape(shape)) * jax.lax.rsqrt(var.reshape(shape) + eps)
    made = made if weight is None else made * weight.reshape(shape)
    return made if bias is None else made + bias.reshape(shape)


@_op()
def topk(a: Any, k: int, dim: int = -1, largest: bool = True, _sorted: bool = True) -> Any:
    last = jnp.moveaxis(a, dim, -1)
    values, indices = jax.lax.top_k(last if largest else -last, k)
    return jnp.moveaxis(values if largest else -values, -1, dim), jnp.moveaxis(indices, -1, dim)


@_op()
def sort(a: Any, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    indices = jnp.argsort(a, axis=dim, descending=descending, stable=True)
    return jnp.take_along_axis(a, indices, axis=dim), indices


# ---------------------------------------------------------------- shapes


@_op("view", "reshape", "_unsafe_view")
def view(a: Any, shape: Sequence[int]) -> Any:
    return a.reshape(tuple(shape))


@_op()
def unfold(a: Any, dim: int, size: int, step: int) -> Any:
    dim %= a.ndim
    if size == step and a.shape[dim] % size == 0:
        return jnp.moveaxis(a.reshape(*a.shape[:dim], -1, size, *a.shape[dim + 1 :]), dim + 1, -1)
    windows = [jax.lax.slice_in_dim(a, at, at + size, axis=dim) for at in range(0, a.shape[dim] - size + 1, step)]
    return jnp.moveaxis(jnp.stack(windows, dim), dim + 1, -1)


@_op()
def flatten(a: Any, start: int = 0, end: int = -1) -> Any:
    start, end = start % a.ndim, end % a.ndim
    return a.reshape(*a.shape[:start], -1, *a.shape[end + 1 :])


@_op()
def unflatten(a: Any, dim: int, sizes: Sequence[int]) -> Any:
    dim %= a.ndim
    return a.reshape(*a.shape[:dim], *sizes, *a.shape[dim + 1 :])


@_op("transpose")
def transpose(a: Any, first: int, second: int) -> Any:
    return jnp.swapaxes(a, first, second)


@_op("t")
def t(a: Any) -> Any:
    return a.T


@_op("permute")
def permute(a: Any, dims: Sequence[int]) -> Any:
    return jnp.transpose(a, tuple(d % a.ndim for d in dims))


@_op()
def unsqueeze(a: Any, dim: int) -> Any:
    return jnp.expand_dims(a, dim)


@_op()
def squeeze(a: Any, dim: Any = None) -> Any:
    dims = _dims(a.ndim, dim)
    return jnp.squeeze(a, tuple(d for d in dims if a.shape[d] == 1))


@_op("expand")
def expand(a: Any, shape: Sequence[int], **_: Any) -> Any:
    lead = len(shape) - a.ndim
    return jnp.broadcast_to(a, tuple(a.shape[i - lead] if n == -1 else n for i, n in enumerate(shape)))


@_op()
def expand_as(a: Any, b: Any) -> Any:
    return jnp.broadcast_to(a, b.shape)


@_op()
def repeat(a: Any, times: Sequence[int]) -> Any:
    return jnp.tile(a, tuple(times))


@_op()
def repeat_interleave(a: Any, repeats: int, dim: int | None = None, **_: Any) -> Any:
    return jnp.repeat(a, repeats, dim)


@_op()
def cat(arrays: Sequence[Any], dim: int = 0) -> Any:
    return jnp.concatenate([array for array in arrays if array.shape != (0,)], dim)


@_op()
def stack(arrays: Sequence[Any], dim: int = 0) -> Any:
    return jnp.stack(arrays, dim)


@_op("slice")
def sliced(a: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    taken = [np.s_[:]] * a.ndim
    taken[dim] = np.s_[start:end:step]
    return a[tuple(taken)]


@_op()
def select(a: Any, dim: int, index: int) -> Any:
    return a[(np.s_[:],) * (dim % a.ndim) + (index,)]


@_op()
def slice_scatter(a: Any, source: Any, dim: int = 0, start: int | None = None, end: int | None = None,
                  step: int = 1) -> Any:  # fmt: skip
    taken = [np.s_[:]] * a.ndim
    taken[dim] = np.s_[start:end:step]
    return source if source.shape == a.shape else a.at[tuple(taken)].set(source)


@_op("split", "split_with_sizes")
def split(a: Any, sizes: Any, dim: int = 0) -> Any:
    total = a.shape[dim]
    each = (
        sizes
        if isinstance(sizes, Sequence)
        else [sizes] * (total // sizes) + ([total % sizes] if total % sizes else [])
    )
    return jnp.split(a, np.cumsum(each)[:-1].tolist(), dim)


@_op()
def chunk(a: Any, chunks: int, dim: int = 0) -> Any:
    return split(a, -(-a.shape[dim] // chunks), dim)


@_op()
def unbind(a: Any, dim: int = 0) -> Any:
    return [select(a, dim, i) for i in range(a.shape[dim])]


@_op()
def getitem(a: Any, index: int) -> Any:
    return a[index]


@_op()
def tril(a: Any, diagonal: int = 0) -> Any:
    rows, columns = jnp.arange(a.shape[-2]), jnp.arange(a.shape[-1])
    return jnp.where(rows[:, None] + diagonal >= columns, a, jnp.zeros((), a.dtype))


@_op()
def triu(a: Any, diagonal: int = 0) -> Any:
    rows, columns = jnp.arange(a.shape[-2]), jnp.arange(a.shape[-1])
    return jnp.where(rows[:, None] + diagonal <= columns, a, jnp.zeros((), a.dtype))


@_op("constant_pad_nd")
def constant_pad_nd(a: Any, pad: Sequence[int], value: float = 0) -> Any:
    widths = [(0, 0)] * (a.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    return jnp.pad(a, widths, constant_values=value)


# ---------------------------------------------------------------- new arrays


@_op()
def arange(*args: Any, dtype: Any = None, **_: Any) -> Any:
    start, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    kind = dtype_of(dtype) or (jnp.float32 if any(isinstance(n, float) for n in args) else jnp.int32)
    count = math.ceil((end - start) / step)
    made = jax.lax.iota(jnp.int32, count)
    made = made if step == 1 else made * step
    return (made if start == 0 else made + start).astype(kind)


@_op("full", "new_full")
def full(*args: Any, dtype: Any = None, **_: Any) -> Any:
    *like, shape, value = args
    kind = dtype_of(dtype) or (like[0].dtype if like else jnp.asarray(value).dtype)
    return jnp.full(tuple(shape), value, kind)


def _filled(value: int) -> Callable[..., Any]:
    def filled(*args: Any, dtype: Any = None, **_: Any) -> Any:
        *like, shape = args
        return jnp.full(tuple(shape), value, dtype_of(dtype) or (like[0].dtype if like else jnp.float32))

    return filled


def _filled_like(value: int) -> Callable[..., Any]:
    def filled(a: Any, *, dtype: Any = None, **_: Any) -> Any:
        return jnp.full(a.shape, value, dtype_of(dtype) or a.dtype)

    return filled


for _name, _value in {"ones": 1, "zeros": 0, "empty": 0}.items():
    OPERATIONS[_name] = OPERATIONS[f"new_{_name}"] = _filled(_value)
    OPERATIONS[f"{_name}_like"] = _filled_like(_value)


@_op()
def full_like(a: Any, value: float, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.full(a.shape, value, dtype_of(dtype) or a.dtype)


@_op()
def scalar_tensor(value: float, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.asarray(value, dtype_of(dtype))


# ---------------------------------------------------------------- at indices


@_op()
def embedding(weight: Any, ids: Any, *_: Any) -> Any:
    return weight.at[ids].get(mode="promise_in_bounds", wrap_negative_indices=False)  # PyTorch stops at others


@_op()
def index(a: Any, indices: Sequence[Any]) -> Any:
    return a.at[tuple(np.s_[:] if each is None else each for each in indices)].get(mode="promise_in_bounds")


@_op()
def index_select(a: Any, dim: int, ids: Any) -> Any:
    return a.at[(np.s_[:],) * (dim % a.ndim) + (ids,)].get(mode="promise_in_bounds")


@_op()
def index_put(a: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    at = a.at[tuple(np.s_[:] if each is None else each for each in indices)]
    return at.add(values) if accumulate else at.set(values)


@_op()
def gather(a: Any, dim: int, ids: Any, **_: Any) -> Any:
    return jnp.take_along_axis(a, ids, dim)


@_op()
def scatter(a: Any, dim: int, ids: Any, value: Any) -> Any:
    chosen = jax.nn.one_hot(jnp.moveaxis(ids, dim, -1), a.shape[dim], dtype=bool).any(-2)
    if not isinstance(value, int | float | bool):
        return jnp.put_along_axis(a, ids, value[tuple(map(slice, ids.shape))], axis=dim, inplace=False)
    return jnp.where(jnp.moveaxis(chosen, -1, dim), jnp.asarray(value, a.dtype), a)


@_op()
def one_hot(ids: Any, classes: int = -1) -> Any:
    return jax.nn.one_hot(ids, classes, dtype=jnp.int32)
