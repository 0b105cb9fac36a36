"""PyTorch's reductions, norms, pools and losses."""

# Imported by `capture_torch` alone, and only when a module is traced.
# pyright: basic
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwright.tracing.aten.table import OPERATIONS, dims_of, dtype_of, each_axis, op

# ---------------------------------------------------------------- reductions and norms


def _softened(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(a: Any, dim: int, dtype: Any = None) -> Any:
        return function(a if dtype is None or isinstance(dtype, bool) else a.astype(dtype_of(dtype)), dim)

    return run


OPERATIONS["softmax"] = OPERATIONS["_softmax"] = _softened(jax.nn.softmax)
OPERATIONS["log_softmax"] = OPERATIONS["_log_softmax"] = _softened(jax.nn.log_softmax)


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(a: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        a = a if dtype is None else a.astype(dtype_of(dtype))
        return function(a, axis=dims_of(a.ndim, dim), keepdims=keepdim)

    return reduced


for _name, _function in {"sum": jnp.sum, "mean": jnp.mean, "amax": jnp.max, "amin": jnp.min, "any": jnp.any,
                         "all": jnp.all, "prod": jnp.prod, "logsumexp": jax.nn.logsumexp}.items():  # fmt: skip
    OPERATIONS[_name] = _reduction(_function)


def _extreme(most: Callable[..., Any], of_two: Callable[..., Any], place: Callable[..., Any]) -> Callable[..., Any]:
    """The extreme along a dimension with its place, of all elements, or of each element and that of another tensor."""

    def run(a: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return most(a)
        if not isinstance(dim, int):
            return of_two(a, dim)
        return most(a, dim, keepdims=keepdim), place(a, dim, keepdims=keepdim)

    return run


def _place(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, dim=None, keepdim=False: function(a, dim, keepdims=keepdim)


OPERATIONS |= {"argmax": _place(jnp.argmax), "argmin": _place(jnp.argmin)}
OPERATIONS["max"] = _extreme(jnp.max, jnp.maximum, jnp.argmax)
OPERATIONS["min"] = _extreme(jnp.min, jnp.minimum, jnp.argmin)


def _spread(a: Any, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Any = None,
            ) -> tuple[Any, Any]:  # fmt: skip
    """The variance and the mean. What is divided by is one less, as `correction` says, or not, where not `unbiased`;
    that may stand in the place of the dimensions."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    axes = dims_of(a.ndim, dim)
    less = int(unbiased) if correction is None else correction
    return jnp.var(a, axis=axes, ddof=less, keepdims=keepdim), jnp.mean(a, axes, keepdims=keepdim)


OPERATIONS["var_mean"] = _spread


@op()
def var(a: Any, *args: Any, **given: Any) -> Any:
    return _spread(a, *args, **given)[0]


@op()
def std(a: Any, *args: Any, **given: Any) -> Any:
    return jnp.sqrt(var(a, *args, **given))


@op()
def std_mean(a: Any, *args: Any, **given: Any) -> Any:
    found, mean = _spread(a, *args, **given)
    return jnp.sqrt(found), mean


@op()
def cumsum(a: Any, dim: int, *, dtype: Any = None) -> Any:
    a = a.astype(jnp.int32) if a.dtype == bool else a
    return jnp.cumsum(a, dim, dtype_of(dtype))


@op()
def diff(a: Any, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    return jnp.diff(a, n, dim, prepend, append)


@op()
def layer_norm(a: Any, shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Any:
    axes = tuple(range(a.ndim - len(shape), a.ndim))
    wide = a.astype(jnp.float32)
    mean = wide.mean(axes, keepdims=True)
    made = ((wide - mean) * jax.lax.rsqrt(jnp.square(wide - mean).mean(axes, keepdims=True) + eps)).astype(a.dtype)
    made = made if weight is None else made * weight
    return made if bias is None else made + bias


@op()
def rms_norm(a: Any, shape: Sequence[int], weight: Any = None, eps: float | None = None) -> Any:
    axes = tuple(range(a.ndim - len(shape), a.ndim))
    eps = float(jnp.finfo(a.dtype).eps) if eps is None else eps
    made = a * jax.lax.rsqrt(jnp.square(a).mean(axes, keepdims=True) + eps)
    return made if weight is None else made * weight


@op("_native_batch_norm_legit_no_training")
def batch_norm_of_inference(
    a: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[Any, None, None]:
    return batch_norm(a, weight, bias, mean, var, False, momentum, eps), None, None


@op("batch_norm")
def batch_norm(a: Any, weight: Any, bias: Any, mean: Any, var: Any, _training: bool, _momentum: float, eps: float,
               *_: Any) -> Any:  # fmt: skip
    shape = (1, -1, *(1,) * (a.ndim - 2))
    made = (a - mean.reshape(shape)) * jax.lax.rsqrt(var.reshape(shape) + eps)
    made = made if weight is None else made * weight.reshape(shape)
    return made if bias is None else made + bias.reshape(shape)


@op()
def topk(a: Any, k: int, dim: int = -1, largest: bool = True, _sorted: bool = True) -> Any:
    last = jnp.moveaxis(a, dim, -1)
    values, indices = jax.lax.top_k(last if largest else -last, k)
    return jnp.moveaxis(values if largest else -values, -1, dim), jnp.moveaxis(indices, -1, dim)


@op()
def sort(a: Any, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    indices = jnp.argsort(a, axis=dim, descending=descending, stable=True)
    return jnp.take_along_axis(a, indices, axis=dim), indices


@op("linalg_vector_norm", "norm")
def vector_norm(a: Any, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    a = a if dtype is None else a.astype(dtype_of(dtype))
    axes, order = dims_of(a.ndim, dim), 2 if order is None else order
    if order == 2:
        return jnp.sqrt(jnp.square(a).sum(axes, keepdims=keepdim))
    if abs(order) == math.inf:
        return (jnp.max if order > 0 else jnp.min)(jnp.abs(a), axes, keepdims=keepdim)
    if order == 1:
        return jnp.abs(a).sum(axes, keepdims=keepdim)
    return (jnp.abs(a) ** order).sum(axes, keepdims=keepdim) ** (1 / order)


@op()
def cosine_similarity(a: Any, b: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    sizes = [jnp.maximum(jnp.sqrt(jnp.square(each).sum(dim)), eps) for each in (a, b)]
    return (a * b).sum(dim) / (sizes[0] * sizes[1])


@op()
def cumprod(a: Any, dim: int, *, dtype: Any = None) -> Any:
    return jnp.cumprod(a, dim, dtype_of(dtype))


@op()
def logcumsumexp(a: Any, dim: int) -> Any:
    return jax.lax.cumlogsumexp(a, dim % a.ndim)


@op()
def aminmax(a: Any, *, dim: int | None = None, keepdim: bool = False) -> Any:
    return jnp.min(a, dim, keepdims=keepdim), jnp.max(a, dim, keepdims=keepdim)


@op()
def count_nonzero(a: Any, dim: Any = None) -> Any:
    return (a != 0).astype(jnp.int32).sum(dims_of(a.ndim, dim))


@op()
def msort(a: Any) -> Any:
    return jnp.sort(a, 0)


@op()
def kthvalue(a: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    each = sort(a, dim)
    return tuple(jax.lax.index_in_dim(part, k - 1, dim % a.ndim, keepdim) for part in each)


@op()
def median(a: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    """The lower of the two in the middle."""
    if dim is None:
        return kthvalue(a.reshape(-1), (a.size + 1) // 2)[0]
    return kthvalue(a, (a.shape[dim] + 1) // 2, dim, keepdim)


@op()
def quantile(a: Any, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear") -> Any:
    return jnp.quantile(a, jnp.asarray(q, a.dtype), dim, method=interpolation, keepdims=keepdim)


def _running(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(a: Any, dim: int) -> Any:
        """The extreme so far, and the last place that has it."""
        values = function(a, dim % a.ndim)
        places = jax.lax.broadcasted_iota(jnp.int32, a.shape, dim % a.ndim)
        return values, jax.lax.cummax(jnp.where(a == values, places, 0), dim % a.ndim)

    return run


OPERATIONS |= {"cummax": _running(jax.lax.cummax), "cummin": _running(jax.lax.cummin)}


@op()
def cdist(a: Any, b: Any, p: float = 2, *_: Any) -> Any:
    return vector_norm(a[..., :, None, :] - b[..., None, :, :], p, -1)


@op()
def argsort(a: Any, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    return jnp.argsort(a, axis=dim, descending=descending, stable=True)


@op()
def group_norm(a: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> Any:
    grouped = a.reshape(a.shape[0], groups, -1)
    mean = grouped.mean(-1, keepdims=True)
    made = (grouped - mean) * jax.lax.rsqrt(jnp.square(grouped - mean).mean(-1, keepdims=True) + eps)
    shape = (1, -1, *(1,) * (a.ndim - 2))
    made = made.reshape(a.shape) if weight is None else made.reshape(a.shape) * weight.reshape(shape)
    return made if bias is None else made + bias.reshape(shape)


@op()
def instance_norm(a: Any, weight: Any, bias: Any, mean: Any, var: Any, own: bool, momentum: float, eps: float,
                  *_: Any) -> Any:  # fmt: skip
    if own:
        return group_norm(a, a.shape[1], weight, bias, eps)
    return batch_norm(a, weight, bias, mean, var, False, momentum, eps)


@op("native_layer_norm")
def native_layer_norm(a: Any, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    return layer_norm(a, shape, weight, bias, eps), None, None


# ---------------------------------------------------------------- pools


def _pooled(a: Any, windows: Sequence[_Window], first: Any, function: Callable[..., Any]) -> Any:
    lead = a.ndim - len(windows)
    left: list[_Window] = []
    for axis, each in enumerate(windows, lead):
        if each.count == each.apart == 1:
            # One window is a plain reduction; of thousands of rows beyond the end XLA for CPUs counts some twice.
            part = jax.lax.slice_in_dim(a, 0, min(each.n, each.size - each.before), axis=axis)
            a = (jnp.max if function is jax.lax.max else jnp.sum)(part, axis, keepdims=True)
            left.append(_Window(1, 1, 1, 0, 1, ceil=False))
        else:
            left.append(each)
    if all(each.size == each.step == 1 and not each.before for each in left):
        return a
    return jax.lax.reduce_window(
        a, np.asarray(first, a.dtype)[()], function, (*[1] * lead, *(each.size for each in left)),
        (*[1] * lead, *(each.step for each in left)),
        [(0, 0)] * lead + [(each.before, each.after) for each in left],
        window_dilation=(*[1] * lead, *(each.apart for each in left)),
    )  # fmt: skip


@dataclass(frozen=True)
class _Window:
    """Windows along an axis of n elements, `before` and `after` of them beyond its ends."""

    n: int
    size: int
    step: int
    before: int
    apart: int
    ceil: bool

    @property
    def count(self) -> int:
        room = self.n + 2 * self.before - self.apart * (self.size - 1) - 1
        count = (-(-room // self.step) if self.ceil else room // self.step) + 1
        return count - (self.ceil and (count - 1) * self.step >= self.n + self.before)  # none begins in the padding

    @property
    def after(self) -> int:
        return max((self.count - 1) * self.step + self.apart * (self.size - 1) + 1 - self.n - self.before, 0)

    def counted(self, padding: int) -> Any:
        """The elements that each window has, so many of the padding at each end included."""
        first = np.arange(self.count) * self.step - self.before
        return np.minimum(first + self.size, self.n + padding) - np.maximum(first, -padding)


def _windows(a: Any, rank: int, size: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> list[_Window]:
    each = [each_axis(value, rank) for value in (size, stride or size, padding, dilation)]
    return [_Window(n, *own, ceil=ceil) for n, *own in zip(a.shape[-rank:], *each, strict=True)]


def _pools(rank: int) -> None:
    def largest(
        a: Any, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        return _pooled(a, _windows(a, rank, size, stride, padding, dilation, ceil_mode), -math.inf, jax.lax.max)

    def mean(
        a: Any, size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Any:  # fmt: skip
        windows = _windows(a, rank, size, stride, padding, 1, ceil_mode)
        counts = [each.counted(each.before if count_include_pad else 0) for each in windows]
        divisor = divisor_override or functools.reduce(np.multiply.outer, counts)
        return _pooled(a, windows, 0.0, jax.lax.add) / jnp.asarray(divisor, a.dtype)

    def to_size(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(a: Any, size: Any) -> Any:
            for axis, wanted in zip(range(a.ndim - rank, a.ndim), each_axis(size, rank), strict=True):
                n = a.shape[axis]
                if wanted in (None, n):
                    continue
                if n % wanted:
                    parts = [(i * n // wanted, -(-(i + 1) * n // wanted)) for i in range(wanted)]
                    slices = (jax.lax.slice_in_dim(a, *part, axis=axis) for part in parts)
                    a = jnp.stack([function(part, axis) for part in slices], axis)
                else:
                    a = function(a.reshape(*a.shape[:axis], wanted, n // wanted, *a.shape[axis + 1 :]), axis + 1)
            return a

        return run

    OPERATIONS[f"max_pool{rank}d"] = largest
    OPERATIONS[f"avg_pool{rank}d"] = mean
    OPERATIONS[f"adaptive_avg_pool{rank}d"] = OPERATIONS[f"_adaptive_avg_pool{rank}d"] = to_size(jnp.mean)


for _rank in (1, 2, 3):
    _pools(_rank)


# ---------------------------------------------------------------- losses


def _summary(losses: Any, reduction: int) -> Any:
    return losses if reduction == 0 else losses.mean() if reduction == 1 else losses.sum()


@op()
def mse_loss(a: Any, b: Any, reduction: int = 1) -> Any:
    return _summary(jnp.square(a - b), reduction)


@op()
def l1_loss(a: Any, b: Any, reduction: int = 1) -> Any:
    return _summary(jnp.abs(a - b), reduction)


@op()
def smooth_l1_loss(a: Any, b: Any, reduction: int = 1, beta: float = 1.0) -> Any:
    apart = jnp.abs(a - b)
    return _summary(jnp.where(apart < beta, 0.5 * apart * apart / beta, apart - 0.5 * beta), reduction)


@op()
def binary_cross_entropy_with_logits(a: Any, b: Any, weight: Any = None, pos_weight: Any = None,
                                     reduction: int = 1) -> Any:  # fmt: skip
    towards = jax.nn.log_sigmoid(a) if pos_weight is None else pos_weight * jax.nn.log_sigmoid(a)
    losses = -(b * towards + (1 - b) * jax.nn.log_sigmoid(-a))
    return _summary(losses if weight is None else losses * weight, reduction)


@op("nll_loss", "nll_loss_nd", "nll_loss2d")
def nll_loss(a: Any, target: Any, weight: Any = None, reduction: int = 1, ignore_index: int = -100) -> Any:
    rows = jnp.moveaxis(a, 1, -1) if a.ndim > 1 else a
    kept = target != ignore_index
    at = jnp.where(kept, target, 0)
    losses = -jnp.take_along_axis(rows, at[..., None], -1, mode="promise_in_bounds")[..., 0]
    weights = kept.astype(a.dtype) if weight is None else jnp.where(kept, weight[at], 0)
    losses = losses * weights
    return losses if reduction == 0 else losses.sum() / (weights.sum() if reduction == 1 else 1)


@op("cross_entropy_loss")
def cross_entropy_loss(a: Any, target: Any, weight: Any = None, reduction: int = 1, ignore_index: int = -100,
                       label_smoothing: float = 0.0) -> Any:  # fmt: skip
    axis = min(1, a.ndim - 1)
    logs = jax.nn.log_softmax(a, axis)
    if target.dtype == a.dtype:
        smooth = target * (1 - label_smoothing) + label_smoothing / a.shape[axis] if label_smoothing else target
        losses = -(smooth * logs).sum(axis)
        return losses if reduction == 0 else losses.sum() / (losses.size if reduction == 1 else 1)
    made = nll_loss(logs, target, weight, reduction, ignore_index)
    if not label_smoothing:
        return made
    if weight is not None:
        raise NotImplementedError("smoothed labels with weights of classes")
    kept = (target != ignore_index).astype(a.dtype)
    even = -logs.mean(axis) * kept
    even = even if reduction == 0 else even.sum() / (kept.sum() if reduction == 1 else 1)
    return (1 - label_smoothing) * made + label_smoothing * even


@op()
def kl_div(a: Any, b: Any, reduction: int = 1, *, log_target: bool = False) -> Any:
    losses = jnp.exp(b) * (b - a) if log_target else jax.scipy.special.xlogy(b, b) - b * a
    return _summary(losses, reduction)
