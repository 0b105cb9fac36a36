"""PyTorch's operations on shapes, new arrays, and what is read and written at indices."""

# Imported by `capture_torch` alone, and only when a module is traced.
# pyright: basic
from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwright.tracing.aten.table import OPERATIONS, dims_of, dtype_of, least, op

# ---------------------------------------------------------------- shapes

OPERATIONS |= {
    "transpose": jnp.swapaxes, "t": jnp.transpose, "numpy_T": jnp.transpose, "unsqueeze": jnp.expand_dims,
    "movedim": jnp.moveaxis, "moveaxis": jnp.moveaxis, "stack": jnp.stack, "hstack": jnp.hstack, "vstack": jnp.vstack,
    "ravel": jnp.ravel, "diagonal": jnp.diagonal, "getitem": operator.getitem,
}  # fmt: skip


@op("view", "reshape", "_unsafe_view")
def view(a: Any, shape: Sequence[int]) -> Any:
    return a.reshape(tuple(shape))


@op()
def unfold(a: Any, dim: int, size: int, step: int) -> Any:
    dim %= a.ndim
    if size == step and a.shape[dim] % size == 0:
        return jnp.moveaxis(a.reshape(*a.shape[:dim], -1, size, *a.shape[dim + 1 :]), dim + 1, -1)
    windows = [jax.lax.slice_in_dim(a, at, at + size, axis=dim) for at in range(0, a.shape[dim] - size + 1, step)]
    return jnp.moveaxis(jnp.stack(windows, dim), dim + 1, -1)


@op()
def flatten(a: Any, start: int = 0, end: int = -1) -> Any:
    start, end = start % a.ndim, end % a.ndim
    return a.reshape(*a.shape[:start], -1, *a.shape[end + 1 :])


@op()
def unflatten(a: Any, dim: int, sizes: Sequence[int]) -> Any:
    dim %= a.ndim
    return a.reshape(*a.shape[:dim], *sizes, *a.shape[dim + 1 :])


@op("permute")
def permute(a: Any, dims: Sequence[int]) -> Any:
    return jnp.transpose(a, tuple(d % a.ndim for d in dims))


@op()
def squeeze(a: Any, dim: Any = None) -> Any:
    dims = dims_of(a.ndim, dim)
    return jnp.squeeze(a, tuple(d for d in dims if a.shape[d] == 1))


@op("expand")
def expand(a: Any, shape: Sequence[int], **_: Any) -> Any:
    lead = len(shape) - a.ndim
    return jnp.broadcast_to(a, tuple(a.shape[i - lead] if n == -1 else n for i, n in enumerate(shape)))


@op()
def expand_as(a: Any, b: Any) -> Any:
    return jnp.broadcast_to(a, b.shape)


@op("repeat", "tile")
def repeat(a: Any, times: Sequence[int]) -> Any:
    return jnp.tile(a, tuple(times))


@op()
def repeat_interleave(a: Any, repeats: int, dim: int | None = None, **_: Any) -> Any:
    return jnp.repeat(a, repeats, dim)


@op("cat", "concat", "concatenate")
def cat(arrays: Sequence[Any], dim: int = 0) -> Any:
    return jnp.concatenate([array for array in arrays if array.shape != (0,)], dim)


@op("slice")
def sliced(a: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    taken = [np.s_[:]] * a.ndim
    taken[dim] = np.s_[start:end:step]
    return a[tuple(taken)]


@op()
def select(a: Any, dim: int, index: int) -> Any:
    return a[(np.s_[:],) * (dim % a.ndim) + (index,)]


@op()
def slice_scatter(a: Any, source: Any, dim: int = 0, start: int | None = None, end: int | None = None,
                  step: int = 1) -> Any:  # fmt: skip
    taken = [np.s_[:]] * a.ndim
    taken[dim] = np.s_[start:end:step]
    return source if source.shape == a.shape else a.at[tuple(taken)].set(source)


@op("split", "split_with_sizes")
def split(a: Any, sizes: Any, dim: int = 0) -> Any:
    total = a.shape[dim]
    each = (
        sizes
        if isinstance(sizes, Sequence)
        else [sizes] * (total // sizes) + ([total % sizes] if total % sizes else [])
    )
    return jnp.split(a, np.cumsum(each)[:-1].tolist(), dim)


@op()
def chunk(a: Any, chunks: int, dim: int = 0) -> Any:
    return split(a, -(-a.shape[dim] // chunks), dim)


@op()
def unbind(a: Any, dim: int = 0) -> Any:
    return [select(a, dim, i) for i in range(a.shape[dim])]


@op()
def tril(a: Any, diagonal: int = 0) -> Any:
    rows, columns = jnp.arange(a.shape[-2]), jnp.arange(a.shape[-1])
    return jnp.where(rows[:, None] + diagonal >= columns, a, jnp.zeros((), a.dtype))


@op()
def triu(a: Any, diagonal: int = 0) -> Any:
    rows, columns = jnp.arange(a.shape[-2]), jnp.arange(a.shape[-1])
    return jnp.where(rows[:, None] + diagonal <= columns, a, jnp.zeros((), a.dtype))


@op("constant_pad_nd")
def constant_pad_nd(a: Any, pad: Sequence[int], value: float = 0) -> Any:
    widths = [(0, 0, 0)] * (a.ndim - len(pad) // 2) + [(pad[i], pad[i + 1], 0) for i in range(len(pad) - 2, -1, -2)]
    return jax.lax.pad(a, jnp.asarray(value, a.dtype), widths)  # widths below 0 cut


# ---------------------------------------------------------------- new arrays


@op()
def arange(*args: Any, dtype: Any = None, **_: Any) -> Any:
    start, end, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    kind = dtype_of(dtype) or (jnp.float32 if any(isinstance(n, float) for n in args) else jnp.int32)
    count = math.ceil((end - start) / step)
    made = jax.lax.iota(jnp.int32, count)
    made = made if step == 1 else made * step
    return (made if start == 0 else made + start).astype(kind)


@op("full", "new_full")
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


@op("full_like", "fill")
def full_like(a: Any, value: float, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.full(a.shape, value, dtype_of(dtype) or a.dtype)


@op()
def scalar_tensor(value: float, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.asarray(value, dtype_of(dtype))


# ---------------------------------------------------------------- at indices


@op()
def embedding(weight: Any, ids: Any, *_: Any) -> Any:
    return weight.at[ids].get(mode="promise_in_bounds", wrap_negative_indices=False)  # PyTorch stops at others


@op()
def index(a: Any, indices: Sequence[Any]) -> Any:
    return a.at[tuple(np.s_[:] if each is None else each for each in indices)].get(mode="promise_in_bounds")


@op()
def index_select(a: Any, dim: int, ids: Any) -> Any:
    return a.at[(np.s_[:],) * (dim % a.ndim) + (ids,)].get(mode="promise_in_bounds")


@op()
def index_put(a: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    (first, mask), *others = [(i, each) for i, each in enumerate(indices) if each is not None]
    if not others and mask.dtype == bool and values.ndim == 0:
        mask = jnp.expand_dims(mask, (*range(first), *range(first + mask.ndim, a.ndim)))
        return jnp.where(mask, a + values if accumulate else values, a)
    at = a.at[tuple(np.s_[:] if each is None else each for each in indices)]
    return at.add(values) if accumulate else at.set(values)


@op()
def gather(a: Any, dim: int, ids: Any, **_: Any) -> Any:
    return jnp.take_along_axis(a, ids, dim)


@op()
def scatter(a: Any, dim: int, ids: Any, value: Any, *, reduce: str = "") -> Any:
    if reduce:
        value = value if hasattr(value, "ndim") else jnp.full(ids.shape, value, a.dtype)
        return scatter_reduce(a, dim, ids, value, {"add": "sum", "multiply": "prod"}[reduce])
    chosen = jax.nn.one_hot(jnp.moveaxis(ids, dim, -1), a.shape[dim], dtype=bool).any(-2)
    if not isinstance(value, int | float | bool):
        return jnp.put_along_axis(a, ids, value[tuple(map(slice, ids.shape))], axis=dim, inplace=False)
    return jnp.where(jnp.moveaxis(chosen, -1, dim), jnp.asarray(value, a.dtype), a)


@op()
def scatter_reduce(a: Any, dim: int, ids: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    """The sum, say, of all that is written to one place, with what was there or without."""
    dim %= a.ndim
    source, base, count = source[tuple(map(slice, ids.shape))], a, jnp.ones((), a.dtype)
    if reduce == "mean" or not include_self:
        count = scatter_add(jnp.zeros(a.shape, a.dtype), dim, ids, jnp.ones(ids.shape, a.dtype))
    if not include_self:
        base = jnp.where(count > 0, {"prod": 1, "amax": least(a.dtype), "amin": -least(a.dtype)}.get(reduce, 0), a)
    if reduce in ("sum", "mean"):
        made = scatter_add(base, dim, ids, source)
        divisor = jnp.maximum(count + 1 if include_self else count, 1)
        return made if reduce == "sum" else made // divisor if made.dtype.kind in "iu" else made / divisor
    places = jnp.meshgrid(*map(jnp.arange, ids.shape), indexing="ij", sparse=True)
    at = base.at[tuple(ids if d == dim else place for d, place in enumerate(places))]
    combine = {"prod": at.multiply, "amax": at.max, "amin": at.min}[reduce]
    return combine(source, mode="promise_in_bounds", wrap_negative_indices=False)


@op()
def index_reduce(a: Any, dim: int, ids: Any, source: Any, reduce: str, *, include_self: bool = True) -> Any:
    wide = jnp.broadcast_to(jnp.expand_dims(ids, range(1, a.ndim - dim % a.ndim)), source.shape)
    return scatter_reduce(a, dim, wide, source, reduce, include_self=include_self)


@op()
def one_hot(ids: Any, classes: int = -1) -> Any:
    return jax.nn.one_hot(ids, classes, dtype=jnp.int32)


@op()
def scatter_add(a: Any, dim: int, ids: Any, source: Any) -> Any:
    """By one-hot rows: every axis but `dim` is the same of both."""
    dim %= a.ndim
    source = source[tuple(map(slice, ids.shape))]
    here = a[tuple(slice(None) if d == dim else slice(n) for d, n in enumerate(ids.shape))]
    chosen = jax.nn.one_hot(jnp.moveaxis(ids, dim, -1), a.shape[dim], dtype=a.dtype)
    added = jnp.einsum("...i,...ij->...j", jnp.moveaxis(source, dim, -1), chosen)
    made = here + jnp.moveaxis(added, -1, dim)
    if here.shape == a.shape:
        return made
    return a.at[tuple(slice(n) for n in made.shape)].set(made)


@op()
def index_add(a: Any, dim: int, ids: Any, source: Any, *, alpha: float = 1) -> Any:
    at = a.at[(np.s_[:],) * (dim % a.ndim) + (ids,)]
    return at.add(source if alpha == 1 else source * alpha)


@op("index_copy", "index_fill")
def index_copy(a: Any, dim: int, ids: Any, source: Any) -> Any:
    return a.at[(np.s_[:],) * (dim % a.ndim) + (ids,)].set(source)


@op()
def take_along_dim(a: Any, ids: Any, dim: int | None = None) -> Any:
    return jnp.take_along_axis(a, ids, dim)


@op()
def select_scatter(a: Any, source: Any, dim: int, index: int) -> Any:
    return a.at[(np.s_[:],) * (dim % a.ndim) + (index,)].set(source)


@op()
def masked_scatter(a: Any, mask: Any, source: Any) -> Any:
    """The elements of the source one after the other where the mask is true."""
    mask = jnp.broadcast_to(mask, a.shape)
    at = (jnp.cumsum(mask.reshape(-1).astype(jnp.int32)) - 1).reshape(a.shape)
    return jnp.where(mask, source.reshape(-1).at[at].get(mode="clip"), a)


@op()
def embedding_bag(weight: Any, ids: Any, offsets: Any, _scale: bool = False, mode: int = 0, _sparse: bool = False,
                  weights: Any = None, include_last: bool = False, padding: int | None = -1) -> Any:  # fmt: skip
    """Rows of a table, of each bag their sum, mean or greatest; a bag begins at each offset."""
    first, place = offsets[:-1] if include_last else offsets, jnp.arange(ids.shape[0])
    bag = (place[:, None] >= first).astype(jnp.int32).sum(1) - 1
    has = (bag == jnp.arange(first.shape[0])[:, None]) & (ids != (-1 if padding is None else padding))
    rows = embedding(weight, ids)
    if mode == 2:
        greatest = jnp.where(has[..., None], rows, least(rows.dtype)).max(1)
        made = jnp.where(has.any(1)[:, None], greatest, 0)
    else:
        chosen = has.astype(rows.dtype) if weights is None else has * weights
        made = chosen @ rows
        made = made / jnp.maximum(has.sum(1), 1)[:, None] if mode == 1 else made
    return made, None, None, None


@op()
def histc(a: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:  # noqa: A002 - PyTorch's names
    if min == max:
        raise NotImplementedError("bounds that depend on the values")
    at = jnp.floor((a - min) * (bins / (max - min))).astype(jnp.int32)
    at = jnp.where(a == max, bins - 1, at)
    inside = (a >= min) & (a <= max)
    here = (at.reshape(-1)[:, None] == jnp.arange(bins)) & inside.reshape(-1)[:, None]
    return here.sum(0).astype(a.dtype)


@op()
def searchsorted(rows: Any, values: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
                 **_: Any) -> Any:  # fmt: skip
    del out_int32
    after = right or side == "right"
    compared = (rows[..., None, :] <= values[..., :, None]) if after else (rows[..., None, :] < values[..., :, None])
    return compared.sum(-1).astype(jnp.int32)


@op()
def bucketize(values: Any, edges: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    return searchsorted(edges, values.reshape(-1), out_int32=out_int32, right=right).reshape(values.shape)


@op()
def roll(a: Any, shifts: Any, dims: Any = ()) -> Any:
    return jnp.roll(a, tuple(shifts) if isinstance(shifts, Sequence) else shifts, tuple(dims) or None)


@op()
def flip(a: Any, dims: Sequence[int]) -> Any:
    return jnp.flip(a, tuple(dims))


@op()
def narrow(a: Any, dim: int, start: int, length: int) -> Any:
    return sliced(a, dim, start, start + length)


@op()
def diag_embed(a: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    n = a.shape[-1] + abs(offset)
    placed = jnp.pad(a, [(0, 0)] * (a.ndim - 1) + [(max(offset, 0), max(-offset, 0))]) if offset else a
    made = jnp.where((jnp.arange(n)[:, None] + offset) == jnp.arange(n)[None], placed[..., None, :], 0)
    return jnp.moveaxis(made, (-2, -1), (dim1, dim2))


@op("diag")
def diag(a: Any, offset: int = 0) -> Any:
    return diag_embed(a, offset) if a.ndim == 1 else jnp.diagonal(a, offset)


@op()
def meshgrid(arrays: Sequence[Any], *, indexing: str = "ij") -> Any:
    return jnp.meshgrid(*arrays, indexing=indexing)


@op()
def broadcast_tensors(arrays: Sequence[Any]) -> Any:
    return jnp.broadcast_arrays(*arrays)


@op("view_as", "reshape_as")
def view_as(a: Any, b: Any) -> Any:
    return a.reshape(b.shape)


@op("mT", "adjoint")
def matrix_transpose(a: Any) -> Any:
    return jnp.swapaxes(a, -1, -2)


@op("pad")
def pad(a: Any, widths: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    if mode == "constant":
        return constant_pad_nd(a, widths, value or 0)
    pairs = [(0, 0)] * (a.ndim - len(widths) // 2)
    pairs += [(widths[i], widths[i + 1]) for i in range(len(widths) - 2, -1, -2)]
    return jnp.pad(a, pairs, mode={"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode])


@op()
def pixel_shuffle(a: Any, factor: int) -> Any:
    *lead, channels, high, wide = a.shape
    apart = a.reshape(*lead, channels // factor**2, factor, factor, high, wide)
    n = len(lead)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return apart.transpose(order).reshape(*lead, channels // factor**2, high * factor, wide * factor)


@op()
def eye(rows: int, columns: int | None = None, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.eye(rows, columns if isinstance(columns, int) else rows, dtype=dtype_of(dtype) or jnp.float32)


@op()
def linspace(start: float, end: float, steps: int, *, dtype: Any = None, **_: Any) -> Any:
    return jnp.linspace(start, end, steps, dtype=dtype_of(dtype) or jnp.float32)
