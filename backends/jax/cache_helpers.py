"""Rows written into caches where these lie, as functions that an emitted module defines for itself."""

from __future__ import annotations

import inspect

from shardwright.backends.jax.tiled_forms import order_on_tpu

CACHE_HELPERS: dict[str, str] = {
    "order_on_tpu": "\n" + inspect.getsource(order_on_tpu),
    "rows_written": '''
def rows_written(x, rows, starts, axis):
    """x with rows written as one block from these indices on; those that fall outside x along the axis are dropped."""
    n, size = rows.shape[axis], x.shape[axis]
    starts = tuple(jnp.asarray(start, jnp.int32) for start in starts)
    at = starts[axis]
    if n > size:  # only a part of the rows falls on this chip
        first = jnp.clip(-at, 0, n - size)
        rows, at, n = lax.dynamic_slice_in_dim(rows, first, size, axis), at + first, size
    inside = jnp.clip(at, 0, size - n)
    starts = (*starts[:axis], inside, *starts[axis + 1:])

    def there():
        return lax.dynamic_slice(x, starts, rows.shape)

    def laid_there(order):  # as x lies: compilers of accelerators that lay the slice out otherwise copy x
        return with_layout_constraint(there(), Layout(order))

    def written(there=None):
        row = inside - at + lax.broadcasted_iota(jnp.int32, rows.shape, axis)
        moved = rows if n == 1 else jnp.take(rows, inside - at + lax.iota(jnp.int32, n), axis=axis, mode='clip')
        kept = rows if there is None else jnp.where((row >= 0) & (row < n), moved, there())
        return lax.dynamic_update_slice(x, kept, starts)

    # On CPUs XLA copies x unless it is written in a branch; on GPUs a branch would wait for the host.
    return lax.platform_dependent(
        cpu=lambda: lax.cond(at == inside, written, lambda: written(there)),
        tpu=lambda: written(lambda: laid_there(order_on_tpu(x.shape, axis))),
        default=lambda: written(lambda: laid_there(tuple(range(x.ndim)))),
    )
''',
    "written_on_pages": '''
def written_on_pages(x, rows, table, at, size, index):
    """x with rows at positions `at` [rows of the table, ...], which are slots of so many to a page; what has no page is
    dropped. index: of the page and the slot the index of x."""
    at = jnp.broadcast_to(at, (*table.shape[:-1], *at.shape[table.ndim - 1:]))
    row = jnp.indices(at.shape, sparse=True)[:table.ndim - 1]
    page = table.at[(*row, at // size)].get(mode='fill', fill_value=-1, wrap_negative_indices=False)
    return x.at[index((page, at % size))].set(rows, mode='drop', wrap_negative_indices=False)
''',
    "written_page_by_page": '''
def written_page_by_page(x, rows, at, table, start):
    """x [at, pages, slots, ...] with rows [rows of the table, n, ...] in this entry of the leading axes, each from a
    position of its own on; what has no page is dropped. Where libtpu lays x in another order than that of its axes, it
    copies all of it there and back where rows are scattered."""
    axis, count = len(at) + 1, table.shape[-1]
    size, n = x.shape[axis], rows.shape[table.ndim - 1]
    each = (n + size - 2) // size + 1
    start = jnp.broadcast_to(start, table.shape[:-1]).reshape(-1)
    rows, table = rows.reshape(-1, *(1 for _ in range(axis)), *rows.shape[table.ndim - 1:]), table.reshape(-1, count)

    def written(i, x):
        row = lax.div(i, each)
        number = start[row] // size + lax.rem(i, each)
        page = table[row, jnp.clip(number, 0, count - 1)]
        there = (number >= 0) & (number < count) & (page >= 0) & (page < x.shape[axis - 1])
        first = jnp.where(there, start[row] - number * size, size)
        starts = (*at, jnp.where(there, page, 0), first, *(0 for _ in x.shape[axis + 1:]))
        return rows_written(x, rows[row], starts, axis)

    return lax.fori_loop(0, each * len(rows), written, x)
''',
    "rows_written_apart": '''
def rows_written_apart(x, rows, at, place):
    """x [at, batch, positions, ...] with rows [batch, n, ...] written in this entry of the leading axes, those of each
    entry of the batch from a place of its own on; what falls outside is dropped.

    Where libtpu lays x with positions along the lanes, it copies all of it there and back where rows are scattered: a
    kernel writes a single row, through the 128 positions around it; several are a block for each entry of the batch.
    Where positions are behind the heads, rows are scattered in that order.
    """
    n, order = rows.shape[place.ndim], order_on_tpu(x.shape, len(at) + place.ndim)

    def by_index(x, rows, at, place):
        batch = jnp.meshgrid(*map(jnp.arange, (*place.shape, 1)), indexing='ij', sparse=True)[:-1]
        places = place[..., None] + lax.iota(jnp.int32, n)
        return x.at[(*at, *batch, places)].set(rows, mode='drop', wrap_negative_indices=False)

    def by_heads(x, rows, at, place):
        x, rows = x.transpose(order), jnp.moveaxis(rows, place.ndim, -2)
        *index, number = jnp.indices(rows.shape[:-1], sparse=True)
        places = place[..., None, None] + number
        x = x.at[(*at, *index, places)].set(rows, mode='drop', wrap_negative_indices=False)
        return x.transpose(np.argsort(order))

    def by_blocks(x, rows, at, place):
        def written(b, x):
            b = jnp.unravel_index(b, place.shape)
            entry, block = (*at, *b), rows[b]
            starts = (*entry, place[b], *(0 for _ in block.shape[1:]))
            return rows_written(x, block.reshape(*(1 for _ in entry), *block.shape), starts, len(entry))

        return lax.fori_loop(0, place.size, written, x)

    def by_kernel(x, rows, at, place):
        axis, entry = len(at) + place.ndim, jnp.zeros(1, jnp.int32)
        for index, size in zip(at, x.shape):
            entry = entry * size + index
        B, H, (T, D) = place.size, math.prod(x.shape[axis + 1:-1]), (x.shape[axis], x.shape[-1])
        heads = max(n for n in range(1, H + 1) if H % n == 0 and (n == 1 or n * D <= 2048))
        span, lanes = min(T, 128), min(B, 128)

        def across(x):
            return jnp.moveaxis(x, axis, -1).reshape(-1, B, H, D, T)

        def kernel(entry, place, new, old, made):
            b = pl.program_id(0)
            column = lax.broadcasted_iota(jnp.int32, new.shape, 2) == lax.rem(b, lanes)
            column = jnp.sum(jnp.where(column, new[...].astype(jnp.float32), 0), 2, keepdims=True)
            here = lax.broadcasted_iota(jnp.int32, old.shape, 2) == place[b] - first(place[b]) * span
            made[...] = jnp.where(here, column, old[...].astype(jnp.float32)).astype(made.dtype)

        def first(place):
            return lax.div(jnp.clip(place, 0, T - 1), span)

        there = pl.BlockSpec(
            (None, None, heads, D, span), lambda b, h, entry, place: (entry[0], b, h, 0, first(place[b]))
        )
        made = pl.pallas_call(
            kernel,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=2,
                grid=(B, H // heads),
                in_specs=[pl.BlockSpec((heads, D, lanes), lambda b, h, *_: (h, 0, lax.div(b, lanes))), there],
                out_specs=there,
            ),
            out_shape=jax.eval_shape(lambda: across(by_index(x, rows, at, place))),
            input_output_aliases={3: 0},
            cost_estimate=pl.CostEstimate(
                flops=0, transcendentals=0, bytes_accessed=(2 * span + 1) * B * H * D * x.dtype.itemsize
            ),
            name='rows_written',
        )(entry, place.reshape(-1), jnp.moveaxis(rows.reshape(B, H, D), 0, -1), across(x))
        return jnp.moveaxis(made.reshape(*x.shape[:axis], *x.shape[axis + 1:], T), -1, axis)

    if order[-1] == x.ndim - 1:
        return lax.platform_dependent(x, rows, at, place, default=by_index, tpu=by_heads)
    on_tpu = jax.custom_jvp(by_kernel if n == 1 and x.dtype in (jnp.bfloat16, jnp.float32) else by_blocks)

    @on_tpu.defjvp
    def _(primals, tangents):
        return on_tpu(*primals), jax.jvp(by_index, primals, tangents)[1]

    return lax.platform_dependent(x, rows, at, place, default=by_index, tpu=on_tpu)
''',
}
"""By name, in the order in which modules have them."""
