"""Attention as JAX expressions, and what becomes of a partial softmax: a tuple of the mean and the log-sum-exp."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from shardwright.backends.jax.movements import parts_for_all
from shardwright.backends.jax.source_text import axes_text, number_text, transposed, tuple_text
from shardwright.backends.jax.terms import Lowering, Term, aligned, axis_of, einsum_letters, near_positions, spread
from shardwright.ir import ops
from shardwright.ir.operation import Operation
from shardwright.ir.ops.indexing import page_of_row
from shardwright.ir.types import ON_DEVICE, ON_HOST, DType, Partial, Reduction, TensorType

BLOCK = 512
"""Positions in a block."""
MOST_TOGETHER = 1024
"""So many positions are one block."""
FEW_QUERIES = 128
"""Of so many queries for each head of keys the scores take no more than the keys and values, in whatever block."""

Lower = Callable[[Operation, Sequence[Term], TensorType, Lowering], str]


def lower_attend(operation: ops.Attend, terms: Sequence[Term], result: TensorType, lowering: Lowering) -> str:
    """A call of the helper `attend`: a tuple of the mean and the log-sum-exp where both are results, or a pair.

    JAX computes on the device: what lies on the host is brought there and the result back.
    """
    if result.placement == ON_HOST:
        brought = [
            replace(
                t,
                code=f"jax.device_put({t.code}, jax.memory.Space.Device)",
                kind=replace(t.tensor, placement=ON_DEVICE),
                stacked=None,
            )
            if t.kind is not None and t.tensor.placement == ON_HOST
            else t
            for t in terms
        ]
        made = lower_attend(operation, brought, replace(result, placement=ON_DEVICE), lowering)
        return f"jax.device_put({made}, jax.memory.Space.Host)"
    for helper in ("attend", "attend_on_tpu", "order_on_tpu", "attend_by_cudnn", "attend_in_blocks"):
        lowering.use_helper(helper)
    (q, *pools), T, rows = (term.tensor for term in terms[:3]), operation.along, result.names[:-1]
    pages = _pages_read(operation, terms, lowering)
    k, v = pools if pages is None else pages.gathered
    letters = einsum_letters(list(dict.fromkeys((*q.names, *k.names, *v.names))))
    spelled = [
        "".join(letters[name] for name in names) for names in (q.names, k.names, v.names, (*rows, T), result.names)
    ]
    specs = f"('{spelled[1]},{spelled[0]}->{spelled[3]}', '{spelled[2]},{spelled[3]}->{spelled[4]}')"
    axes = f"({axis_of(k, T)}, {axis_of(v, T)})"
    here = lowering.size(k, T)
    shared = [name for name in rows if name in k.names]
    queries = math.prod(lowering.size(result, name) for name in rows if name not in shared)
    together = here <= MOST_TOGETHER or (queries <= FEW_QUERIES and pages is None)
    block = here if together else BLOCK
    options: list[str] = []
    masks = {name: terms[at] for name in ("pos", "length", "window") if (at := operation.at(name)) is not None}
    window = operation.window
    if "window" in masks:
        window = f"jnp.maximum({aligned(masks['window'], rows, DType.INT32)}, 0)"
    if operation.causal is not None:
        last = spread(lowering.global_index(result, operation.causal), (operation.causal,), rows)
        if "pos" in masks:
            n, n_queries = k.shape.size(T), q.shape.size(operation.causal)
            pos, window = near_positions(masks["pos"], rows, n, n_queries, window)
            last = f"{last} + {pos}"
        options.append(f"last={last}")
        part = _together(lowering.size(q, operation.causal)) if block < here else None
        if part is not None and (pages is None or operation.causal not in pages.rows):
            axis = rows.index(operation.causal) - len(rows)
            options.append(f"queries=({axis_of(q, operation.causal)}, {axis}, {part})")
    if "length" in masks:
        options.append(f"length={aligned(masks['length'], rows, DType.INT32)}")
    if window is not None:
        options.append(f"window={window}")
    for name, value, default in (("scale", operation.scale, 1.0), ("softcap", operation.softcap, 0.0)):
        if value != default:
            options.append(f"{name}={number_text(value)}")
    share, whole = operation.seen(q.shape, k.shape)
    seen = -(-here * share // whole), -(-here * operation.read(q.shape, k.shape) // k.shape.size(T))
    if pages is not None:  # of which a chip holds its part
        seen = -(-seen[0] * pages.held[0] // pages.held[1]), -(-seen[1] * pages.held[0] // pages.held[1])
    if seen != (here, here):
        options.append(f"seen={seen}")
    if not operation.lse and not result.is_pair:
        queries_of_cudnn = _cudnn(operation, terms, lowering)
        if queries_of_cudnn is not None:
            options.append(f"cudnn={''.join(letters[name] for name in queries_of_cudnn)!r}")
    keys, values = (term.stacked for term in terms[1:3])
    read = [term.code for term in terms[1:3]]
    if pages is not None:
        rows_of_table = "".join(letters[name] for name in pages.rows)
        options.append(f"pages={pages.table}, rows=({rows_of_table!r}, {pages.n_shared})")
        read = [transposed(code, order) for code, order in zip(read, pages.orders, strict=True)]
        keys = keys if all(list(order) == sorted(order) for order in pages.orders) else None
    if keys is not None and values is not None and keys[1] == values[1]:
        read = [keys[0], values[0]]
        options.append(f"at={tuple_text(keys[1])}")
    t = lowering.global_index(k, T) if pages is None else pages.positions
    codes = [terms[0].code, *read, specs, axes, t, str(block), *options]
    call = f"attend({', '.join(codes)})"
    return call if operation.lse or result.is_pair else f"{call}[0]"


@dataclass(frozen=True)
class _PagesRead:
    """How a module reads pages: `rows` are those of the `table`, whose entries number a chip's pages, and the first
    `n_shared` of them the pools have, too, before their pages; `orders` bring the pools' dimensions into that order.
    `gathered` are the keys and values of each row, at these `positions`, of which a chip has this share, `held`."""

    rows: tuple[str, ...]
    n_shared: int
    table: str
    positions: str
    orders: tuple[Sequence[int], Sequence[int]]
    gathered: tuple[TensorType, TensorType]
    held: tuple[int, int]


def _pages_read(operation: ops.Attend, terms: Sequence[Term], lowering: Lowering) -> _PagesRead | None:
    at, page, slot = operation.at("pages"), operation.page, operation.along
    if at is None or page is None:
        return None
    (q, k, v), table = (term.tensor for term in terms[:3]), terms[at].tensor
    own, (keys, values) = page_of_row(table.names, q.names), (operation.gathered_type(q, x, table) for x in (k, v))
    rows = keys.names[: len(table.names) - 1]
    common = [name for name in rows if name in k.names]
    order = [table.names.index(name) for name in (*rows, own)]
    place = lowering.local_place(transposed(terms[at].code, order), k, page)
    n = table.shape.size(own)
    positions = f"lax.iota(jnp.int32, {n})[:, None] * {k.shape.size(slot)} + {lowering.global_index(k, slot)}"

    def order_of(pool: TensorType, gathered: TensorType) -> list[int]:
        return [pool.names.index(name) for name in (*common, page, *gathered.names[len(rows) :])]

    orders = order_of(k, keys), order_of(v, values)
    held, entries = operation.held(k.shape, table.shape)
    held = held * lowering.size(k, page), entries * k.shape.size(page)
    return _PagesRead(rows, len(common), place, f"jnp.ravel({positions})", orders, (keys, values), held)


def attention_calls(module: str, func: str) -> tuple[int, int]:
    """How often a function of an emitted module calls `attend`, and in how many of these cuDNN is asked on a GPU."""
    body = module.partition(f"\ndef build_{func}(mesh):\n")[2].partition("\ndef ")[0]
    return body.count("= attend("), body.count("cudnn=")


def _cudnn(operation: ops.Attend, terms: Sequence[Term], lowering: Lowering) -> tuple[str, ...] | None:
    """The dimension of queries of which number l sees the positions up to l, none where there is one query that sees
    the first so many positions; None where cuDNN has no such mask, a soft cap, or not all positions on a chip."""
    (q, k, v), T = (term.tensor for term in terms[:3]), operation.along
    if operation.page is not None:
        return None
    before = k.names[: k.names.index(T)]
    rows = set(operation.rows(q.shape).names)
    masks = [term for term in terms[3:] if term.kind is not None]
    if (
        operation.softcap
        or q.dtype is DType.F32
        or lowering.size(k, T) != k.shape.size(T)
        or rows.intersection(k.names) != rows.intersection(v.names)
        or any(not rows.intersection(before).issuperset(term.tensor.names) for term in masks)
    ):
        return None
    causal = operation.causal
    if causal is None:
        return ()
    if q.shape.size(causal) == 1 and causal not in k.names:
        return None if operation.has_window else ()
    square = q.shape.size(causal) == lowering.size(q, causal) == k.shape.size(T)
    return (causal,) if square and not operation.given and causal not in k.names else None


def _together(queries: int) -> int | None:
    """So many queries are taken at a time, that blocks of positions which these do not see are passed over; None where
    all are, for there are few, or their number has no divisor of use."""
    size = next(size for size in range(min(BLOCK, queries), 0, -1) if queries % size == 0)
    return size if size < queries and 4 * size >= BLOCK else None


def lower_join(_operation: ops.JoinAttention, terms: Sequence[Term], _result: TensorType, lowering: Lowering) -> str:
    """A call of the helper `join_attention`."""
    lowering.use_helper("join_attention")
    return f"join_attention({', '.join(term.code for term in terms)})"


def lower_pair(operation: Operation, pair: Term, result: TensorType, lowering: Lowering, lower: Lower) -> str:
    """The code that an operation makes of a partial softmax; `lower` is for what it makes of each half."""
    if isinstance(operation, ops.Alias | ops.Rename):
        return pair.code
    kind = pair.tensor
    if isinstance(operation, ops.Movement) and isinstance(operation.moves, ops.AllReduce | ops.ReduceScatter):
        return _finished(operation.moves, pair, result, lowering, lower)
    halves = [
        lower(operation, [Term(f"{pair.code}[{i}]", half(kind))], half(result), lowering)
        for i, half in enumerate((_mean, _logarithm))
    ]
    return f"({', '.join(halves)})"


def _mean(kind: TensorType) -> TensorType:
    return replace(kind, partial=None)


def _logarithm(kind: TensorType) -> TensorType:
    return TensorType(DType.F32, kind.dims[:-1], kind.splits[:-1])


def _finished(
    operation: ops.AllReduce | ops.ReduceScatter, pair: Term, result: TensorType, lowering: Lowering, lower: Lower
) -> str:
    """The chips' means, weighed, are addends of the mean over all. Scattered over heads, say, each chip gets everyone's
    means and logarithms of its own in one exchange and joins them, which receives what a reduce-scatter of both does.
    """
    width = pair.tensor.dims[-1].name
    if isinstance(operation, ops.ReduceScatter) and all(dim != width for _, dim in operation.targets):
        for helper in ("joined_pieces", "exchanged_together"):
            lowering.use_helper(helper)
        (mean, axes), (lse, _) = (
            parts_for_all(f"{pair.code}[{i}]", half(pair.tensor), half(result), operation.named_axes, lowering)
            for i, half in enumerate((_mean, _logarithm))
        )
        joined = f"joined_pieces(*exchanged_together({mean}, {lse}, {axes}))"
        return joined if result.is_pair else f"{joined}[0]"
    lowering.use_helper("weighed")
    named = lowering.mesh.sorted(operation.named_axes)
    addends = replace(pair.tensor, partial=Partial(Reduction.SUM, named))
    if not result.is_pair:
        return lower(operation, [Term(f"weighed({pair.code}, {axes_text(named)})[0]", addends)], result, lowering)
    mean = lower(operation, [Term("mean", addends)], _mean(result), lowering)
    lse = "lse"
    if isinstance(operation, ops.ReduceScatter):
        lse = lower(ops.Slice(operation.targets), [Term("lse", _logarithm(pair.tensor))], _logarithm(result), lowering)
    lowering.use_helper("each_half")
    weighed = f"weighed({pair.code}, {axes_text(named)})"
    return f"each_half({weighed}, lambda mean: {mean}, lambda lse: {lse})"
