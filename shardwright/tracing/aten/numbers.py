"""PyTorch's functions of elements and products."""

# Imported by `capture_torch` alone, and only when a module is traced.
# pyright: basic
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp

from shardwright.ir.ops.elementwise_table import ENTRIES, Entry
from shardwright.tracing.aten.table import OPERATIONS, dtype_of, op

# ---------------------------------------------------------------- elementwise

_LIBRARIES = SimpleNamespace(jax=jax, jnp=jnp, lax=jax.lax)


def _of_the_language(entry: Entry) -> Callable[..., Any]:
    return lambda *operands: entry.spelling.jax(_LIBRARIES, *operands)


OPERATIONS |= {
    entry.keyword: _of_the_language(entry)
    for entry in ENTRIES
    if entry.keyword.isidentifier() and not entry.form and entry.takes[-1] != "bool" and not entry.gives_bool
}
OPERATIONS |= {
    "square": jnp.square, "reciprocal": jnp.reciprocal,
    "floor": jnp.floor, "ceil": jnp.ceil, "round": jnp.round, "sign": jnp.sign, "log_sigmoid": jax.nn.log_sigmoid,
    "logical_not": jnp.logical_not, "bitwise_not": jnp.bitwise_not, "isnan": jnp.isnan, "isinf": jnp.isinf,
    "atan2": jnp.arctan2, "logical_and": jnp.logical_and, "logical_or": jnp.logical_or, "__and__": jnp.bitwise_and,
    "__or__": jnp.bitwise_or, "bitwise_and": jnp.bitwise_and, "bitwise_or": jnp.bitwise_or,
    "bitwise_xor": jnp.bitwise_xor, "eq": jnp.equal, "ne": jnp.not_equal, "lt": jnp.less, "le": jnp.less_equal,
    "gt": jnp.greater, "ge": jnp.greater_equal, "mul": jnp.multiply, "floor_divide": jnp.floor_divide,
    "remainder": jnp.remainder, "relu6": jax.nn.relu6, "tan": jnp.tan,
    "mish": jax.nn.mish, "celu": jax.nn.celu, "glu": jax.nn.glu, "clamp_min": jnp.maximum, "clamp_max": jnp.minimum,
    "matmul": jnp.matmul, "mm": jnp.matmul, "bmm": jnp.matmul,
}  # fmt: skip


@op()
def add(a: Any, b: Any, *, alpha: float = 1) -> Any:
    return a + (b if alpha == 1 else b * alpha)


@op()
def sub(a: Any, b: Any, *, alpha: float = 1) -> Any:
    return a - (b if alpha == 1 else b * alpha)


@op()
def rsub(a: Any, b: Any, alpha: float = 1) -> Any:
    return b - (a if alpha == 1 else a * alpha)


@op()
def div(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return jnp.floor_divide(a, b)
    made = jnp.true_divide(a, b)
    return made if rounding_mode is None else jnp.trunc(made).astype(a.dtype)


@op("pow")
def power(a: Any, b: Any) -> Any:
    return a ** (int(b) if isinstance(b, float) and b.is_integer() else b)


@op()
def gelu(a: Any, *, approximate: str = "none") -> Any:
    return jax.nn.gelu(a, approximate=approximate == "tanh")


@op()
def leaky_relu(a: Any, negative_slope: float = 0.01) -> Any:
    return jnp.where(a > 0, a, a * negative_slope)


@op()
def elu(a: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    return scale * jnp.where(a > 0, a, alpha * jnp.expm1(input_scale * a))


@op()
def softplus(a: Any, beta: float = 1, threshold: float = 20) -> Any:
    return jnp.where(a * beta > threshold, a, jnp.logaddexp(a * beta, 0.0) / beta)


@op()
def clamp(a: Any, low: Any = None, high: Any = None) -> Any:
    a = a if low is None else jnp.maximum(a, low)
    return a if high is None else jnp.minimum(a, high)


@op()
def masked_fill(a: Any, mask: Any, value: Any) -> Any:
    return jnp.where(mask, jnp.asarray(value, a.dtype), a)


@op("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "dropout", "detach_", "resolve_conj",
    "resolve_neg")  # fmt: skip
def same(a: Any, *_: Any, **__: Any) -> Any:
    return a


@op("_assert_tensor_metadata", "_assert_scalar", "sym_constrain_range_for_size")
def nothing(*_: Any, **__: Any) -> None:
    return None


@op("_to_copy", "to")
def to_copy(a: Any, *_: Any, dtype: Any = None, **__: Any) -> Any:
    return a if dtype is None else a.astype(dtype_of(dtype))


@op()
def type_as(a: Any, b: Any) -> Any:
    return a.astype(b.dtype)


@op()
def copy(a: Any, b: Any, *_: Any) -> Any:
    return jnp.broadcast_to(b.astype(a.dtype), a.shape)


# ---------------------------------------------------------------- products


@op()
def linear(a: Any, weight: Any, bias: Any = None) -> Any:
    made = jnp.einsum("...i,oi->...o", a, weight)
    return made if bias is None else made + bias


@op("addmm", "baddbmm", "addmv")
def addmm(c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    made = a @ b
    return (c if beta == 1 else c * beta) + (made if alpha == 1 else made * alpha)


@op()
def einsum(text: str, operands: Sequence[Any], **_: Any) -> Any:
    return jnp.einsum(text, *operands)


@op()
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


OPERATIONS |= {
    "sinh": jnp.sinh, "cosh": jnp.cosh, "asin": jnp.arcsin, "acos": jnp.arccos, "atan": jnp.arctan,
    "exp2": jnp.exp2, "log2": jnp.log2, "log10": jnp.log10, "trunc": jnp.trunc, "fix": jnp.trunc, "fmod": jnp.fmod,
    "isfinite": jnp.isfinite, "logaddexp": jnp.logaddexp, "erfc": jax.scipy.special.erfc, "selu": jax.nn.selu,
    "sgn": jnp.sign, "hardsigmoid": jax.nn.hard_sigmoid, "true_divide": jnp.true_divide,
    "multiply": jnp.multiply, "divide": jnp.true_divide, "logical_xor": jnp.logical_xor, "negative": jnp.negative,
    "bitwise_left_shift": jnp.left_shift, "bitwise_right_shift": jnp.right_shift, "__lshift__": jnp.left_shift,
    "__rshift__": jnp.right_shift, "__xor__": jnp.bitwise_xor, "hardswish": jax.nn.hard_silu, "arctan2": jnp.arctan2,
    "outer": jnp.outer, "ger": jnp.outer, "mv": jnp.matmul, "dot": jnp.dot, "inner": jnp.inner, "kron": jnp.kron,
    "real": jnp.real, "imag": jnp.imag, "complex": jax.lax.complex, "_conj": jnp.conj, "conj_physical": jnp.conj,
    "angle": jnp.angle, "special_i0": jax.scipy.special.i0,
}  # fmt: skip


@op()
def heaviside(a: Any, b: Any) -> Any:
    return jnp.where(a == 0, b, (a > 0).astype(a.dtype))


@op()
def frac(a: Any) -> Any:
    return a - jnp.trunc(a)


@op()
def addcmul(a: Any, b: Any, c: Any, *, value: float = 1) -> Any:
    return a + (b * c if value == 1 else value * b * c)


@op()
def addcdiv(a: Any, b: Any, c: Any, *, value: float = 1) -> Any:
    return a + (b / c if value == 1 else value * b / c)


@op()
def lerp(a: Any, b: Any, weight: Any) -> Any:
    return a + weight * (b - a)


@op()
def prelu(a: Any, weight: Any) -> Any:
    slopes = weight.reshape(1, -1, *[1] * (a.ndim - 2)) if weight.size > 1 and a.ndim > 1 else weight.reshape(())
    return jnp.where(a >= 0, a, slopes * a)


@op()
def threshold(a: Any, least: float, value: float) -> Any:
    return jnp.where(a > least, a, value)


@op()
def nan_to_num(a: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Any:
    return jnp.nan_to_num(a, nan=nan or 0.0, posinf=posinf, neginf=neginf)


@op()
def addbmm(c: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    return beta * c + alpha * jnp.matmul(a, b).sum(0)


@op()
def tensordot(a: Any, b: Any, first: Sequence[int], second: Sequence[int]) -> Any:
    return jnp.tensordot(a, b, (tuple(first), tuple(second)))


@op()
def bilinear(a: Any, b: Any, weight: Any, bias: Any = None) -> Any:
    made = jnp.einsum("...i,oij,...j->...o", a, weight, b)
    return made if bias is None else made + bias


@op("_grouped_mm", "grouped_mm_fallback")
def grouped_product(a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:  # noqa: ARG001 - as PyTorch calls it
    """Rows by groups that end at `offs`, each group by a matrix of its own."""
    if offs is None or a.ndim != 2 or b.ndim != 3:
        raise NotImplementedError("rows of one group after the other, by three axes of matrices")
    made = jax.lax.ragged_dot(a, b, jnp.diff(offs, prepend=0))
    return made if bias is None else made + bias


@op()
def hardtanh(a: Any, low: float = -1, high: float = 1) -> Any:
    return jnp.clip(a, low, high)


@op("_weight_norm")
def weight_norm(direction: Any, size: Any, dim: int = 0) -> Any:
    others = tuple(d for d in range(direction.ndim) if d != dim)
    return direction * (size / jnp.sqrt(jnp.sum(jnp.square(direction), others, keepdims=True)))


@op()
def polar(size: Any, angle: Any) -> Any:
    return jax.lax.complex(size * jnp.cos(angle), size * jnp.sin(angle))


@op()
def view_as_complex(a: Any) -> Any:
    return jax.lax.complex(a[..., 0], a[..., 1])


@op()
def view_as_real(a: Any) -> Any:
    return jnp.stack([jnp.real(a), jnp.imag(a)], -1)
