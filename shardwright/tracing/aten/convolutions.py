"""PyTorch's convolutions, those that are transposed, windows laid apart, and images at other sizes."""

# Imported by `capture_torch` alone, and only when a module is traced.
# pyright: basic
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwright.tracing.aten.table import OPERATIONS, each_axis, op


@op()
def conv1d(a: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
           groups: int = 1) -> Any:  # fmt: skip
    """Tap by tap, one channel to one (`groups` as many as channels) or all to all; others as one call."""
    a, padding = _padded(a, weight, padding, dilation)
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


def _padded(a: Any, weight: Any, padding: Any, dilation: Any) -> tuple[Any, Any]:
    """The operand with the padding that PyTorch calls "same", and what is left to pad."""
    if padding == "same":
        rank = weight.ndim - 2
        wide = [by * (size - 1) for by, size in zip(each_axis(dilation, rank), weight.shape[2:], strict=True)]
        a = jnp.pad(a, [(0, 0)] * (a.ndim - rank) + [(each // 2, each - each // 2) for each in wide])
    return a, 0 if isinstance(padding, str) else padding


def _convolved(a: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    rank = weight.ndim - 2
    steps, padded, apart = (each_axis(each, rank) for each in (stride, padding, dilation))
    batched = a if a.ndim == weight.ndim else a[None]
    spec = ("NCHWD"[: rank + 2], "OIHWD"[: rank + 2], "NCHWD"[: rank + 2])
    made = jax.lax.conv_general_dilated(
        batched, weight, steps, [(each, each) for each in padded], rhs_dilation=apart, dimension_numbers=spec,
        feature_group_count=groups,
    )  # fmt: skip
    made = made if a.ndim == weight.ndim else made[0]
    return made if bias is None else made + bias.reshape(-1, *[1] * rank)


@op()
def conv2d(a: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
           groups: int = 1) -> Any:  # fmt: skip
    """Patches beside each other, which are a product; others as one call."""
    a, padding = _padded(a, weight, padding, dilation)
    high, wide = weight.shape[-2:]
    steps, padded, apart = (each_axis(each, 2) for each in (stride, padding, dilation))
    if [steps, padded, apart, groups] != [[high, wide], [0, 0], [1, 1], 1]:
        return _convolved(a, weight, bias, stride, padding, dilation, groups)
    rows, columns = a.shape[-2] // high, a.shape[-1] // wide
    patches = a[..., : rows * high, : columns * wide].reshape(*a.shape[:-2], rows, high, columns, wide)
    made = jnp.einsum("...irhcw,oihw->...orc", patches, weight)
    return made if bias is None else made + bias[:, None, None]


def _transposed(rank: int) -> Callable[..., Any]:
    def run(a: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
            groups: int = 1, dilation: Any = 1) -> Any:  # fmt: skip
        """Windows that do not meet are a product; others a convolution of the input with gaps."""
        sizes, batched = weight.shape[2:], a if a.ndim == rank + 2 else a[None]
        steps, cut, more, apart = (each_axis(each, rank) for each in (stride, padding, output_padding, dilation))
        if [steps, cut, more, apart, groups] == [list(sizes), [0] * rank, [0] * rank, [1] * rank, 1]:
            places, window = "hwd"[:rank], "xyz"[:rank]
            inner = "".join(map("".join, zip(places, window, strict=True)))
            made = jnp.einsum(f"ni{places},io{window}->no{inner}", batched, weight)
            made = made.reshape(*made.shape[:2], *(n * k for n, k in zip(batched.shape[2:], sizes, strict=True)))
        else:
            apart_groups = weight.reshape(groups, -1, *weight.shape[1:]).swapaxes(1, 2)
            turned = jnp.flip(apart_groups.reshape(-1, *apart_groups.shape[2:]), range(2, rank + 2))
            reach = [d * (k - 1) - p for d, k, p in zip(apart, sizes, cut, strict=True)]
            spec = ("NCHWD"[: rank + 2], "OIHWD"[: rank + 2], "NCHWD"[: rank + 2])
            made = jax.lax.conv_general_dilated(
                batched, turned, [1] * rank, [(n, n + m) for n, m in zip(reach, more, strict=True)], lhs_dilation=steps,
                rhs_dilation=apart, dimension_numbers=spec, feature_group_count=groups,
            )  # fmt: skip
        made = made if a.ndim == rank + 2 else made[0]
        return made if bias is None else made + bias.reshape(-1, *[1] * rank)

    return run


for _rank in (1, 2, 3):
    OPERATIONS[f"conv_transpose{_rank}d"] = _transposed(_rank)


# ---------------------------------------------------------------- windows laid apart


@op()
def im2col(a: Any, size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    (high, wide), (down, right) = each_axis(size, 2), each_axis(dilation, 2)
    edges, (rows, columns) = each_axis(padding, 2), each_axis(stride, 2)
    a = jnp.pad(a, [(0, 0)] * (a.ndim - 2) + [(edge, edge) for edge in edges])
    n, m = a.shape[-2] - down * (high - 1), a.shape[-1] - right * (wide - 1)
    parts = [a[..., i * down : i * down + n : rows, j * right : j * right + m : columns]
             for i in range(high) for j in range(wide)]  # fmt: skip
    return jnp.stack(parts, -3).reshape(*a.shape[:-3], a.shape[-3] * len(parts), -1)


@op()
def col2im(a: Any, shape: Any, size: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    whole = jnp.zeros((*a.shape[:-2], a.shape[-2] // math.prod(each_axis(size, 2)), *shape), a.dtype)
    (made,) = jax.vjp(lambda image: im2col(image, size, dilation, padding, stride), whole)[1](a)
    return made


@op()
def pixel_unshuffle(a: Any, factor: int) -> Any:
    *lead, channels, high, wide = a.shape
    apart = a.reshape(*lead, channels, high // factor, factor, wide // factor, factor)
    n = len(lead)
    order = (*range(n + 1), n + 2, n + 4, n + 1, n + 3)
    return apart.transpose(order).reshape(*lead, channels * factor**2, high // factor, wide // factor)


# ---------------------------------------------------------------- other sizes


def _resized(name: str, rank: int, *, has_corners: bool) -> Callable[..., Any]:
    """A product for each axis with the matrix that PyTorch has for it: what it makes of the rows of the identity."""

    def run(a: Any, sizes: Any, *others: Any) -> Any:
        import torch

        corners, scales = others if has_corners else (None, *others)
        for d in range(rank):
            n, axis = a.shape[2 + d], 2 + d
            rows = torch.eye(n).reshape(1, n, n, *[1] * (rank - 1)).repeat(1, 1, 1, *[2] * (rank - 1))
            size = None if sizes is None else [sizes[d], *[2] * (rank - 1)]
            scale = None if scales is None else [scales[d], *[1.0] * (rank - 1)]
            made = getattr(torch.ops.aten, name).vec(rows, size, *([corners] if has_corners else []), scale)
            a = _along(a, axis, made[(0, slice(None), slice(None), *[0] * (rank - 1))].numpy())
        return a

    return run


def _along(a: Any, axis: int, rows: Any) -> Any:
    """The product along an axis with a matrix [before, after]; where it only repeats elements, these."""
    n, m = rows.shape
    if m % n == 0 and (rows == np.repeat(np.eye(n, dtype=rows.dtype), m // n, 1)).all():
        shape = (*a.shape[: axis + 1], m // n, *a.shape[axis + 1 :])
        return jnp.broadcast_to(jnp.expand_dims(a, axis + 1), shape).reshape(*a.shape[:axis], m, *a.shape[axis + 1 :])
    return jnp.moveaxis(jnp.einsum("...i,io->...o", jnp.moveaxis(a, axis, -1), rows.astype(a.dtype)), -1, axis)


for _name, _rank, _has_corners in (
    ("upsample_nearest1d", 1, False), ("upsample_nearest2d", 2, False), ("upsample_nearest3d", 3, False),
    ("_upsample_nearest_exact1d", 1, False), ("_upsample_nearest_exact2d", 2, False),
    ("_upsample_nearest_exact3d", 3, False), ("upsample_linear1d", 1, True), ("upsample_bilinear2d", 2, True),
    ("upsample_trilinear3d", 3, True), ("upsample_bicubic2d", 2, True), ("_upsample_bilinear2d_aa", 2, True),
    ("_upsample_bicubic2d_aa", 2, True),
):  # fmt: skip
    OPERATIONS[_name] = _resized(_name, _rank, has_corners=_has_corners)


@op()
def affine_grid_generator(theta: Any, size: Sequence[int], align_corners: bool) -> Any:
    """Places under a map for each image: a product with the places under the identity."""
    import torch

    rank = len(size) - 2
    places = torch.ops.aten.affine_grid_generator(torch.eye(rank, rank + 1)[None], [1, *size[1:]], align_corners)
    places = np.pad(places[0].numpy(), [(0, 0)] * rank + [(0, 1)], constant_values=1)
    places = jnp.asarray(places, theta.dtype)
    return jnp.einsum(f"nij,{'hwd'[:rank]}j->n{'hwd'[:rank]}i", theta, places)
