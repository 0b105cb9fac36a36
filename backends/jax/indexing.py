"""Operations in which global indices matter as JAX expressions: lookup, rotary, cache update, take and concat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwright.backends.jax.source_text import JAX_DTYPES, number_text, reshaped, transposed, tuple_text
from shardwright.backends.jax.terms import Lowering, Term, aligned, axis_of, expanded, literal, spread, subscript
from shardwright.backends.jax.tiled_forms import order_on_tpu
from shardwright.ir import ops
from shardwright.ir.digits import blocks_of
from shardwright.ir.ops.indexing import page_of_row
from shardwright.ir.types import ON_DEVICE, DType, TensorType


def lower_lookup(operation: ops.Lookup, terms: Sequence[Term], result: TensorType, lowering: Lowering) -> str:
    """Rows of the table; an index that is out of range, or on another chip, gives zeros.

    Dimensions that table and indices share are indexed along with it. Where a chip looks up a single index that
    cannot be out of range it is a dynamic slice.
    """
    table, ids = terms[0].tensor, terms[1].tensor
    if operation.wrap and ids.local_elements(lowering.mesh) == 1 and not table.split(operation.dim):
        index = wrapped(reshaped(terms[1].code, ids.local_shape(lowering.mesh), ()), table, operation.dim)
        found = f"lax.dynamic_index_in_dim({terms[0].code}, {index}, {axis_of(table, operation.dim)}, keepdims=False)"
        shape = [
            n for n, name in zip(table.local_shape(lowering.mesh), table.names, strict=True) if name != operation.dim
        ]
        return reshaped(found, shape, result.local_shape(lowering.mesh))
    shared = [name for name in ids.names if name in table.names]
    rest = [name for name in table.names if name not in ids.names and name != operation.dim]
    order = [table.names.index(name) for name in (*shared, operation.dim, *rest)]
    wanted = f"{terms[1].code}.astype(jnp.int32)" if ids.dtype in (DType.INT8, DType.INT4) else terms[1].code
    if operation.wrap:
        wanted = f"({wrapped(wanted, table, operation.dim)})"
    place = lowering.local_place(wanted, table, operation.dim)
    if not shared:
        index = place
    else:
        counters = [spread(f"lax.iota(jnp.int32, {lowering.size(ids, n)})", (n,), ids.names) for n in shared]
        index = ", ".join([*counters, place])
    rows = f"{transposed(terms[0].code, order)}.at[{index}]"
    return f"{rows}.get(mode='fill', fill_value=0, wrap_negative_indices=False)"


def lower_grouped(operation: ops.Grouped, terms: Sequence[Term], result: TensorType, lowering: Lowering) -> str:
    """A call of the helper `grouped` on rows, matrices and the place of each row's matrix on the chip."""
    lowering.use_helper("grouped")
    x, w, expert = (term.tensor for term in terms)
    rows = [dim.name for dim in operation.rows(x.shape, expert.shape)]
    own = [name for name in rows if name in x.names]
    columns = [name for name in w.names if name not in (operation.dim, *operation.dims)]
    extents = dict(zip(result.names, result.local_shape(lowering.mesh), strict=True))
    summed = math.prod(lowering.size(x, name) for name in operation.dims)
    n_rows, n_columns = (math.prod(extents[name] for name in names) for names in (own, columns))

    def flat(kind: TensorType, code: str, names: Sequence[str], shape: Sequence[int]) -> str:
        code = transposed(code, [kind.names.index(name) for name in names])
        return reshaped(code, [lowering.size(kind, name) for name in names], shape)

    a = flat(x, terms[0].code, (*own, *operation.dims), (n_rows, summed))
    number = lowering.size(w, operation.dim)
    b = flat(w, terms[1].code, (operation.dim, *operation.dims, *columns), (number, summed, n_columns))
    index = terms[2].code if expert.dtype is DType.INT32 else f"{terms[2].code}.astype(jnp.int32)"
    place = lowering.local_place(index, w, operation.dim)
    place = expanded(place if place == terms[2].code else f"({place})", expert.names, rows)
    shape = tuple_text([str(extents[name]) for name in rows]) if rows else "()"
    made = f"grouped({a}, {b}, jnp.broadcast_to({place}, {shape}), {JAX_DTYPES[result.dtype]})"
    names = (*rows, *columns)
    made = reshaped(made, None, [extents[name] for name in names])
    return transposed(made, [names.index(name) for name in result.names])


def wrapped(index: str, kind: TensorType, dim: str) -> str:
    """An index modulo the extent of a dimension."""
    return f"{index} % {kind.shape.size(dim)}"


def lower_rotary(operation: ops.Rotary, terms: Sequence[Term], result: TensorType, lowering: Lowering) -> str:
    """A call of the helper `rotary`, with positions aligned to x and the frequency of each pair."""
    lowering.use_helper("rotary")
    names = result.names
    along = operation.positions_dim([term.arg for term in terms])
    others = ["" if name == operation.dim else name for name in names]
    if along is None:
        own: Sequence[str] = terms[1].kind.names if terms[1].kind is not None else ()
        code = aligned(terms[1], (), DType.INT32) if terms[1].number is not None else terms[1].code
        positions = expanded(code if own else f"jnp.int32({code})", own, others)
    else:
        start = aligned(terms[1], (), DType.INT32)
        positions = expanded(lowering.global_index(result, along), (along,), others)
        positions = positions if start == "0" else f"{start} + {positions}"
    rotated = operation.rotated or result.shape.size(operation.dim)
    if len(terms) > 2:
        given = operation.frequency_dims([term.arg for term in terms])
        frequencies = spread(terms[2].code, terms[2].tensor.names, given)
    else:
        exponents = f"-np.arange(0, {rotated}, 2) / {rotated}"
        frequencies = f"np.float32({number_text(float(operation.base))} ** ({exponents}))"
    axis = axis_of(result, operation.dim)
    return f"rotary({terms[0].code}, {positions}, {frequencies}, {axis}, {operation.style!r})"


def lower_uniform(operation: ops.Uniform, terms: Sequence[Term], result: TensorType, lowering: Lowering) -> str:
    """A call of the helper `uniform` on the words of the key and the number of each element along the dimensions."""
    lowering.use_helper("threefry2x32")
    lowering.use_helper("uniform")
    names = result.names
    index = ""
    for dim in operation.dims:
        along = expanded(lowering.global_index(result, dim), (dim,), names)
        index = f"({index}) * {result.shape.size(dim)} + {along}" if index else along
    words = [
        f"jnp.uint32({literal(term.number, DType.UINT32)})" if term.number is not None else aligned(term, names)
        for term in terms
    ]
    return f"uniform({', '.join(words)}, {index})"


@dataclass(frozen=True)
class SliceOf:
    """A state stacked over loops: the array axes that the loops run along, and the loops' indices."""

    whole: TensorType
    indices: tuple[tuple[str, str], ...]

    @property
    def subscript(self) -> str:
        """`[i]`, or `[:, i]`: this trip's slice."""
        found = dict(self.indices)
        return subscript([found.get(name, ":") for name in self.whole.names])

    @property
    def entry(self) -> tuple[str, ...]:
        """The loops' indices where they are those of the leading axes; else none."""
        found = dict(self.indices)
        leading = self.whole.names[: len(found)]
        return tuple(found[name] for name in leading) if set(leading) == set(found) else ()


def lower_update(
    operation: ops.Update,
    terms: Sequence[Term],
    _result: TensorType,
    lowering: Lowering,
    stacked: SliceOf | None = None,
) -> str:
    """The cache with rows written; what does not fall on the chip's rows is dropped.

    With `stacked` the first term is the whole stacked state, and the rows of this trip's slice are written in it, so
    that nothing else of it is touched. Rows that stand side by side on a chip are written as one block: accelerators'
    compilers do that in place, whereas they copy the whole of an array that they scatter into.
    """
    if operation.page is not None:
        return _written_on_pages(operation, terms, stacked, lowering)
    cache, new = terms[0].tensor, terms[1].tensor
    whole = stacked.whole if stacked else cache
    loops = dict(stacked.indices) if stacked else {}
    written = operation.written_dim([term.arg for term in terms])
    kinds = [term.kind for term in terms[2:] if term.kind is not None]
    positions = {name for kind in kinds for name in kind.names}
    batch = [name for name in cache.names if name in positions]
    single = all(kind.local_elements(lowering.mesh) == 1 for kind in kinds)
    others = dict(zip(operation.indexed, terms[3:], strict=True))
    own = [operation.dim if name == written else name for name in new.names]
    n_rows = 1 if written is None else lowering.size(new, written)
    beside = n_rows == 1 or (lowering.digits.is_contiguous(cache, operation.dim) and not operation.wrap)
    if single and beside and cache.placement == ON_DEVICE:
        names = [name for name in whole.names if name in own]
        sizes = [new.local_shape(lowering.mesh)[own.index(name)] for name in names]
        shape = [sizes[names.index(name)] if name in names else 1 for name in whole.names]
        rows = reshaped(transposed(terms[1].code, [own.index(name) for name in names]), sizes, shape)
        return _block_written(operation, terms, cache, whole, loops, rows, n_rows, lowering)

    if beside and not others and _lies_otherwise(cache, operation.dim, positions, stacked, lowering):
        names = [name for name in cache.names if name in own]
        rows = transposed(terms[1].code, [own.index(name) for name in names])
        return _written_apart(operation, terms, cache, stacked, rows, n_rows, lowering)

    # The index arrays broadcast against each other over `over`: the positions' dimensions and the written one.
    over = [name for name in cache.names if name in batch or (name == operation.dim and written is not None)]
    start = place = aligned(terms[2], over, DType.INT32)
    if operation.wrap:
        place = f"({wrapped(start, cache, operation.dim)})"
    if written is not None:
        steps = spread(f"lax.iota(jnp.int32, {lowering.size(new, written)})", (operation.dim,), over)
        place = steps if start == "0" else f"{place} + {steps}"
        place = f"({wrapped(f'({place})', cache, operation.dim)})" if operation.wrap else place
    places = {operation.dim: place, **{name: aligned(term, over, DType.INT32) for name, term in others.items()}}
    index, taken = _index(whole.names, loops, places, batch, over, cache, lowering)
    rows = transposed(terms[1].code, [own.index(name) for name in taken])
    return f"{terms[0].code}.at[{', '.join(index)}].set({rows}, mode='drop', wrap_negative_indices=False)"


def _index(
    names: Sequence[str],
    loops: Mapping[str, str],
    places: Mapping[str, str],
    each: Sequence[str],
    over: Sequence[str],
    cache: TensorType,
    lowering: Lowering,
) -> tuple[list[str], list[str]]:
    """The index of a cache with these dimensions at global `places`, by all of `each`, which broadcast over `over`; and
    the dimensions of what it takes: as numpy does it, those of index arrays stand where the arrays stand if these are
    neighbours, else in front."""
    found = {name: lowering.local_place(place, cache, name) for name, place in places.items()}
    found |= {name: spread(f"lax.iota(jnp.int32, {lowering.size(cache, name)})", (name,), over) for name in each}
    found |= loops
    index = [found.get(name, ":") for name in names]
    advanced = [i for i, word in enumerate(index) if word != ":"]
    kept = [name for name, word in zip(names, index, strict=True) if word == ":"]
    before = advanced[0] if advanced == list(range(advanced[0], advanced[-1] + 1)) else 0
    return index[: advanced[-1] + 1], [*kept[:before], *over, *kept[before:]]


def _written_on_pages(operation: ops.Update, terms: Sequence[Term], stacked: SliceOf | None, lowering: Lowering) -> str:
    """A call of the helper `written_on_pages`, which has the page and the slot of each position; or of
    `written_page_by_page`, where the target's compiler lays the pool in another order."""
    cache, new, table = (terms[i].tensor for i in (0, 1, -1))
    page, slot = operation.written_dims[:2]
    whole, loops = (stacked.whole, dict(stacked.indices)) if stacked else (cache, dict[str, str]())
    written = operation.written_dim([term.arg for term in terms])
    others = dict(zip(operation.indexed, terms[3:-1], strict=True))
    own = page_of_row(table.names, new.names)
    rows = [name for name in table.names if name != own]
    over = rows if written is None else [*rows, written]
    own_rows, first = terms[2].arg.names, aligned(terms[2], (), DType.INT32)
    table_code = transposed(terms[-1].code, [table.names.index(name) for name in (*rows, own)])
    if (
        cache.names[:2] == (page, slot)
        and not (others or cache.split(slot) or set(rows) & set(cache.names))
        and _lies_otherwise(cache, slot, set(), stacked, lowering)
    ):
        for helper in ("order_on_tpu", "rows_written", "written_page_by_page"):
            lowering.use_helper(helper)
        code = transposed(terms[1].code, [new.names.index(name) for name in (*over, *cache.names[2:])])
        sizes = [lowering.size(new, name) for name in rows]
        rest = [lowering.size(cache, name) for name in cache.names[2:]]
        code = code if written is not None else reshaped(code, None, [*sizes, 1, *rest])
        first = expanded(first, own_rows, rows) if own_rows else first
        entry = tuple_text(stacked.entry) if stacked else "()"
        place = lowering.local_place(table_code, cache, page)
        return f"written_page_by_page({terms[0].code}, {code}, {entry}, {place}, {first})"
    lowering.use_helper("written_on_pages")
    start = expanded(first, own_rows, over) if own_rows else first
    if written is not None:
        steps = expanded(f"lax.iota(jnp.int32, {lowering.size(new, written)})", (written,), over)
        start = steps if start == "0" else f"{start} + {steps}"
    elif not own_rows:
        start = f"jnp.full({tuple_text(['1'] * len(over))}, {start}, jnp.int32)"
    places = {page: "at[0]", slot: "at[1]"}
    places |= {name: aligned(term, over, DType.INT32) for name, term in others.items()}
    each = [name for name in rows if name in cache.names]
    index, taken = _index(whole.names, loops, places, each, over, cache, lowering)
    code = transposed(terms[1].code, [new.names.index(name) for name in taken])
    words = ", ".join("slice(None)" if word == ":" else word for word in index)
    size = cache.shape.size(slot)
    return f"written_on_pages({terms[0].code}, {code}, {table_code}, {start}, {size}, lambda at: ({words}))"


def _lies_otherwise(
    cache: TensorType, dim: str, positions: set[str], stacked: SliceOf | None, lowering: Lowering
) -> bool:
    """Tells whether the target's compiler lays a cache in another order than that of its dimensions, and rows have
    places of their own for each entry of the leading ones."""
    at, rank = axis_of(cache, dim), len(cache.names)
    return (
        lowering.forms.tile is not None
        and cache.placement == ON_DEVICE
        and at + 1 < rank
        and order_on_tpu(cache.local_shape(lowering.mesh), at) != tuple(range(rank))
        and positions.issubset(cache.names[:at])
        and (stacked is None or len(stacked.entry) > 0)
    )


def _written_apart(
    operation: ops.Update,
    terms: Sequence[Term],
    cache: TensorType,
    stacked: SliceOf | None,
    rows: str,
    n_rows: int,
    lowering: Lowering,
) -> str:
    """A call of the helper `rows_written_apart`; rows are in the order of the cache's dimensions."""
    for helper in ("order_on_tpu", "rows_written", "rows_written_apart"):
        lowering.use_helper(helper)
    at, sizes = axis_of(cache, operation.dim), list(cache.local_shape(lowering.mesh))
    new = terms[1].tensor.local_shape(lowering.mesh)
    if len(new) < len(sizes):  # none of the rows' dimensions is written
        rows = reshaped(rows, None, [*sizes[:at], n_rows, *sizes[at + 1 :]])
    place = aligned(terms[2], cache.names[:at], DType.INT32)
    if operation.wrap:
        place = f"({wrapped(f'({place})', cache, operation.dim)})"
    place = lowering.local_place(place, cache, operation.dim)
    if terms[2].kind is None or set(terms[2].kind.names) != set(cache.names[:at]):
        place = f"jnp.broadcast_to({place}, {tuple_text([str(size) for size in sizes[:at]])})"
    entry = tuple_text(stacked.entry) if stacked else "()"
    return f"rows_written_apart({terms[0].code}, {rows}, {entry}, {place})"


def _block_written(
    operation: ops.Update,
    terms: Sequence[Term],
    cache: TensorType,
    whole: TensorType,
    loops: Mapping[str, str],
    rows: str,
    n_rows: int,
    lowering: Lowering,
) -> str:
    """The cache with rows, of as many dimensions as it, written from one position on."""
    size, split = lowering.size(cache, operation.dim), bool(cache.split(operation.dim))
    number, start = terms[2].number, _single(terms[2], lowering)
    within = number is not None and not split and 0 <= number.value <= size - n_rows
    if operation.wrap:
        start, within = f"({wrapped(start, cache, operation.dim)})", not split
    starts = {**loops, operation.dim: lowering.local_place(start, cache, operation.dim)}
    for name, term in zip(operation.indexed, terms[3:], strict=True):
        place = starts[name] = lowering.local_place(_single(term, lowering), cache, name)
        there = f"({place} >= 0) & ({place} < {lowering.size(cache, name)})"
        starts[operation.dim], within = f"jnp.where({there}, {starts[operation.dim]}, {size})", False
    where = [starts.get(name, "0") for name in whole.names]
    if within:
        if not all(start.isdigit() for start in where):  # of the format of counters, under `jax_enable_x64` too
            where = [f"jnp.int32({start})" if start.isdigit() else start for start in where]
        return f"lax.dynamic_update_slice({terms[0].code}, {rows}, {tuple_text(where)})"
    for helper in ("order_on_tpu", "rows_written"):
        lowering.use_helper(helper)
    return f"rows_written({terms[0].code}, {rows}, {tuple_text(where)}, {axis_of(whole, operation.dim)})"


def _single(position: Term, lowering: Lowering) -> str:
    """A position that is one number on each chip."""
    if position.number is not None:
        return literal(position.number, DType.INT32)
    cast = "" if position.tensor.dtype is DType.INT32 else ".astype(jnp.int32)"
    return reshaped(position.code, position.tensor.local_shape(lowering.mesh), ()) + cast


def _in_blocks(term: Term, dim: str, by: Sequence[str], lowering: Lowering) -> tuple[str, list[int]]:
    """The array with the dimension as [its blocks, what one block holds], and its shape."""
    kind = term.tensor
    _, held = blocks_of(kind, dim, by, lowering.mesh)
    shape = list(kind.local_shape(lowering.mesh))
    at = axis_of(kind, dim)
    opened = [*shape[:at], held, shape[at] // held, *shape[at + 1 :]]
    return reshaped(term.code, shape, opened), opened


def lower_take(operation: ops.Take, terms: Sequence[Term], result: TensorType, lowering: Lowering) -> str:
    """A range of a dimension, out of each block where there are several."""
    kind = terms[0].tensor
    at = axis_of(kind, operation.dim)
    if operation.stop is None:
        return f"{terms[0].code}[{', '.join([*[':'] * at, str(operation.start)])}]"
    n, held = blocks_of(kind, operation.dim, operation.by, lowering.mesh)
    taken = ":".join(map(str, operation.range_of(n)))
    if held == 1:
        return f"{terms[0].code}[{', '.join([*[':'] * at, taken])}]"
    code, _ = _in_blocks(terms[0], operation.dim, operation.by, lowering)
    shape = result.local_shape(lowering.mesh)
    return f"{code}[{', '.join([*[':'] * (at + 1), taken])}].reshape({', '.join(map(str, shape))})"


def lower_topk(operation: ops.Topk, terms: Sequence[Term], _result: TensorType, lowering: Lowering) -> str:
    """A call of the helper `topk`: values and indices, of each block where there are several."""
    lowering.use_helper("topk")
    kind = terms[0].tensor
    n, held = blocks_of(kind, operation.dim, operation.by, lowering.mesh)
    index = lowering.global_index(kind, operation.dim)
    index = index[1:-1] if index.startswith("(") else index
    blocks = f", blocks={held}" if held > 1 else ""
    return f"topk({terms[0].code}, {operation.share(n)}, {axis_of(kind, operation.dim)}, {index}{blocks})"


def lower_concat(operation: ops.Concat, terms: Sequence[Term], result: TensorType, lowering: Lowering) -> str:
    """One after the other along a dimension, block by block where there are several."""
    at = axis_of(result, operation.dim)
    _, held = blocks_of(result, operation.dim, operation.by, lowering.mesh)
    if held == 1:
        return f"jnp.concatenate({tuple_text([term.code for term in terms])}, axis={at})"
    parts = [_in_blocks(term, operation.dim, operation.by, lowering)[0] for term in terms]
    shape = result.local_shape(lowering.mesh)
    return f"jnp.concatenate({tuple_text(parts)}, axis={at + 1}).reshape({', '.join(map(str, shape))})"
