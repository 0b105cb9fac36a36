"""Numpy kernels that multiply: contractions, grouped products and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shardwright.backends.number_formats import Array, paired, softmax_weights
from shardwright.backends.simulation.call import Call, like, positions_along, tensor_of
from shardwright.backends.simulation.local_values import Local, aligned
from shardwright.backends.simulation.pages import gathered_pages, positions_of_pages
from shardwright.ir import ops
from shardwright.ir.types import DType, TensorType


def contract(operation: ops.Contract, call: Call) -> Array:
    left, right = tensor_of(call.args[0]), tensor_of(call.args[1])
    lead = len(call.setting.mesh)
    batch = [n for n in left.kind.names if n in right.kind.names and n not in operation.dims]
    rows = [n for n in left.kind.names if n not in right.kind.names]
    columns = [n for n in right.kind.names if n not in left.kind.names]
    a = aligned(left, (*batch, *rows, *operation.dims), lead)
    b = aligned(right, (*batch, *operation.dims, *columns), lead)
    if call.result.dtype is not DType.BOOL and a.dtype == np.bool_:
        a, b = a.astype(np.int64), b.astype(np.int64)
    outer = a.shape[: lead + len(batch)]
    n_rows = math.prod(a.shape[len(outer) : len(outer) + len(rows)])
    n_columns = math.prod(b.shape[len(outer) + len(operation.dims) :])
    n_summed = math.prod(a.shape[len(outer) + len(rows) :])
    product = a.reshape(*outer, n_rows, n_summed) @ b.reshape(*outer, n_summed, n_columns)
    made = (*batch, *rows, *columns)
    extents = dict(zip(call.result.names, call.result.local_shape(call.setting.mesh), strict=True))
    product = product.reshape((*outer[:lead], *(extents[name] for name in made)))
    return product.transpose(*range(lead), *(lead + made.index(name) for name in call.result.names))


def grouped(operation: ops.Grouped, call: Call) -> Array:
    """One product for each matrix on a chip, of which the rows that chose it are taken; zeros for the others."""
    x, w, expert = (tensor_of(arg) for arg in call.args)
    lead, dims = len(call.setting.mesh), operation.dims
    local, held = call.setting.locate(w.kind, operation.dim, expert.array)
    rows = [dim.name for dim in operation.rows(x.kind.shape, expert.kind.shape)]
    columns = [name for name in w.kind.names if name not in (operation.dim, *dims)]
    a, b = aligned(x, (*rows, *dims), lead), aligned(w, (operation.dim, *dims, *columns), lead)
    mesh, width = a.shape[:lead], math.prod(b.shape[lead + 1 + len(dims) :])
    a = a.reshape(*a.shape[: lead + len(rows)], -1)
    b = b.reshape(*mesh, b.shape[lead], *(1 for _ in rows[1:]), a.shape[-1], width)
    chosen = aligned(Local(np.where(held, local, -1), expert.kind), rows, lead)[..., None]
    flat = a if rows else a[..., None, :]
    made: Array = np.zeros((), np.result_type(a, b))
    for number in range(b.shape[lead]):
        product = flat @ b[(slice(None),) * lead + (number,)]
        made = np.where(chosen == number, product if rows else product[..., 0, :], made)
    extents = dict(zip(call.result.names, call.result.local_shape(call.setting.mesh), strict=True))
    made = np.broadcast_to(made, (*mesh, *(extents[name] for name in rows), width))
    made = made.reshape((*mesh, *(extents[name] for name in (*rows, *columns))))
    return made.transpose(*range(lead), *(lead + (*rows, *columns).index(name) for name in call.result.names))


def attend(operation: ops.Attend, call: Call) -> tuple[Array, ...]:
    q, *pools = (tensor_of(arg) for arg in call.args[:3])
    T, formats, pages = operation.along, call.setting.formats, operation.at("pages")
    table = None if pages is None else tensor_of(call.args[pages])
    k, v = (
        gathered_pages(operation, q.kind, pool, table, call.setting) if table is not None else pool for pool in pools
    )
    kind = _scores_type(operation, q.kind, k.kind)
    names = kind.names
    wide = np.float64 if formats.precision == "exact" else np.float32
    scores = contract(ops.Contract((operation.contracted,)), Call((q, k), (kind,), call.setting))
    scores = scores.astype(wide) * wide(operation.scale)
    if operation.softcap:
        scores = operation.softcap * np.tanh(scores / wide(operation.softcap))
    visible: Array = np.ones((), np.bool_)
    if table is not None:
        t, visible = positions_of_pages(operation, q.kind, pools[0].kind, table, names, call.setting)
    else:
        t = positions_along(kind, T, names, call.setting)
    if operation.causal is not None:
        own = positions_along(kind, operation.causal, names, call.setting) + _given(operation, call, "pos", names)
        visible = visible & (t <= own)
        if operation.has_window:
            window = _given(operation, call, "window", names) if operation.window is None else operation.window
            visible = visible & (t > own - window)
    if operation.at("length") is not None:
        visible = visible & (t < _given(operation, call, "length", names))
    weights, lse = softmax_weights(np.where(visible, scores, -np.inf), -1)
    weights = Local(formats.round(weights, v.kind.dtype), kind)
    mean = contract(ops.Contract((T,)), Call((weights, v), call.results, call.setting))
    if call.result.is_pair:
        return (paired(mean, lse),)
    return (mean, lse[..., 0]) if operation.lse else (mean,)


def _scores_type(operation: ops.Attend, q: TensorType, k: TensorType) -> TensorType:
    """[q's dimensions but the contracted one, T], as they lie on chips."""
    T = operation.along
    dims = [(q, dim) for dim in q.dims if dim.name != operation.contracted] + [(k, d) for d in k.dims if d.name == T]
    return TensorType(DType.F32, tuple(dim for _, dim in dims), tuple(kind.split(dim.name) for kind, dim in dims))


def _given(operation: ops.Attend, call: Call, name: str, names: Sequence[str]) -> Array:
    """The operand `pos`, `length` or `window`, aligned to scores; 0 where it is left out."""
    at = operation.at(name)
    return np.zeros((), np.int64) if at is None else like(call.args[at], DType.INT32, names, call.setting)


def join_attention(_operation: ops.JoinAttention, call: Call) -> tuple[Array, ...]:
    o1, lse1, o2, lse2 = (tensor_of(arg).array for arg in call.args)
    weights, lse = softmax_weights(np.stack([lse1, lse2], -1), -1)
    return weights[..., :1] * o1 + weights[..., 1:] * o2, lse[..., 0]
